"""`anyorder generate`: prompts in, continued texts out, and the record of how they were generated."""

from pathlib import Path

from anyorder.cli.streaming import fill_lines, input_argument, open_input, texts_input
from anyorder.data.corpus import OnInvalid
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.decoding.lengths import GIVEN
from anyorder.device import Device
from anyorder.errors import InputError
from anyorder.filler import DEFAULT_LENGTH


def generate(
    input: list[str],
    model: str,
    prompt: str | None = None,
    length: int = DEFAULT_LENGTH,
    order: str = AUTO,
    schedule: str = AUTO,
    revision: str = "none",
    beam: str = "1",
    temperature: float = 0.0,
    top_p: float = 1.0,
    trace: bool = False,
    json: Path | None = None,
    seed: int = 1,
    device: Device = "auto",
    batch_tokens: int | None = None,
    strict: bool = False,
) -> None:
    """Continue a prompt, a file with one prompt per line, or standard input.

    --length masks are appended to each prompt and filled. The text ends at the first end-of-sequence token among them.
    A prompt that is too long for the model is returned unchanged and never stops the others; if it is the only prompt,
    it is an error.

    Args:
        input: A file (plain, .gz, .xz), a prompt, or nothing for standard input.
        model: A Transformers masked language model: a folder or a hub id, with or without the prefix hf:.
        prompt: The prompt; use this or the input argument.
        length: Number of tokens to generate.
        order: Which position to fill next; 'anyorder orders' lists the names. auto is the model's learned order, or
            margin if it has none.
        schedule: How many positions to fill per step: one, a number, cosine:T, threshold:P, and others that
            'anyorder orders' lists. auto is the schedule published with the revision; without a revision it is one, or
            blocks:B for a model with blocks of B positions.
        revision: Which filled positions to mask again after a step; 'anyorder orders' lists the names.
        beam: Beam size for each text: N (beam over tokens, in the given order), positions:N (over the positions that
            the order ranks highest), or joint:N (over positions and tokens at once). 1 is greedy.
        temperature: Sampling temperature; 0 always picks the most likely token.
        top_p: Nucleus sampling: sample from the smallest set of tokens whose total probability reaches this.
        trace: Show the text after every step: [ ] marks neighbors filled from left to right, { } from right to left,
            and old->new a revised token.
        json: Also write the trajectories to this file, one per line (plain, .gz, .xz).
        seed: Random seed for orders, revisions and sampled tokens.
        device: Device to run on.
        batch_tokens: Tokens to decode per batch. On CUDA, rounding may change a few results.
        strict: Stop with an error at the first problematic prompt.
    """
    if prompt is not None and input:
        raise InputError("give --prompt or an input, not both")
    config = DecodingConfig(
        order=order,
        schedule=schedule,
        revision=revision,
        length=GIVEN,
        seed=seed,
        batch_tokens=batch_tokens,
        beam=beam,
        temperature=temperature,
        top_p=top_p,
    )
    on_invalid: OnInvalid = "strict" if strict else "replace"
    lines = open_input(input, on_invalid) if prompt is None else texts_input([prompt])
    is_single = len(input) <= 1 and lines[1] == "input"
    fill_lines("generate", lines, [*map(Path, input)], model, config, length, trace, json, device, strict or is_single)


generate.positionals = input_argument("a prompt")  # type: ignore[attr-defined]

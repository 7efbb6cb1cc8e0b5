"""`anyorder infill`: texts with masks in, filled texts out, and the record of how they were filled."""

from pathlib import Path

from anyorder.cli.streaming import fill_lines, input_argument, open_input
from anyorder.data.corpus import OnInvalid
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.decoding.lengths import GIVEN
from anyorder.device import Device


def infill(
    input: list[str],
    model: str,
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
    """Fill the masks in a text, in a file with one text per line, or in standard input.

    Each [MASK], or the model's own mask token, stands for one token. With a puzzle model, a line may also be a puzzle,
    one character per cell, with 0 for an empty cell. A line that cannot be filled (it has no mask and is not a puzzle,
    or it is too long for the model) is returned unchanged and never stops the others. Its trajectory has a note, and
    such lines are listed on standard error at the end. If it is the only text, it is an error. Puzzles that have no
    solution are filled all the same, and counted on standard error.

    Args:
        input: A file (plain, .gz, .xz), a text with masks, or nothing for standard input.
        model: A Transformers masked language model: a folder or a hub id, with or without the prefix hf:.
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
            and old->new a revised token. A puzzle is shown as a grid: [ ] marks newly filled cells, { } revised ones.
        json: Also write the trajectories to this file, one per line (plain, .gz, .xz).
        seed: Random seed for orders, revisions and sampled tokens.
        device: Device to run on.
        batch_tokens: Tokens to decode per batch. On CUDA, rounding may change a few results.
        strict: Stop with an error at the first problematic line.
    """
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
    lines = open_input(input, on_invalid)
    is_single = len(input) == 1 and lines[1] == "input"
    fill_lines("infill", lines, [*map(Path, input)], model, config, None, trace, json, device, strict or is_single)


infill.positionals = input_argument("a text with masks")  # type: ignore[attr-defined]

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
    """Fill the masks of a text, of a file with one text per line, or of standard input.

    [MASK], or the model's own mask token, stands for one token each. With a model for puzzles a line may also be a
    puzzle, a character a cell, 0 where it is empty. A line that cannot be filled (it has no mask and is no puzzle, or
    the model has no room for it) comes back as it is and never stops the others; a note in the trajectory says so, and
    at the end standard error names such lines. If a single text is given, it is an error.

    Args:
        input: A file (plain, .gz, .xz), a text with masks, or nothing for standard input.
        model: A masked language model of Transformers, a folder or a hub id; hf:NAME says that it is one.
        order: Which position is filled next; 'anyorder orders' lists the names. auto is the model's learned order, or
            margin where it has none.
        schedule: How many positions a step fills: one, a number, cosine:T, threshold:P, and others that
            'anyorder orders' lists. auto is what the revision was published with; without a revision it is one, or
            blocks:B in a model with blocks of B positions.
        revision: Which filled positions are masked again after a step.
        beam: Hypotheses kept of each text: N (over tokens, in the given order), positions:N (over the positions that
            the order ranks first), or joint:N (over positions and tokens at once). 1 is greedy.
        temperature: 0 writes the most likely token; above 0 tokens are sampled.
        top_p: Sample only from the most likely tokens, as many as have this probability together.
        trace: Show the text after every step; [ ] was filled rightwards, { } leftwards,
            old->new was revised. A puzzle is shown as a grid: [ ] is what the step wrote, { } what it revised.
        json: Write one trajectory per line to this file (plain, .gz, .xz).
        seed: For random orders and revisions, and for sampled tokens.
        device: Where to run.
        batch_tokens: Tokens that are decoded together; results do not depend on it.
        strict: Stop with an error at the first line that cannot be filled as it is.
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

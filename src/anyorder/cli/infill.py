"""`anyorder infill`: texts with masks in, filled texts out, and the record of how they were filled."""

from anyorder.cli.common import DecodingOptions, LineOptions, masked_model
from anyorder.cli.streaming import open_input, run_lines


def infill(
    input: list[str],
    /,
    model: str,
    decoding: DecodingOptions,
    output: LineOptions,
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
    """
    lines = open_input(input, output.on_invalid)
    run_lines("infill", "fill", lines, masked_model(model), None, decoding, output)

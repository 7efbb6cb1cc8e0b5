"""`anyorder translate`: text in, text out, and the record of how it was generated."""

from pathlib import Path
from typing import Any

from anyorder.cli.common import DecodingOptions, LineOptions
from anyorder.cli.streaming import open_input, run_lines
from anyorder.decoding.config import DEFAULT_LENGTH
from anyorder.errors import InputError


def translate(
    input: list[str],
    /,
    model: str,
    direction: str,
    decoding: DecodingOptions,
    output: LineOptions,
    length: str = DEFAULT_LENGTH,
    length_penalty: float = 1.0,
    reference: Path | None = None,
) -> None:
    """Translate a sentence, a file or standard input.

    A problematic line never stops the others. An empty line gives an empty line. A line that is too long for the model
    is split into sentences, or else clauses, and whatever still does not fit is truncated. Control characters become
    spaces, and invalid UTF-8 becomes U+FFFD. The trajectories of such lines have a note, and the lines are listed on
    standard error at the end.

    Args:
        input: A file (plain, .gz, .xz), a sentence, or nothing for standard input.
        model: A bundled model (de-en), a folder, or a hub id.
        direction: Source and target language, such as de-en.
        length: How to choose the target length: predicted, candidates:N (the N most likely, re-ranked), table:N (the N
            most frequent, as in the paper), fixed:N (N subwords), or gold (needs --reference). N lengths take about N
            times as long as one.
        length_penalty: Hypotheses of different lengths are ranked by total log-probability / length ** length_penalty.
        reference: Reference translations, one per line, for --length gold.
    """
    if (length == "gold") != (reference is not None):
        raise InputError("--length gold and --reference FILE go together")
    lines = open_input(input, output.on_invalid)
    lengths: dict[str, Any] = {"length": length, "length_penalty": length_penalty}
    run_lines("translate", "translate", lines, model, direction, decoding, output, reference, **lengths)

"""`anyorder translate`: text in, text out, and the record of how it was generated."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

from anyorder import progress
from anyorder.cli.common import check_apart, open_translator, print_note
from anyorder.data.corpus import OnInvalid, decode_lines, read_lines
from anyorder.data.lines import LineNote, LineReport
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.decoding.lengths import DEFAULT_LENGTH
from anyorder.decoding.trajectory import Trajectory, TrajectoryWriter, trajectory_writer
from anyorder.device import Device
from anyorder.errors import InputError
from anyorder.report.terminal import trace as trace_lines
from anyorder.translator import CHUNK


def translate(
    input: list[str],
    model: str,
    direction: str,
    order: str = AUTO,
    schedule: str = "one",
    length: str = DEFAULT_LENGTH,
    reference: Path | None = None,
    trace: bool = False,
    json: Path | None = None,
    seed: int = 1,
    device: Device = "auto",
    batch_tokens: int | None = None,
    strict: bool = False,
) -> None:
    """Translate a sentence, a file or standard input.

    A line that cannot be translated as it is never stops the others. An empty one gives an empty line; one that the
    model has no room for is split into sentences, or else clauses, and what does not fit even then is cut off; control
    characters become spaces, and bytes that are not UTF-8 become U+FFFD. A note in the trajectory says so, and at the
    end standard error names such lines.

    Args:
        input: A file (plain, .gz, .xz), a sentence, or nothing for standard input.
        model: A bundled model (de-en), a folder, or a hub id.
        direction: Source and target language, such as de-en.
        order: Which position is filled next; 'anyorder orders' lists the names. auto is the model's learned order, or
            margin where it has none.
        schedule: How many positions a step fills: one, a number, or threshold:P (all whose best token has at least
            probability P).
        length: How the target's length is found: predicted, candidates:N (the N most likely, re-ranked), table:N (the N
            most frequent, as in the paper), fixed:N (N subwords), or gold (needs --reference).
        reference: Reference translations, one per line, for --length gold.
        trace: Show the sentence after every step; [ ] was filled rightwards, { } leftwards.
        json: Write one trajectory per line to this file (plain, .gz, .xz).
        seed: For random orders.
        device: Where to run.
        batch_tokens: Target tokens that are decoded together; results do not depend on it.
        strict: Stop with an error at the first line that cannot be translated as it is.
    """
    config = DecodingConfig(order=order, schedule=schedule, length=length, seed=seed, batch_tokens=batch_tokens)
    if (length == "gold") != (reference is not None):
        raise InputError("--length gold and --reference FILE go together")
    check_apart({"--json": json}, [*map(Path, input), reference])
    on_invalid: OnInvalid = "strict" if strict else "replace"
    lines, name = _open_input(input, on_invalid)
    report, lines_read = LineReport(), 0
    with _open_output(json) as writer:
        translator = open_translator(model, device)
        with progress.bar("translating", unit="sentences") as bar:
            stream = translator.stream(
                lines,
                direction,
                config,
                read_lines(reference, on_invalid) if reference else None,
                on_progress=bar.advance,
                source_name=name,
                reference_name=str(reference),
                strict=strict,
            )
            while trajectories := list(islice(stream, CHUNK)):
                if not progress.is_main_process():
                    continue
                if writer:
                    for trajectory in trajectories:
                        writer.write(trajectory)
                for line, trajectory in enumerate(trajectories, start=lines_read + 1):
                    _print(trajectory, trace)
                    if trajectory.note:
                        report.add(LineNote(line, trajectory.note))
                lines_read += len(trajectories)
    print_note("translate", report.summary("translated") if lines_read else f"{name} is empty: nothing to translate")


translate.positionals = {  # type: ignore[attr-defined]
    "input": {
        "nargs": "*",
        "type": str,
        "default": [],
        "help": "a file (plain, .gz, .xz), a sentence, or nothing for standard input",
    }
}


def _open_input(arguments: list[str], on_invalid: OnInvalid) -> tuple[Iterator[str], str]:
    """The lines to translate and what to call them in messages."""
    if not arguments or arguments == ["-"]:
        if sys.stdin is None:
            raise InputError("standard input is closed: give a sentence or a file")
        return decode_lines(sys.stdin.buffer, "standard input", on_invalid), "standard input"
    if len(arguments) == 1 and arguments[0]:
        path = Path(arguments[0])
        if os.path.isdir(path):  # unlike Path.is_dir, accepts a sentence that is too long to be a file's name
            raise InputError(f"{path}: is a folder, expected a text file or a sentence")
        looks_like_path = " " not in arguments[0] and (os.sep in arguments[0] or path.suffix in _SUFFIXES)
        if looks_like_path or os.path.isfile(path):
            return read_lines(path, on_invalid), str(path)
    return iter([" ".join(sentence.splitlines()) for sentence in arguments]), "input"


_SUFFIXES = (".txt", ".gz", ".xz", ".de", ".en", ".ro", ".zh", ".src", ".tok")


def _open_output(file: Path | None) -> AbstractContextManager[TrajectoryWriter | None]:
    """What was decoded stays in the file when nobody reads standard output any more (`| head`)."""
    if file is None or not progress.is_main_process():
        return nullcontext()
    return trajectory_writer(file, keep_on=(BrokenPipeError,))


def _print(trajectory: Trajectory, trace: bool) -> None:
    if not trace:
        print(trajectory.text)
        return
    print(f"source  {trajectory.source}")
    for line in trace_lines(trajectory):
        print(line)
    print(f"result  {trajectory.text}\n", flush=True)

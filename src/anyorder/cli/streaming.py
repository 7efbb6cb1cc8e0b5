"""What `translate`, `infill` and `generate` do: decode lines, print and write trajectories, report on lines."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from anyorder import progress
from anyorder.cli.common import DecodingOptions, LineOptions, check_apart, open_decoder, output_file, print_note
from anyorder.data.corpus import OnInvalid, decode_lines, read_lines
from anyorder.data.line_problems import LineNote, LineReport
from anyorder.decoder import CHUNK
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.report.terminal import trace as trace_lines
from anyorder.tasks import PuzzleTask, Task, Translation

_SUFFIXES = (".txt", ".gz", ".xz", ".de", ".en", ".ro", ".zh", ".src", ".tok")


@dataclass(frozen=True)
class Input:
    """The lines to decode."""

    lines: Iterator[str]
    name: str
    """What messages call them."""
    file: Path | None = None
    is_single: bool = False
    """Whether it is one text of the command line."""


def open_input(arguments: list[str], on_invalid: OnInvalid) -> Input:
    """The lines of a file or standard input, or the texts of the command line."""
    if not arguments or arguments == ["-"]:
        if sys.stdin is None:
            raise InputError("standard input is closed: give a sentence or a file")
        return Input(decode_lines(sys.stdin.buffer, "standard input", on_invalid), "standard input")
    if len(arguments) == 1 and arguments[0]:
        path = Path(arguments[0])
        if os.path.isdir(path):  # unlike Path.is_dir, accepts a sentence that is too long to be a file's name
            raise InputError(f"{path}: is a folder, expected a text file or a sentence")
        looks_like_path = " " not in arguments[0] and (os.sep in arguments[0] or path.suffix in _SUFFIXES)
        if looks_like_path or os.path.isfile(path):
            return Input(read_lines(path, on_invalid), str(path), path)
    return texts_input(arguments)


def texts_input(texts: list[str]) -> Input:
    """Texts of the command line, each one line."""
    return Input(iter([" ".join(text.splitlines()) for text in texts]), "input", is_single=len(texts) == 1)


def run_lines(
    verb: str,
    word: str,
    given: Input,
    model: str,
    task: str | Task | None,
    decoding: DecodingOptions,
    output: LineOptions,
    reference: Path | None = None,
    **config: Any,
) -> None:
    """Decode lines, print and write their trajectories, and report on lines that were not used as they are.

    word: what is done to a text, such as `translate`; config: more of the config. A single text that
    cannot be filled as it is is an error; a single sentence is split or truncated, as in a file.
    """
    settings, stem = decoding.config(**config), word.removesuffix("e")
    check_apart({"--json": output.json}, [given.file, reference])
    count, unsolvable, report = 0, 0, LineReport()
    # What was decoded stays if standard output fails: if nobody reads it, or it lacks a character.
    with output_file(output.json, keep_on=(BrokenPipeError, UnicodeEncodeError)) as file:
        decoder = open_decoder(model, decoding.device, task)
        with progress.bar(f"{stem}ing", unit=f"{decoder.task.unit}s") as bar:
            stream = decoder.stream(
                given.lines,
                settings,
                read_lines(reference, output.on_invalid) if reference else None,
                on_progress=bar.advance,
                names={"source": given.name, "reference": str(reference)},
                strict=output.strict or (given.is_single and not isinstance(decoder.task, Translation)),
            )
            while trajectories := list(islice(stream, CHUNK)):
                if not progress.is_main_process():
                    continue
                if file:
                    file.writelines(f"{trajectory.to_json()}\n" for trajectory in trajectories)
                for trajectory in trajectories:
                    count += 1
                    _print(trajectory, output.trace)
                    if trajectory.note:
                        report.add(LineNote(count, trajectory.note))
                if isinstance(decoder.task, PuzzleTask):
                    puzzles = [one.source for one in trajectories if one.task == decoder.task.name]
                    unsolvable += sum(map(bool, decoder.task.problems(decoder.task.read_lines(puzzles)[0])))
    print_note(verb, report.summary(f"{stem}ed") if count else f"{given.name} is empty: nothing to {word}")
    if unsolvable:
        print_note(verb, f"{'1 puzzle is' if unsolvable == 1 else f'{unsolvable:,} puzzles are'} unsolvable")


def _print(trajectory: Trajectory, trace: bool) -> None:
    if not trace:
        print(trajectory.text)
        return
    print(f"source  {trajectory.source}")
    for line in trace_lines(trajectory):
        print(line)
    print(f"result  {trajectory.text}\n", flush=True)

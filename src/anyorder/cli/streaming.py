"""What the verbs that decode lines of text share: open the input, print and write trajectories, report on lines."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from anyorder import progress
from anyorder.cli.common import check_apart, print_note
from anyorder.data.corpus import OnInvalid, decode_lines, read_lines
from anyorder.data.lines import LineNote, LineReport
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory, TrajectoryWriter, trajectory_writer
from anyorder.device import join_processes, resolve_device
from anyorder.errors import InputError
from anyorder.filler import load_filler
from anyorder.report.terminal import trace as trace_lines
from anyorder.tasks import PuzzleTask
from anyorder.tasks.encoder import task_name
from anyorder.tasks.puzzles import count_unsolvable
from anyorder.translator import CHUNK

_SUFFIXES = (".txt", ".gz", ".xz", ".de", ".en", ".ro", ".zh", ".src", ".tok")


def input_argument(what: str) -> dict[str, dict[str, Any]]:
    """The positional argument of a verb that reads lines. what: such as `a sentence`."""
    text = f"a file (plain, .gz, .xz), {what}, or nothing for standard input"
    return {"input": {"nargs": "*", "type": str, "default": [], "help": text}}


def open_input(arguments: list[str], on_invalid: OnInvalid) -> tuple[Iterator[str], str]:
    """The lines to decode and what to call them in messages."""
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
    return texts_input(arguments)


def texts_input(texts: list[str]) -> tuple[Iterator[str], str]:
    """Texts from the command line as lines, and what to call them in messages."""
    return iter([" ".join(text.splitlines()) for text in texts]), "input"


def open_output(file: Path | None) -> AbstractContextManager[TrajectoryWriter | None]:
    """A writer that keeps what was decoded if standard output fails: if nobody reads it, or it lacks a character."""
    if file is None or not progress.is_main_process():
        return nullcontext()
    return trajectory_writer(file, keep_on=(BrokenPipeError, UnicodeEncodeError))


@dataclass
class Shown:
    """What was printed."""

    lines: int = 0
    unsolvable: int = 0
    """Puzzles that cannot be solved."""
    report: LineReport = field(default_factory=LineReport)


def show(
    stream: Iterator[Trajectory], writer: TrajectoryWriter | None, trace: bool, task: PuzzleTask | None = None
) -> Shown:
    """Print trajectories, and write them if there is a file. task: whose puzzles may be among the lines."""
    shown = Shown()
    while trajectories := list(islice(stream, CHUNK)):
        if not progress.is_main_process():
            continue
        if writer:
            for trajectory in trajectories:
                writer.write(trajectory)
        for trajectory in trajectories:
            shown.lines += 1
            _print(trajectory, trace)
            if trajectory.note:
                shown.report.add(LineNote(shown.lines, trajectory.note))
        if task is not None:
            puzzles = [trajectory.source for trajectory in trajectories if trajectory.task == task.name]
            shown.unsolvable += count_unsolvable(task, puzzles)
    return shown


def _print(trajectory: Trajectory, trace: bool) -> None:
    if not trace:
        print(trajectory.text)
        return
    print(f"source  {trajectory.source}")
    for line in trace_lines(trajectory):
        print(line)
    print(f"result  {trajectory.text}\n", flush=True)


def fill_lines(
    verb: str,
    lines: tuple[Iterator[str], str],
    read: list[Path],
    model: str,
    config: DecodingConfig,
    length: int | None,
    trace: bool,
    json: Path | None,
    device: str,
    strict: bool,
) -> None:
    """What `infill` and `generate` do. lines: see `open_input`; read: the files they come from."""
    texts, name = lines
    check_apart({"--json": json}, read)
    with open_output(json) as writer:
        place = resolve_device(device)
        join_processes(place)
        filler = load_filler(model, place)
        with progress.bar("filling", unit="texts") as bar:
            fill, task = partial(filler.stream, length=length), None
            if length is None and filler.model.path and task_name(filler.model.path):
                from anyorder.evaluation.evaluate_puzzles import stream_puzzles, task_of

                task = task_of(filler)
                fill = partial(stream_puzzles, filler, task)
            stream = fill(texts, config=config, on_progress=bar.advance, source_name=name, strict=strict)
            shown = show(stream, writer, trace, task)
    print_note(verb, shown.report.summary("filled") if shown.lines else f"{name} is empty: nothing to fill")
    if shown.unsolvable:
        puzzles = "1 puzzle is" if shown.unsolvable == 1 else f"{shown.unsolvable:,} puzzles are"
        print_note(verb, f"{puzzles} unsolvable")

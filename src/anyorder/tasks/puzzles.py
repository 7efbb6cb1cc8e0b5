"""Puzzles from lines of text. A line that is not a puzzle is skipped with a note and never stops the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyorder.data.lines import LineNote, Problem, refuse
from anyorder.errors import InputError
from anyorder.tasks.base import EMPTY, PuzzleTask


@dataclass(frozen=True)
class PuzzleSet:
    """The puzzles of a file that can be solved."""

    puzzles: np.ndarray
    """(N, cells) int64, see `Examples`."""
    solutions: np.ndarray | None
    """(N, cells) int64, if they were given."""
    lines: list[int]
    """(N,) line numbers, from 1."""
    notes: list[LineNote]
    """The lines that were skipped, and why."""

    def __len__(self) -> int:
        return len(self.puzzles)


def read_puzzles(
    task: PuzzleTask,
    lines: Sequence[str],
    solutions: Sequence[str] | None = None,
    names: Sequence[str] = ("puzzles", "solutions"),
    strict: bool = False,
) -> PuzzleSet:
    """Read one puzzle per line, and solutions.

    Args:
        task: The task that they belong to.
        lines: One puzzle each.
        solutions: One solution each; without them, any answer that breaks no rule is right.
        names: What messages call the two, such as file names.
        strict: Whether to raise an `InputError` instead of skipping a line.
    """
    if solutions is not None and len(solutions) != len(lines):
        raise InputError(f"{names[0]} has {len(lines):,} lines but {names[1]} has {len(solutions):,}")
    problems: dict[int, Problem] = {}
    puzzles = _read_puzzles(task, lines, problems)
    answers = {} if solutions is None else _read_solutions(task, solutions, puzzles, problems)
    if strict:
        for i in sorted(problems):
            refuse([problems[i]], i + 1, {"source": names[0], "reference": names[-1]})
    kept = [i for i in puzzles if i not in problems]
    if not kept:
        raise InputError(f"{names[0]}: no line is a puzzle of {task.name} ({task.cells} characters)")
    return PuzzleSet(
        np.stack([puzzles[i] for i in kept]),
        None if solutions is None else np.stack([answers[i] for i in kept]),
        [i + 1 for i in kept],
        [LineNote(i + 1, problems[i].note, scored=False) for i in sorted(problems)],
    )


def count_unsolvable(task: PuzzleTask, lines: Sequence[str]) -> int:
    """How many of these puzzles cannot be solved."""
    puzzles = np.array([task.read(line) for line in lines], np.int64).reshape(-1, task.cells)
    return sum(map(bool, task.problems(puzzles)))


def _read_puzzles(task: PuzzleTask, lines: Sequence[str], problems: dict[int, Problem]) -> dict[int, np.ndarray]:
    """The puzzles that can be solved, by index; what is wrong with the others goes into `problems`."""
    read: dict[int, np.ndarray] = {}
    for i, line in enumerate(lines):
        try:
            read[i] = task.read(line)
        except InputError as error:
            problems[i] = Problem("source", f"unreadable puzzle ({error})", str(error))
    for i, why in zip(read, task.problems(np.array([*read.values()], np.int64).reshape(-1, task.cells)), strict=True):
        if why:
            problems[i] = Problem("source", f"unsolvable puzzle ({why})", f"the puzzle has {why}")
    return {i: puzzle for i, puzzle in read.items() if i not in problems}


def _read_solutions(
    task: PuzzleTask, lines: Sequence[str], puzzles: dict[int, np.ndarray], problems: dict[int, Problem]
) -> dict[int, np.ndarray]:
    """The solutions of these puzzles, by index; what is wrong with one goes into `problems`."""
    read: dict[int, np.ndarray] = {}
    for i, puzzle in puzzles.items():
        try:
            read[i] = task.read(lines[i])
        except InputError as error:
            problems[i] = Problem("reference", f"unreadable solution ({error})", str(error))
            continue
        if (read[i] == EMPTY).any():
            problems[i] = Problem("reference", "unreadable solution (has empty cells)", "the solution has empty cells")
        elif ((puzzle != EMPTY) & (puzzle != read[i])).any():
            problems[i] = Problem("reference", "wrong solution (changes the puzzle)", "the solution changes the puzzle")
    return read

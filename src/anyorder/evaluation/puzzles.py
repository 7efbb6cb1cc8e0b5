"""Puzzles: their metrics, and which trajectories solve them. Needs no model."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from anyorder.decoding.trajectory import INFILL, Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.metrics import Counts, Interval, Metric, Share, Systems, wilson_interval
from anyorder.tasks import TASKS, PuzzleTask, make_puzzle
from anyorder.tasks.puzzles import EMPTY, PuzzleLines


class Solved(Share):
    """Puzzles solved entirely, with Wilson intervals."""

    name, heading, unit = "accuracy", "solved %", "puzzle"

    def __init__(self, task: PuzzleTask, puzzles: np.ndarray, solutions: np.ndarray | None = None):
        self.task, self.puzzles, self.solutions = task, puzzles, solutions

    def counts(self, trajectories: Sequence[Trajectory]) -> Counts:
        answers = answers_of(self.task, trajectories)
        right = self.task.is_right(self.puzzles, answers, self.solutions)
        return np.stack([right, np.ones_like(right)], 1).astype(np.int64)

    def intervals(self, counts: Mapping[str, Counts], samples: int) -> dict[str, Interval]:
        return {name: wilson_interval(*map(int, own.sum(0))) for name, own in counts.items()}


class Cells(Solved):
    """Empty cells filled correctly: the mean over the puzzles of each one's share. None if there are no solutions."""

    name, heading = "cells", "cells %"

    def counts(self, trajectories: Sequence[Trajectory]) -> Counts:
        if self.solutions is None:
            return np.zeros((len(trajectories), 2))
        answers = answers_of(self.task, trajectories)
        shares = self.task.score(self.puzzles, answers, self.solutions)
        return np.stack([shares, np.ones_like(shares)], 1)

    def intervals(self, counts: Mapping[str, Counts], samples: int) -> dict[str, Interval]:
        return {}


def puzzle_metrics(task: PuzzleTask, read: PuzzleLines, indices: Sequence[int]) -> list[Metric]:
    """How to score some of the lines, by their indices."""
    chosen = list(indices)
    solutions = None if read.solutions is None else read.solutions[chosen]
    return [Solved(task, read.puzzles[chosen], solutions), Cells(task, read.puzzles[chosen], solutions)]


def puzzle_task(systems: Systems) -> PuzzleTask | None:
    """The puzzle task that the trajectories solve; None if they do something else, or solve several tasks.

    Among them there may be lines that are not puzzles and were filled as text, and trajectories without a task.
    """
    names = {trajectory.task for trajectories in systems.values() for trajectory in trajectories} - {INFILL, ""}
    [name] = names if len(names) == 1 else [""]
    return make_puzzle(name) if name in TASKS and issubclass(TASKS[name], PuzzleTask) else None


def only_puzzles(
    systems: Systems, task: PuzzleTask, references: Sequence[str] | None = None
) -> tuple[Systems, Sequence[str] | None]:
    """The lines that at least one system solves as a puzzle of this task, and their references."""
    rows = zip(*systems.values(), strict=True)
    lines = [i for i, row in enumerate(rows) if any(trajectory.task == task.name for trajectory in row)]
    kept = {name: [trajectories[i] for i in lines] for name, trajectories in systems.items()}
    return kept, None if references is None else [references[i] for i in lines]


def grid_task(systems: Systems) -> PuzzleTask | None:
    """The puzzle task whose grid all trajectories fill; None if they do something else."""
    task = puzzle_task(systems)
    lengths = {len(run.canvas or run.tokens) for runs in systems.values() for run in runs}
    return task if task is not None and lengths == {task.cells} else None


def answers_of(task: PuzzleTask, trajectories: Sequence[Trajectory]) -> np.ndarray:
    """(N, cells) int64: the filled grids; `EMPTY` where a token is not one of the task's symbols."""
    numbers = task.numbers
    answers = np.full((len(trajectories), task.cells), EMPTY, np.int64)
    for row, trajectory in zip(answers, trajectories, strict=True):
        tokens = list(trajectory.canvas or [None] * trajectory.length)
        for position, token in zip(trajectory.positions, trajectory.tokens, strict=True):
            tokens[position] = token
        if len(tokens) == task.cells:
            row[:] = [numbers.get(token or "", EMPTY) for token in tokens]
    return answers


def solved_puzzles(
    task: PuzzleTask, trajectories: Sequence[Trajectory], solutions: np.ndarray | None = None
) -> np.ndarray:
    """(N,) bool: which trajectories solve their puzzle, by the rules or by the (N, cells) solutions.

    The clues come from the canvas, or else from the source. A trajectory with neither is not solved.
    """
    puzzles = np.full((len(trajectories), task.cells), EMPTY, np.int64)
    known = np.zeros(len(trajectories), bool)
    for i, trajectory in enumerate(trajectories):
        clues = _clues(task, trajectory)
        if clues is not None:
            puzzles[i], known[i] = clues, True
    return known & task.is_right(puzzles, answers_of(task, trajectories), solutions)


def _clues(task: PuzzleTask, trajectory: Trajectory) -> np.ndarray | None:
    """(cells,) int64: the puzzle that a trajectory fills in; None if it has none."""
    if trajectory.canvas is not None and len(trajectory.canvas) == task.cells:
        numbers = task.numbers
        return np.array([numbers.get(token or "", EMPTY) for token in trajectory.canvas])
    with suppress(InputError):
        return task.read(trajectory.source)
    return None

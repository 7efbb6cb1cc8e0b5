"""Score systems on puzzles: an answer is right or wrong. Never decodes and knows no model."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyorder.data.lines import LineNote
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.evaluate import check_against, check_test, with_test
from anyorder.evaluation.significance import SAMPLES, Test, compare_if_enough, holm
from anyorder.evaluation.systems import common_order, common_setting, common_signature
from anyorder.tasks import PuzzleTask
from anyorder.tasks.base import EMPTY
from anyorder.tasks.puzzles import PuzzleSet

Z = 1.959964
"""The normal distribution's quantile for 95%."""
DIGITS = 4


@dataclass(frozen=True)
class AccuracyDifference:
    """A system's accuracy less a baseline's, with a 95% interval (percentiles of paired bootstrap samples)."""

    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class AccuracyScore:
    """One system."""

    system: str
    order: str
    puzzles: int
    accuracy: float
    """Puzzles that are entirely right, in percent."""
    accuracy_interval: tuple[float, float]
    """Of 95% (Wilson), in percent."""
    cells: float | None
    """Cells that are right, in percent; None where no solutions are given."""
    forwards: float
    """Mean forward passes of a puzzle."""
    p_values: dict[str, float] = field(default_factory=dict)
    """Two-sided, against each baseline, by its name; not against itself. Empty if there are too few puzzles."""
    p_values_holm: dict[str, float] = field(default_factory=dict)
    """The same after Holm's correction for comparing with several baselines."""
    differences: dict[str, AccuracyDifference] = field(default_factory=dict)
    """From each baseline, by its name."""
    schedule: str = ""
    """How many cells a step filled, by name; empty if nobody recorded it."""
    revision: str = ""
    """Which cells were masked again, by name; empty if nobody recorded it."""
    seconds: float | None = None
    """Time spent decoding; None if the trajectories were given."""


@dataclass(frozen=True)
class AccuracyEvaluation:
    """A table of scores, and the settings behind them."""

    signature: str
    task: str
    rows: list[AccuracyScore]
    notes: list[str] = field(default_factory=list)
    """What a reader of the table should know, one sentence each."""
    lines: list[LineNote] = field(default_factory=list)
    """The lines that were left out."""

    def as_json(self) -> dict[str, Any]:
        """Everything but the time it took: the same evaluation gives the same record."""
        record = asdict(self)
        for row in record["rows"]:
            del row["seconds"]
        return record

    def timings(self) -> dict[str, Any]:
        """The time that decoding took, row by row."""
        rows = [{name: getattr(row, name) for name in ("system", "puzzles", "seconds")} for row in self.rows]
        return {"signature": self.signature, "task": self.task, "rows": rows}


def score_puzzles(
    systems: Mapping[str, Sequence[Trajectory]],
    task: PuzzleTask,
    puzzles: PuzzleSet,
    against: Sequence[str] = (),
    test: Test = "randomization",
    samples: int = SAMPLES,
) -> AccuracyEvaluation:
    """Score systems that solved the same puzzles.

    Args:
        systems: Trajectories of all puzzles by the name of their system.
        task: What an answer must hold.
        puzzles: What was asked, and the solutions where they are known.
        against: Names of the systems that p-values compare with; the first system if none is named.
        test: See `evaluate`; it resamples which puzzles are solved.
        samples: See `evaluate`.
    """
    baselines = check_against(against, list(systems))
    check_test(test, samples)
    answers = {name: answers_of(task, trajectories) for name, trajectories in systems.items()}
    for name, given in answers.items():
        if len(given) != len(puzzles):
            raise InputError(f"{name} has {len(given):,} answers but there are {len(puzzles):,} puzzles")
    solved = {name: task.is_right(puzzles.puzzles, given, puzzles.solutions) for name, given in answers.items()}
    statistics = {name: np.stack([right, np.ones_like(right)], 1).astype(np.int64) for name, right in solved.items()}
    comparisons, notes = compare_if_enough(statistics, baselines, _percent, test, samples, "puzzle")
    rows = []
    for name, trajectories in systems.items():
        p_values = {baseline: found.p_value for baseline, found in comparisons[name].items()}
        right, count = int(solved[name].sum()), len(puzzles)
        rows.append(
            AccuracyScore(
                system=name,
                order=common_order(trajectories),
                puzzles=count,
                accuracy=round(100 * right / count, DIGITS),
                accuracy_interval=wilson_interval(right, count),
                cells=_right_cells(task, puzzles, answers[name]),
                forwards=round(float(np.mean([one.forwards for one in trajectories])), DIGITS),
                p_values=p_values,
                p_values_holm=holm(p_values),
                differences={
                    baseline: AccuracyDifference(*(round(x, DIGITS) for x in (found.difference, found.low, found.high)))
                    for baseline, found in comparisons[name].items()
                },
                schedule=common_setting(trajectories, "schedule"),
                revision=common_setting(trajectories, "revision"),
            )
        )
    signature = with_test(common_signature(systems), test, samples, baselines)
    return AccuracyEvaluation(str(signature), task.name, rows, notes, list(puzzles.notes))


def answers_of(task: PuzzleTask, trajectories: Sequence[Trajectory]) -> np.ndarray:
    """(N, cells) int64: the filled grids; `EMPTY` where a token is none of the task's symbols."""
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
    """(N,) bool: which of them solve their puzzle, by the rules or by the solutions, (N, cells).

    The clues are those of the canvas, or else of the source. What has neither is not solved.
    """
    puzzles = np.full((len(trajectories), task.cells), EMPTY, np.int64)
    known = np.zeros(len(trajectories), bool)
    for i, trajectory in enumerate(trajectories):
        clues = _clues(task, trajectory)
        if clues is not None:
            puzzles[i], known[i] = clues, True
    return known & task.is_right(puzzles, answers_of(task, trajectories), solutions)


def _clues(task: PuzzleTask, trajectory: Trajectory) -> np.ndarray | None:
    """(cells,) int64: the puzzle that a trajectory fills in; None if it says none."""
    if trajectory.canvas is not None and len(trajectory.canvas) == task.cells:
        return np.array([task.numbers.get(token or "", EMPTY) for token in trajectory.canvas])
    with suppress(InputError):
        return task.read(trajectory.source)
    return None


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """The 95% interval of a share, in percent (Wilson 1927); it stays within 0 and 100.

    >>> wilson_interval(0, 10)
    (0.0, 27.7533)
    """
    share, spread = right / count, Z**2 / count
    middle = share + spread / 2
    half = Z * math.sqrt((share * (1 - share) + spread / 4) / count)
    low, high = (100 * (middle + sign * half) / (1 + spread) for sign in (-1, 1))
    return round(max(low, 0.0), DIGITS), round(min(high, 100.0), DIGITS)


def with_seconds(evaluation: AccuracyEvaluation, seconds: Mapping[str, float]) -> AccuracyEvaluation:
    """The same with the time that each system took."""
    return replace(evaluation, rows=[replace(row, seconds=round(seconds[row.system], 3)) for row in evaluation.rows])


def _percent(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return 100 * sums[..., 0] / sums[..., 1]


def _right_cells(task: PuzzleTask, puzzles: PuzzleSet, answers: np.ndarray) -> float | None:
    if puzzles.solutions is None:
        return None
    return round(100 * float(task.score(puzzles.puzzles, answers, puzzles.solutions).mean()), DIGITS)

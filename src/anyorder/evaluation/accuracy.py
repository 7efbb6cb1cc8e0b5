"""Score systems on puzzles: an answer is right or wrong. Never decodes and needs no model."""

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
    """A system's accuracy minus a baseline's, with a 95% interval (percentiles of paired bootstrap samples)."""

    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class AccuracyScore:
    """The scores of one system."""

    system: str
    order: str
    puzzles: int
    accuracy: float
    """Puzzles solved entirely, in percent."""
    accuracy_interval: tuple[float, float]
    """95% Wilson interval, in percent."""
    cells: float | None
    """Correct cells, in percent; None if no solutions are given."""
    forwards: float
    """Mean number of forward passes per puzzle."""
    p_values: dict[str, float] = field(default_factory=dict)
    """Two-sided p-values against each other baseline, by name. Empty if there are too few puzzles."""
    p_values_holm: dict[str, float] = field(default_factory=dict)
    """The same after Holm's correction for comparing with several baselines."""
    differences: dict[str, AccuracyDifference] = field(default_factory=dict)
    """Differences from each baseline, by name."""
    schedule: str = ""
    """The name of the schedule; empty if not recorded."""
    revision: str = ""
    """The name of the revision; empty if not recorded."""
    seconds: float | None = None
    """Time spent decoding; None for existing trajectories."""


@dataclass(frozen=True)
class AccuracyEvaluation:
    """A table of scores, and the settings behind them."""

    signature: str
    task: str
    rows: list[AccuracyScore]
    notes: list[str] = field(default_factory=list)
    """Notes for readers of the table, one sentence each."""
    lines: list[LineNote] = field(default_factory=list)
    """The lines that were left out."""

    def as_json(self) -> dict[str, Any]:
        """Everything except timings, so that the same evaluation gives the same record."""
        record = asdict(self)
        for row in record["rows"]:
            del row["seconds"]
        return record

    def timings(self) -> dict[str, Any]:
        """The decoding time of every row."""
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
        systems: Trajectories by system name.
        task: The rules of the puzzles.
        puzzles: The puzzles, and their solutions if known.
        against: Names of the baseline systems for the p-values; by default the first system.
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
    """The same evaluation with the time that each system took."""
    return replace(evaluation, rows=[replace(row, seconds=round(seconds[row.system], 3)) for row in evaluation.rows])


def _percent(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return 100 * sums[..., 0] / sums[..., 1]


def _right_cells(task: PuzzleTask, puzzles: PuzzleSet, answers: np.ndarray) -> float | None:
    if puzzles.solutions is None:
        return None
    return round(100 * float(task.score(puzzles.puzzles, answers, puzzles.solutions).mean()), DIGITS)

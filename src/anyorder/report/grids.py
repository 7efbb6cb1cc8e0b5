"""Puzzles in the report: what their grid looks like, which answers are right, and when each cell is filled."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.puzzles import solved_puzzles
from anyorder.evaluation.systems import puzzle_task
from anyorder.tasks import PuzzleTask
from anyorder.tasks.puzzles import EMPTY


def pack_grid(
    systems: Mapping[str, Sequence[Trajectory]], references: Sequence[str] | None = None
) -> dict[str, Any] | None:
    """What the page needs to draw grids; None if the trajectories do not all fill grids of one puzzle task.

    If the references are solutions, they decide which answers are right; otherwise the rules do. The lists have one
    entry for each system, in the systems' order.
    """
    task = grid_task(systems)
    if task is None:
        return None
    solutions = _solutions(task, references)
    return {
        "columns": task.columns,
        "rows": task.rows,
        "box": task.box,
        "solved": [solved_puzzles(task, runs, solutions).tolist() for runs in systems.values()],
        "has_solutions": solutions is not None,
        "mean_steps": [mean_steps(runs, task.cells) for runs in systems.values()],
    }


def grid_task(systems: Mapping[str, Sequence[Trajectory]]) -> PuzzleTask | None:
    """The puzzle task whose grid all trajectories fill; None if they do something else."""
    task = puzzle_task(systems)
    lengths = {len(run.canvas or run.tokens) for runs in systems.values() for run in runs}
    return task if task is not None and lengths == {task.cells} else None


def mean_steps(runs: Sequence[Trajectory], cells: int) -> list[float | None]:
    """The mean step at which each cell is filled, over the puzzles where it is empty; None where it never is."""
    total, count = np.zeros(cells), np.zeros(cells, np.int64)
    for run in runs:
        total[run.positions] += run.steps
        count[run.positions] += 1
    return [float(total[i] / count[i]) if count[i] else None for i in range(cells)]


def _solutions(task: PuzzleTask, references: Sequence[str] | None) -> np.ndarray | None:
    """(N, cells) of references that are all complete grids."""
    try:
        grids = np.array([task.read(line) for line in references or ()]).reshape(-1, task.cells)
    except InputError:
        return None
    return grids if len(grids) and (grids != EMPTY).all() else None

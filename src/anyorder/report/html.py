"""The report: one HTML file that shows how sentences were filled, with its data inside. It loads nothing.

It packs trajectories and an analysis into plain JSON and must not depend on models. `anyorder.web` builds the page.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from anyorder.analysis.results import Analysis
from anyorder.decoding.trajectory import Trajectory, Write, check_systems
from anyorder.errors import InputError
from anyorder.evaluation.metrics import Systems
from anyorder.evaluation.puzzles import grid_task, only_puzzles, puzzle_task, solved_puzzles
from anyorder.files import atomic_file
from anyorder.tasks.puzzles import EMPTY
from anyorder.web.bundle import page

FORMAT = 1


def write_html(
    file: Path,
    systems: Systems,
    analysis: Analysis | Mapping[str, Any] | None = None,
    references: Sequence[str] | None = None,
    title: str = "Generation orders",
) -> None:
    """Write what `report_page` returns to a file that opens from disk."""
    with atomic_file(file) as stream:
        stream.write(report_page(systems, analysis, references, title))


def report_page(
    systems: Systems,
    analysis: Analysis | Mapping[str, Any] | None = None,
    references: Sequence[str] | None = None,
    title: str = "Generation orders",
) -> str:
    """A report on the same sentences in several orders, as the text of one file.

    Args:
        systems: The trajectories of each system, by its name; all systems have the same sentences.
        analysis: What `anyorder.analyze` returned, or its JSON, for the corpus view.
        references: A reference translation of each sentence, or the solution of each puzzle.
        title: The title of the page.
    """
    return page(title, entry="report.js", data=pack(systems, analysis, references))


def pack(
    systems: Systems,
    analysis: Analysis | Mapping[str, Any] | None = None,
    references: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The data that the page reads; `web/page/data.js` unpacks it.

    A sentence is `[source, runs]`, a run `[text, tokens, steps, logprobs]`, with the canvas after that if a part of it
    was given: a token, or null where one was filled in. If positions were revised, all writes are at the end (after
    null if there is no canvas), each `[position, step, token, logprob]`. Tokens are indices into `vocabulary`, and
    log-probabilities are in hundredths, without their sign. Puzzles have a `grid`; other lines among them
    are left out, as in `analyze`. The runs of one sentence are stored together because they are similar and so
    compress well.
    """
    check_systems(systems, references)
    task = puzzle_task(systems)
    if task is not None:
        systems, references = only_puzzles(systems, task, references)
    rows = list(zip(*systems.values(), strict=True))
    counts = Counter(token for row in rows for run in row for token in _spelled(run))
    vocabulary = [token for token, _ in counts.most_common()]  # the most frequent tokens get the shortest numbers
    index = {token: i for i, token in enumerate(vocabulary)}
    return {
        "format": FORMAT,
        "systems": [
            {"name": name, "order": runs[0].order if runs else "", "signature": runs[0].signature if runs else ""}
            for name, runs in systems.items()
        ],
        "vocabulary": vocabulary,
        "sentences": [
            [next((run.source for run in row if run.source), ""), [_pack_run(run, index) for run in row]]
            for row in rows
        ],
        "references": None if references is None else list(references),
        "grid": _round_floats(pack_grid(systems, references)),
        "analysis": _round_floats(analysis.as_json() if isinstance(analysis, Analysis) else analysis),
    }


def _pack_run(run: Trajectory, index: Mapping[str, int]) -> list[Any]:
    packed: list[Any] = [
        run.text,
        [index[token] for token in run.tokens],
        run.steps,
        [_hundredths(p) for p in run.logprobs],
    ]
    writes = _revising_writes(run)
    if run.canvas is not None or writes:
        packed.append(run.canvas and [None if token is None else index[token] for token in run.canvas])
    if writes:
        packed.append([[one.position, one.step, index[one.token], _hundredths(one.logprob)] for one in writes])
    return packed


def _revising_writes(run: Trajectory) -> list[Write]:
    """All writes by step, if positions were written again.

    In a file from elsewhere, they may not result in the tokens. Then the list is empty.
    """
    if len(run.writes or ()) <= run.length:
        return []
    writes = sorted(run.writes or (), key=lambda write: write.step)
    last = {write.position: (write.token, write.step) for write in writes}
    final = dict(zip(run.positions, zip(run.tokens, run.steps, strict=True), strict=True))
    return writes if last == final else []


def _spelled(run: Trajectory) -> Iterator[str]:
    """The tokens that a run needs numbers for: its own, those that were given, and those that it wrote and replaced."""
    yield from run.tokens
    yield from (token for token in run.canvas or () if token is not None)
    yield from (write.token for write in _revising_writes(run))


def pack_grid(systems: Systems, references: Sequence[str] | None = None) -> dict[str, Any] | None:
    """What the page needs to draw grids; None if the trajectories do not all fill grids of one puzzle task.

    If the references are solutions, they decide which answers are right; otherwise the rules do. The lists have one
    entry for each system, in the systems' order.
    """
    task = grid_task(systems)
    if task is None:
        return None
    solutions = None
    with suppress(InputError):
        grids = np.array([task.read(line) for line in references or ()]).reshape(-1, task.cells)
        solutions = grids if len(grids) and (grids != EMPTY).all() else None
    return {
        "columns": task.columns,
        "rows": task.rows,
        "box": task.box,
        "solved": [solved_puzzles(task, runs, solutions).tolist() for runs in systems.values()],
        "has_solutions": solutions is not None,
        "mean_steps": [mean_steps(runs, task.cells) for runs in systems.values()],
    }


def mean_steps(runs: Sequence[Trajectory], cells: int) -> list[float | None]:
    """The mean step at which each cell is filled, over the puzzles where it is empty; None where it never is."""
    total, count = np.zeros(cells), np.zeros(cells, np.int64)
    for run in runs:
        total[run.positions] += run.steps
        count[run.positions] += 1
    return [float(total[i] / count[i]) if count[i] else None for i in range(cells)]


def _hundredths(logprob: float) -> int:
    return min(round(-logprob * 100), 9999) if math.isfinite(logprob) else 9999


def _round_floats(value: Any) -> Any:
    """Five digits, more than a screen shows. NaN and infinity become null, because JSON has no such numbers."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _round_floats(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_round_floats(entry) for entry in value]
    return value

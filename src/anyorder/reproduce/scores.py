"""Score the cells of a table: BLEU, its significance and the shape of the orders, with the seeds of a row combined.

A learned row is the mean and the standard deviation over its seeds. Its p-value is the largest of its seeds', each with
Holm's correction for all heuristic orders that it is compared with, and 1 where the seeds disagree on which order is
better: a difference is called significant only if it is significant with every seed. Scores are cached on disk. Knows
nothing about decoding.
"""

import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyorder import __version__, progress
from anyorder.analysis.analyze import analyze
from anyorder.decoding.trajectory import Trajectory
from anyorder.evaluation.evaluate import score_systems
from anyorder.records import read_json
from anyorder.reproduce.jobs import plain_name, write_whole_json
from anyorder.reproduce.plan import PlannedPart
from anyorder.reproduce.tables import BASELINE, Part, Table

SIGNIFICANT = 0.05
ANALYSIS_SAMPLES = 200
Trajectories = dict[str, list[Trajectory]]


@dataclass(frozen=True)
class Compared:
    """The difference between a row and a baseline."""

    baseline: str
    bleu: float
    """The mean difference over the seeds."""
    p_value: float
    """Two-sided; for several seeds, see the module's docstring."""

    @property
    def significant(self) -> bool:
        return self.p_value < SIGNIFICANT


@dataclass(frozen=True)
class RowScore:
    """One row of a table on one part of a test set."""

    row: str
    learned: bool
    bleu: float
    spread: float | None
    """Standard deviation over the seeds; None if there are fewer than two."""
    chrf: float
    compared: dict[str, Compared]
    """Comparisons with the heuristic orders, by name; empty if there are too few sentences."""
    metrics: dict[str, tuple[float, float | None]]
    """Mean and standard deviation over the seeds, by name."""
    seeds: list[dict[str, Any]]
    """The score of each seed, as `evaluate` gives it, with its metrics."""


@dataclass(frozen=True)
class PartScore:
    """All rows on one part of a test set, with one length rule."""

    direction: str
    part: Part
    rule: str
    sentences: int
    signature: str
    rows: list[RowScore]
    notes: list[str] = field(default_factory=list)

    @property
    def best_heuristic(self) -> RowScore:
        """The best order that is neither learned nor another model's."""
        names = {name for row in self.rows for name in row.compared} | {BASELINE}
        return max((row for row in self.rows if row.row in names), key=lambda row: row.bleu)

    @property
    def best_learned(self) -> RowScore | None:
        return max((row for row in self.rows if row.learned), key=lambda row: row.bleu, default=None)


def score_part(results: Path, planned: PlannedPart, table: Table, samples: int) -> PartScore:
    """The scores of all systems on one part of a test set, which must all be decoded.

    Baselines for the p-values are the heuristic rows that the part has. `results` is the folder of all results.
    """
    data, test_set = planned.data, planned.data.test_set
    rows = test_set.within(planned.part.max_length)
    names, metrics = {system.row for system in planned.systems}, table.metrics
    against = [row.name for row in table.rows if not row.kind and row.name in names]
    tagger = "auto" if any(metric.startswith("constituent") for metric in metrics) else "none"

    def scores(systems: Trajectories) -> dict[str, Any]:
        return score_systems(systems, test_set.metrics(rows), data.direction, against, samples=samples).as_json()

    def shapes(systems: Trajectories) -> dict[str, Any]:
        found = analyze(systems, tagger=tagger, samples=ANALYSIS_SAMPLES, null_samples=1).systems
        return {one.name: {name: one.metrics[name].value for name in metrics if name in one.metrics} for one in found}

    scored = _compute_once(results, planned, rows, "bleu", [*against, samples], scores)
    measured = _compute_once(results, planned, rows, "orders", [tagger, *metrics], shapes) if metrics else {}
    by_name = {row["system"]: row for row in scored["rows"]}
    learned = {row.name for row in table.rows if row.kind}
    by_row: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for system in planned.systems:
        of_seed = {"seed": system.seed, "learned": system.row in learned, **by_name[system.name]}
        by_row[system.row].append({**of_seed, "metrics": measured.get(system.name, {})})
    found = [_row_score(name, seeds, metrics) for name, seeds in by_row.items()]
    of_part = (data.direction, planned.part, planned.rule, len(rows))
    return PartScore(*of_part, scored["signature"], found, scored["notes"])


def _compute_once(
    results: Path,
    planned: PlannedPart,
    rows: Sequence[int],
    kind: str,
    settings: Sequence[object],
    compute: Callable[[Trajectories], dict[str, Any]],
) -> dict[str, Any]:
    """What `compute` makes of these sentences. It is kept in a file, named by everything that determines it."""
    data, limit = planned.data, planned.part.max_length or "all"
    checksums = [(system.name, system.job.checksum()) for system in planned.systems]
    decisive = json.dumps([__version__, data.fingerprint, limit, checksums, list(settings)])
    digest = hashlib.sha256(decisive.encode()).hexdigest()[:12]
    folder = results / "scores" / data.direction / f"{data.split}-{limit}" / plain_name(planned.rule)
    file = folder / f"{kind}-{digest}.json"
    if not file.exists():
        found = {system.name: system.job.trajectories() for system in planned.systems}
        with progress.bar(f"scoring {planned.title}"):
            write_whole_json(file, compute({name: [by_row[row] for row in rows] for name, by_row in found.items()}))
    return read_json(file)


def combine_seeds(seeds: Sequence[Mapping[str, Any]], baseline: str) -> Compared | None:
    """Compare all seeds of a row with a baseline; None if they were not compared with it."""
    if any(baseline not in seed["p_values_holm"] for seed in seeds):
        return None
    differences = [seed["differences"][baseline]["bleu"] for seed in seeds]
    agree = all(value > 0 for value in differences) or all(value < 0 for value in differences)
    p_value = max(seed["p_values_holm"][baseline] for seed in seeds) if agree or len(seeds) == 1 else 1.0
    return Compared(baseline, statistics.fmean(differences), p_value)


def _row_score(name: str, seeds: list[dict[str, Any]], metrics: Sequence[str]) -> RowScore:
    bleu = [seed["bleu"] for seed in seeds]
    baselines = seeds[0]["p_values_holm"]
    compared = {baseline: found for baseline in baselines if (found := combine_seeds(seeds, baseline))}
    measured = {}
    for metric in metrics:
        values = [seed["metrics"][metric] for seed in seeds if seed["metrics"].get(metric) is not None]
        if values:
            measured[metric] = statistics.fmean(values), _spread(values)
    chrf = statistics.fmean(seed["chrf"] for seed in seeds)
    return RowScore(name, seeds[0]["learned"], statistics.fmean(bleu), _spread(bleu), chrf, compared, measured, seeds)


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None

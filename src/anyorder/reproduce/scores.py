"""Score the cells of a table: BLEU, its significance and the shape of the orders, with the seeds of a row combined.

A learned row is the mean and the standard deviation over its seeds. Its p-value is the largest of its seeds', each with
Holm's correction for all heuristic orders that it is compared with, and 1 where the seeds disagree on which order is
better: a difference is called significant only if it is significant with every seed. Scores are cached on disk. Knows
nothing about decoding.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyorder import __version__, progress
from anyorder.analysis.analyze import analyze
from anyorder.evaluation.evaluate import evaluate
from anyorder.files.locks import wait_for_lock
from anyorder.files.records import read_json
from anyorder.reproduce.cells import CellFiles, plain_name, write_whole_json
from anyorder.reproduce.evaluation_sets import EvaluationSet
from anyorder.reproduce.sharing import lock_of
from anyorder.reproduce.tables import BASELINE, Part

SIGNIFICANT = 0.05
ANALYSIS_SAMPLES = 200


@dataclass(frozen=True)
class System:
    """One order with one seed, decoded."""

    row: str
    seed: int | None
    """None if the system was not learned for the table."""
    learned: bool
    """Whether it is a learned order."""
    cell: CellFiles

    @property
    def name(self) -> str:
        return self.row if self.seed is None else f"{self.row}, seed {self.seed}"


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


def score_part(
    results: Path,
    data: EvaluationSet,
    part: Part,
    rule: str,
    systems: Sequence[System],
    against: Sequence[str],
    metrics: Sequence[str],
    samples: int,
) -> PartScore:
    """The scores of all systems on one part of a test set.

    Args:
        results: The folder of all results.
        data: The test set.
        part: Which of its sentences.
        rule: The length rule that the systems were decoded with.
        systems: The systems to compare.
        against: The baseline rows for the p-values.
        metrics: Metrics of the orders, as `analyze` calls them.
        samples: Resamples of the significance test.
    """
    rows = data.within(part.max_length)
    scored = _evaluate(results, data, part, rule, rows, systems, against, samples)
    measured = _analyze(results, data, part, rule, rows, systems, metrics)
    by_name = {row["system"]: row for row in scored["rows"]}
    by_row: dict[str, list[dict[str, Any]]] = {}
    for system in systems:
        seed = {
            "seed": system.seed,
            "learned": system.learned,
            **by_name[system.name],
            "metrics": measured.get(system.name, {}),
        }
        by_row.setdefault(system.row, []).append(seed)
    return PartScore(
        data.direction,
        part,
        rule,
        len(rows),
        scored["signature"],
        [_row_score(name, seeds, metrics) for name, seeds in by_row.items()],
        scored["notes"],
    )


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


def _evaluate(
    results: Path,
    data: EvaluationSet,
    part: Part,
    rule: str,
    rows: Sequence[int],
    systems: Sequence[System],
    against: Sequence[str],
    samples: int,
) -> dict[str, Any]:
    """`evaluate`, from disk if it was computed before."""
    file = _cache_file(results, "bleu", data, part, rule, systems, [*against, samples])

    def compute() -> dict[str, Any]:
        trajectories = {system.name: system.cell.select(rows) for system in systems}
        references = [data.references[row] for row in rows]
        with progress.bar(f"scoring {data.direction} {part.text}, {rule}"):
            return evaluate(trajectories, references, data.scorer(), against, samples=samples).as_json()

    return _compute_once(results, file, compute)


def _analyze(
    results: Path,
    data: EvaluationSet,
    part: Part,
    rule: str,
    rows: Sequence[int],
    systems: Sequence[System],
    metrics: Sequence[str],
) -> dict[str, dict[str, float | None]]:
    """The metrics of each system's orders, from disk if they were computed before."""
    if not metrics:
        return {}
    tagger = "auto" if any(metric.startswith("constituent") for metric in metrics) else "none"
    file = _cache_file(results, "orders", data, part, rule, systems, [tagger, *metrics])

    def compute() -> dict[str, Any]:
        trajectories = {system.name: system.cell.select(rows) for system in systems}
        with progress.bar(f"measuring {data.direction} {part.text}, {rule}"):
            found = analyze(trajectories, tagger=tagger, samples=ANALYSIS_SAMPLES, null_samples=1)
        return {
            system.name: {name: _finite(system.metrics[name].value) for name in metrics if name in system.metrics}
            for system in found.systems
        }

    return _compute_once(results, file, compute)


def _compute_once(results: Path, file: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The contents of a file, computed by the first process that needs it. Two tables may need the same file."""
    if not file.exists():
        with wait_for_lock(lock_of(results, file)):
            if not file.exists():
                write_whole_json(file, compute())
    return read_json(file)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _cache_file(
    results: Path,
    kind: str,
    data: EvaluationSet,
    part: Part,
    rule: str,
    systems: Sequence[System],
    settings: Sequence[object],
) -> Path:
    """Named by everything that determines the scores."""
    cells = [(system.name, system.cell.checksum) for system in systems]
    limit = part.max_length or "all"
    decisive = json.dumps([__version__, data.fingerprint, limit, cells, list(settings)])
    digest = hashlib.sha256(decisive.encode()).hexdigest()[:12]
    folder = results / "scores" / data.direction / f"{data.split}-{limit}" / plain_name(rule)
    return folder / f"{kind}-{digest}.json"

"""A table as Markdown, LaTeX and JSON: our scores, the paper's, and the cost. Knows nothing about decoding.

Every part has BLEU, its significance and the shape of the orders, with the seeds of a row combined. A learned row is
the mean and the standard deviation over its seeds. Its p-value is the largest of its seeds', each with Holm's
correction for all heuristic orders that it is compared with, and 1 where the seeds disagree on which order is better: a
difference is called significant only if it is significant with every seed. Scores are cached on disk.
"""

import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from anyorder import __version__, progress
from anyorder.analysis.analyze import analyze
from anyorder.decoding.trajectory import Trajectory
from anyorder.evaluation.evaluate import score_systems
from anyorder.files import atomic_file
from anyorder.records import read_json
from anyorder.report.tables import Cell, Column, TableData, count_text, format_tables, p_value_cell
from anyorder.reproduce.data_folders import SplitSet
from anyorder.reproduce.jobs import Cost, DecodeJob, plain_name, write_whole_json
from anyorder.reproduce.tables import BASELINE, COST, SHARES, SOURCE, Part, Table, direction_title

SIGNIFICANT = 0.05
ANALYSIS_SAMPLES = 200
METRIC_HEADINGS = {
    "kendall left-to-right": "τ left-right",
    "label outer-to-inner": "outer-in",
    "nearly left-to-right share": "nearly left-right",
    "suffix last share": "suffix last",
    "constituent sentence share": "constituent",
}
_NONE = Cell("–")
_VERBS = {"train": "training", "learn": "learning", "decode": "decoding"}


@dataclass(frozen=True)
class PlannedPart:
    """A part of a test set, with one length rule, and the jobs of all that is compared on it."""

    data: SplitSet
    part: Part
    rule: str
    rows: dict[str, dict[int | None, DecodeJob]]
    """By row of the table and by seed, which is None if the row is not learned for the table."""

    @property
    def title(self) -> str:
        return f"{direction_title(self.data.direction)} {self.part.text}, {self.rule}"

    @property
    def systems(self) -> dict[str, DecodeJob]:
        """The jobs by the name of what they decode with."""
        return {system_name(row, seed): job for row, jobs in self.rows.items() for seed, job in jobs.items()}


def system_name(row: str, seed: int | None) -> str:
    return row if seed is None else f"{row}, seed {seed}"


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
    data, test_set, metrics = planned.data, planned.data.test_set, table.metrics
    indices = test_set.within(planned.part.max_length)
    against = [row.name for row in table.rows if not row.kind and row.name in planned.rows]
    learned = {row.name for row in table.rows if row.kind}
    tagger = "auto" if any(metric.startswith("constituent") for metric in metrics) else "none"
    jobs, limit = planned.systems, planned.part.max_length or "all"
    checksums = [(name, job.checksum()) for name, job in jobs.items()]
    folder = results / "scores" / data.direction / f"{data.split}-{limit}" / plain_name(planned.rule)

    def compute_once(kind: str, settings: Sequence[object], compute: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """What `compute` makes of the trajectories. It is kept in a file, named by everything that determines it."""
        decisive = json.dumps([__version__, data.fingerprint, limit, checksums, settings])
        file = folder / f"{kind}-{hashlib.sha256(decisive.encode()).hexdigest()[:12]}.json"
        if not file.exists():
            found = {name: job.trajectories() for name, job in jobs.items()}
            with progress.bar(f"scoring {planned.title}"):
                write_whole_json(file, compute({name: [own[i] for i in indices] for name, own in found.items()}))
        return read_json(file)

    def scores(systems: dict[str, list[Trajectory]]) -> dict[str, Any]:
        return score_systems(systems, test_set.metrics(indices), data.direction, against, samples=samples).as_json()

    def shapes(systems: dict[str, list[Trajectory]]) -> dict[str, Any]:
        found = analyze(systems, tagger=tagger, samples=ANALYSIS_SAMPLES, null_samples=1).systems
        return {one.name: {name: one.metrics[name].value for name in metrics if name in one.metrics} for one in found}

    scored = compute_once("bleu", [*against, samples], scores)
    measured = compute_once("orders", [tagger, *metrics], shapes) if metrics else {}
    by_name = {row["system"]: row for row in scored["rows"]}
    found = []
    for row, by_seed in planned.rows.items():
        seeds = []
        for seed in by_seed:
            name = system_name(row, seed)
            about = {"seed": seed, "learned": row in learned}
            seeds.append({**about, **by_name[name], "metrics": measured.get(name, {})})
        found.append(_row_score(row, seeds, metrics))
    of_part = (data.direction, planned.part, planned.rule, len(indices))
    return PartScore(*of_part, scored["signature"], found, scored["notes"])


def combine_seeds(seeds: Sequence[Mapping[str, Any]], baseline: str) -> Compared:
    """Compare all seeds of a row with a baseline."""
    differences = [seed["differences"][baseline]["bleu"] for seed in seeds]
    agree = all(value > 0 for value in differences) or all(value < 0 for value in differences)
    p_value = max(seed["p_values_holm"][baseline] for seed in seeds) if agree or len(seeds) == 1 else 1.0
    return Compared(baseline, statistics.fmean(differences), p_value)


def _row_score(name: str, seeds: list[dict[str, Any]], metrics: Sequence[str]) -> RowScore:
    compared = {baseline: combine_seeds(seeds, baseline) for baseline in seeds[0]["p_values_holm"]}
    measured = {}
    for metric in metrics:
        values = [seed["metrics"][metric] for seed in seeds if seed["metrics"].get(metric) is not None]
        if values:
            measured[metric] = _mean_and_spread(values)
    bleu, chrf = ([seed[score] for seed in seeds] for score in ("bleu", "chrf"))
    return RowScore(
        name, seeds[0]["learned"], *_mean_and_spread(bleu), statistics.fmean(chrf), compared, measured, seeds
    )


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Report:
    """A table, or what is finished of it."""

    table: Table
    scale: str
    parts: list[PartScore]
    costs: Sequence[Cost]
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""

    @property
    def by_rule(self) -> dict[str, list[PartScore]]:
        """The parts with each length rule."""
        return {part.rule: [one for one in self.parts if one.rule == part.rule] for part in self.parts}

    def tables(self) -> list[TableData]:
        """For each length rule, a summary in the paper's layout, then all numbers by direction."""
        shown = [_summary(self.table, rule, parts) for rule, parts in self.by_rule.items()]
        for rule, parts in self.by_rule.items():
            for direction in dict.fromkeys(part.direction for part in parts):
                own = [part for part in parts if part.direction == direction]
                shown.append(_details(self.table, rule, direction, own))
        return shown

    def footer(self) -> list[str]:
        """What the numbers are, and what they cost."""
        return [
            f"Rows called paper: {SOURCE}, on other data and models: compare the differences, not the levels.",
            "±: standard deviation over the seeds of a learned order. Δ: difference in BLEU, the mean over the seeds. "
            "p: two-sided, paired approximate randomization, Holm's correction for all heuristic orders of the table; "
            "of several seeds the largest, and 1 where they disagree on the sign.",
            *dict.fromkeys(note for part in self.parts for note in part.notes),
            *self.notes,
            f"Time: {cost_text(self.costs)}. The paper: {COST}.",
        ]

    def as_json(self) -> dict[str, Any]:
        parts = [asdict(part) for part in self.parts]
        for part, record in zip(self.parts, parts, strict=True):
            for row in record["rows"]:
                row["paper"] = self.table.paper_bleu(part.direction, part.part, row["row"])
        return {
            "table": self.table.name,
            "title": self.table.title,
            "scale": self.scale,
            "parts": parts,
            "notes": self.notes,
            "verdicts": {rule: _verdict(parts) for rule, parts in self.by_rule.items()},
            "minutes": minutes_by_device(self.costs),
            "paper": {"source": SOURCE, "cost": COST},
        }

    def write(self, out: Path, name: str) -> None:
        """`NAME.md`, `NAME.tex` and `NAME.json`."""
        signatures = [
            f"{part.direction} {part.part.text}, {part.rule}, {count_text(part.sentences, 'sentence')}: "
            f"{part.signature}"
            for part in self.parts
        ]
        lines = [f"{self.table.title}, scale {self.scale}", *self.footer()]
        headings = {
            ".md": "\n\n".join([f"## {lines[0]}", *lines[1:], ""]),
            ".tex": "".join(f"% {one}\n" for one in lines),
        }
        for suffix, heading in headings.items():
            with atomic_file(out / f"{name}{suffix}") as stream:
                stream.write(heading + format_tables(self.tables(), Path(f"{name}{suffix}"), signatures))
        write_whole_json(out / f"{name}.json", self.as_json())


def minutes_by_device(costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
    """Minutes by device and kind of work."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cost in costs:
        seconds[cost.device][cost.kind] += cost.seconds
    return {device: {kind: round(of / 60, 2) for kind, of in kinds.items()} for device, kinds in seconds.items()}


def cost_text(costs: Sequence[Cost]) -> str:
    """Minutes by device, such as `12.2 minutes on CPU (learning 10.1, decoding 2.1)`."""
    parts = []
    for device, kinds in minutes_by_device(costs).items():
        detail = ", ".join(f"{_VERBS[kind]} {minutes:.1f}" for kind, minutes in sorted(kinds.items(), reverse=True))
        parts.append(f"{sum(kinds.values()):.1f} minutes on {device} ({detail})")
    return "; ".join(parts) or "none"


def _summary(table: Table, rule: str, parts: Sequence[PartScore]) -> TableData:
    """The paper's layout: a row for each part, a column for each order, the paper's row below ours."""
    names = _row_names(table, parts)
    lines: list[tuple[str, dict[str, Cell]]] = []
    for part in parts:
        title = f"{direction_title(part.direction)} {part.part.text} ({part.sentences:,})"
        lines.append((title, _bleu_cells(part)))
        if paper := _paper_cells(table, part, names):
            lines.append(("paper", paper))
    columns = [Column(name, [cells.get(name, _NONE) for _, cells in lines]) for name in names]
    return TableData(
        f"BLEU, length {rule}", "set (sentences)", [title for title, _ in lines], {"": columns}, _verdict(parts)
    )


def _details(table: Table, rule: str, direction: str, parts: Sequence[PartScore]) -> TableData:
    """One row for each order, with all of its numbers."""
    names = _row_names(table, parts)

    def column(heading: str, cells: Mapping[str, Cell], detail: str = "") -> list[Column]:
        """Nothing if there are no cells."""
        return [Column(heading, [cells.get(name, _NONE) for name in names], detail)] if cells else []

    groups: dict[str, Sequence[Column]] = {}
    for part in parts:
        columns = column("BLEU", _bleu_cells(part), part.part.text)
        columns += column("paper", _paper_cells(table, part, names))
        columns += column("chrF", {row.row: Cell(f"{row.chrf:.1f}") for row in part.rows})
        for baseline in dict.fromkeys((BASELINE, part.best_heuristic.row)):
            compared = {row.row: row.compared[baseline] for row in part.rows if baseline in row.compared}
            columns += column("Δ", {row: Cell(f"{one.bleu:+.2f}") for row, one in compared.items()}, baseline)
            columns += column("p", {row: p_value_cell(one.p_value) for row, one in compared.items()})
        for metric in table.metrics:
            measured = {row.row: _cell(*row.metrics[metric]) for row in part.rows if metric in row.metrics}
            columns += column(METRIC_HEADINGS.get(metric, metric), measured)
            shares = {name: SHARES.get((direction, name, metric)) for name in names if measured}
            columns += column(
                "paper", {name: Cell(f"{share:g}") for name, share in shares.items() if share is not None}
            )
        groups[part.part.text] = columns
    sizes = "; ".join(f"{part.part.text}: {count_text(part.sentences, 'sentence')}" for part in parts)
    return TableData(f"{direction_title(direction)}, length {rule} ({sizes})", "order", names, groups)


def _row_names(table: Table, parts: Sequence[PartScore]) -> list[str]:
    """The rows of any part, in the order of the table; then those of other models."""
    place = {row.name: i for i, row in enumerate(table.rows)}
    found = dict.fromkeys(row.row for part in parts for row in part.rows)
    return sorted(found, key=lambda name: place.get(name, len(place)))


def _bleu_cells(part: PartScore) -> dict[str, Cell]:
    """BLEU by row; the best is marked."""
    best = f"{max(row.bleu for row in part.rows):.2f}"
    cells = {row.row: _cell(row.bleu, row.spread) for row in part.rows}
    return {row: replace(cell, best=cell.text == best) for row, cell in cells.items()}


def _paper_cells(table: Table, part: PartScore, names: Sequence[str]) -> dict[str, Cell]:
    """The paper's BLEU by row, where it has one."""
    found = {name: table.paper_bleu(part.direction, part.part, name) for name in names}
    return {name: Cell(f"{value:.2f}") for name, value in found.items() if value is not None}


def _cell(value: float, spread: float | None) -> Cell:
    return Cell(f"{value:.2f}", "" if spread is None else f"{spread:.2f}")


def _verdict(parts: Sequence[PartScore]) -> list[str]:
    judged = [(part, part.best_learned) for part in parts]
    tested = [
        (row.compared[part.best_heuristic.row], row.compared[BASELINE])
        for part, row in judged
        if row is not None and row.compared
    ]
    if not tested:
        return []
    held = sum(rival.bleu >= 0 or not rival.significant for rival, _ in tested)
    above = sum(one.bleu > 0 and one.significant for _, one in tested)
    return [
        "The best learned order is the best order or not significantly below the best heuristic one in "
        f"{held} of {len(tested)} lines; it is significantly above {BASELINE} in {above} of {len(tested)}."
    ]

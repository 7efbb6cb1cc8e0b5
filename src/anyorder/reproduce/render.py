"""A table as Markdown, LaTeX and JSON: our numbers, the paper's, and the cost. Computes no scores."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from anyorder.files import atomic_file
from anyorder.report.tables import Cell, Column, TableData, count_text, format_tables, p_value_cell
from anyorder.reproduce.jobs import Cost, write_whole_json
from anyorder.reproduce.paper import COST, SHARES, SOURCE
from anyorder.reproduce.scores import PartScore
from anyorder.reproduce.tables import BASELINE, Table, direction_title

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
class Report:
    """A table, or what is finished of it."""

    table: Table
    scale: str
    parts: list[PartScore]
    costs: Sequence[Cost]
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""

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

    @property
    def by_rule(self) -> dict[str, list[PartScore]]:
        """The parts with each length rule."""
        found = defaultdict(list)
        for part in self.parts:
            found[part.rule].append(part)
        return found

    def write(self, out: Path, name: str) -> None:
        """`NAME.md`, `NAME.tex` and `NAME.json`."""
        tables = self.tables()
        signatures = []
        for part in self.parts:
            counted = f"{part.direction} {part.part.text}, {part.rule}, {count_text(part.sentences, 'sentence')}"
            signatures.append(f"{counted}: {part.signature}")
        title, footer = f"{self.table.title}, scale {self.scale}", self.footer()
        headings = {
            ".md": "\n\n".join([f"## {title}", *footer, ""]),
            ".tex": "".join(f"% {line}\n" for line in [title, *footer]),
        }
        for suffix, heading in headings.items():
            with atomic_file(out / f"{name}{suffix}") as stream:
                stream.write(heading + format_tables(tables, Path(f"{name}{suffix}"), signatures))
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
    rows = _row_names(table, parts)
    names: list[str] = []
    lines: list[list[Cell]] = []
    for part in parts:
        names.append(f"{direction_title(part.direction)} {part.part.text} ({part.sentences:,})")
        lines.append(_bleu_cells(part, rows))
        paper = [table.paper_bleu(part.direction, part.part, row) for row in rows]
        if any(value is not None for value in paper):
            names.append("paper")
            lines.append([_cell(value) for value in paper])
    columns = [Column(row, cells) for row, *cells in zip(rows, *lines, strict=True)]
    return TableData(f"BLEU, length {rule}", "set (sentences)", names, {"": columns}, _verdict(parts))


def _details(table: Table, rule: str, direction: str, parts: Sequence[PartScore]) -> TableData:
    """One row for each order, with all of its numbers."""
    names = _row_names(table, parts)
    groups: dict[str, Sequence[Column]] = {}
    for part in parts:
        scores = {row.row: row for row in part.rows}
        rows = [scores.get(name) for name in names]
        columns = [Column("BLEU", _bleu_cells(part, names), part.part.text)]
        columns += _paper_column([table.paper_bleu(direction, part.part, name) for name in names])
        columns.append(Column("chrF", [_cell(row.chrf if row else None, form=".1f") for row in rows]))
        for baseline in dict.fromkeys((BASELINE, part.best_heuristic.row)):
            compared = [row.compared.get(baseline) if row else None for row in rows]
            if any(compared):
                changes = [_cell(one.bleu if one else None, form="+.2f") for one in compared]
                columns.append(Column("Δ", changes, baseline))
                columns.append(Column("p", [p_value_cell(one.p_value if one else None) for one in compared]))
        for metric in table.metrics:
            measured = [row.metrics.get(metric) if row else None for row in rows]
            if any(measured):
                heading = METRIC_HEADINGS.get(metric, metric)
                columns.append(Column(heading, [_cell(*one) if one else _NONE for one in measured]))
                columns += _paper_column([SHARES.get((direction, name, metric)) for name in names], "g")
        groups[part.part.text] = columns
    sizes = "; ".join(f"{part.part.text}: {count_text(part.sentences, 'sentence')}" for part in parts)
    return TableData(f"{direction_title(direction)}, length {rule} ({sizes})", "order", names, groups)


def _row_names(table: Table, parts: Sequence[PartScore]) -> list[str]:
    """The rows of any part, in the order of the table; then those of other models."""
    place = {row.name: i for i, row in enumerate(table.rows)}
    found = dict.fromkeys(row.row for part in parts for row in part.rows)
    return sorted(found, key=lambda name: place.get(name, len(place)))


def _bleu_cells(part: PartScore, names: Sequence[str]) -> list[Cell]:
    """BLEU of the rows with these names; the best is marked."""
    best = f"{max(row.bleu for row in part.rows):.2f}"
    cells = {row.row: _cell(row.bleu, row.spread) for row in part.rows}
    return [replace(cell, best=cell.text == best) for cell in (cells.get(name, _NONE) for name in names)]


def _paper_column(values: Sequence[float | None], form: str = ".2f") -> list[Column]:
    """The paper's numbers, if it has any."""
    if all(value is None for value in values):
        return []
    return [Column("paper", [_cell(value, form=form) for value in values])]


def _cell(value: float | None, spread: float | None = None, form: str = ".2f") -> Cell:
    if value is None:
        return _NONE
    return Cell(f"{value:{form}}", "" if spread is None else f"{spread:.2f}")


def _verdict(parts: Sequence[PartScore]) -> list[str]:
    judged = [(part, part.best_learned) for part in parts]
    tested = [(part, row) for part, row in judged if row is not None and row.compared]
    if not tested:
        return []
    held = above = 0
    for part, row in tested:
        rival = row.compared[part.best_heuristic.row]
        held += rival.bleu >= 0 or not rival.significant
        left_to_right = row.compared[BASELINE]
        above += left_to_right.bleu > 0 and left_to_right.significant
    total = len(tested)
    return [
        f"The best learned order is the best order or not significantly below the best heuristic one in {held} of "
        f"{total} lines; it is significantly above {BASELINE} in {above} of {total}."
    ]

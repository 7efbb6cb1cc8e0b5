"""What an evaluation and an analysis show, as tables of cells, and such tables for papers: LaTeX or Markdown."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anyorder import progress
from anyorder.analysis import results
from anyorder.analysis.order_metrics import LABELS
from anyorder.analysis.results import Analysis
from anyorder.errors import InputError

if TYPE_CHECKING:  # it imports sacreBLEU, and verbs that score nothing use this module too
    from anyorder.evaluation.evaluate import Evaluation, Score
    from anyorder.evaluation.metrics import Metric
    from anyorder.evaluation.significance import Difference


@dataclass(frozen=True)
class Cell:
    text: str
    spread: str = ""
    """Half the width of its 95% interval."""
    best: bool = False
    """Whether it is the best of its column."""


@dataclass(frozen=True)
class Column:
    heading: str
    cells: Sequence[Cell]
    detail: str = ""
    """What is compared or measured, if the heading alone does not say so."""


@dataclass(frozen=True)
class TableData:
    """Rows with names, and groups of columns."""

    title: str
    head: str
    """The heading of the names."""
    names: Sequence[str]
    groups: Mapping[str, Sequence[Column]]
    """Groups by what their columns have in common, such as a length limit."""
    notes: Sequence[str] = ()
    """Sentences below the table."""
    last_is_random: bool = False
    """Whether the last row is for random orders."""


def evaluation_table(evaluation: "Evaluation", speed: bool = True) -> TableData:
    """One row per system, one group of columns per length limit; decoding speed is left out for papers."""
    rows = {(row.system, row.max_length): row for row in evaluation.rows}
    systems = list(dict.fromkeys(row.system for row in evaluation.rows))
    limits = list(dict.fromkeys(row.max_length for row in evaluation.rows))
    baselines = [system for system in systems if any(system in row.p_values for row in evaluation.rows)]
    main, unit = evaluation.metrics[0], evaluation.metrics[0].unit
    groups: dict[str, Sequence[Column]] = {}
    for limit in limits:
        scores = [rows[system, limit] for system in systems]
        group = [column for metric in evaluation.metrics for column in _metric_columns(metric, scores, metric is main)]
        for baseline in baselines:
            if not any(baseline in score.p_values for score in scores):
                continue  # too few examples for a test
            detail = "" if len(baselines) == 1 else baseline
            differences = [_difference_cell(score.differences.get(baseline), main.digits) for score in scores]
            group.append(Column("Δ", differences, detail))
            group.append(Column("p", [p_value_cell(score.p_values_holm.get(baseline)) for score in scores], detail))
        if len({(score.schedule, score.revision) for score in scores}) > 1:
            group.append(Column("forwards", [Cell(f"{score.forwards:.1f}") for score in scores]))
        if speed and any(score.seconds for score in scores):
            speeds = [Cell(progress.rate(score.count / score.seconds) if score.seconds else "") for score in scores]
            group.append(Column(f"{unit}s/s", speeds))
        if len(limits) > 1 or limit is not None:
            group[0] = replace(group[0], detail=_limit_text(limit))
        groups[_limit_text(limit)] = group
    counts = [count_text(rows[systems[0], limit].count, unit) for limit in limits]
    if limits != [None]:
        counts = [f"{_limit_text(limit)}: {count}" for limit, count in zip(limits, counts, strict=True)]
    compared = f"compared with {', '.join(baselines)}" if baselines else ""
    title = ", ".join(filter(None, [evaluation.task, compared]))
    fresh = all(row.system == row.order for row in evaluation.rows)
    correction = f", with Holm's correction for {len(baselines)} baselines" if len(baselines) > 1 else ""
    note = f"Δ: difference in {main.heading} with half of its 95% interval; p: two-sided p-value{correction}."
    notes = [*([note] if baselines else []), *evaluation.notes]
    return TableData(f"{title} ({'; '.join(counts)})".lstrip(), "order" if fresh else "system", systems, groups, notes)


def _metric_columns(metric: "Metric", scores: "Sequence[Score]", is_main: bool) -> Iterator[Column]:
    """The scores, and their intervals if there are any. Of the main metric, the best score is marked."""
    values = [score.scores[metric.name] for score in scores]
    if not metric.heading or all(value is None for value in values):
        return
    texts = ["–" if value is None else f"{value:.{metric.digits}f}" for value in values]
    best = max((text for text, value in zip(texts, values, strict=True) if value is not None), key=float)
    yield Column(metric.heading, [Cell(text, best=is_main and len(scores) > 1 and text == best) for text in texts])
    intervals = [score.intervals[metric.name] for score in scores if metric.name in score.intervals]
    if intervals:
        yield Column(
            "95% interval", [Cell(f"{low:.{metric.digits}f}–{high:.{metric.digits}f}") for low, high in intervals]
        )


def _difference_cell(difference: "Difference | None", digits: int) -> Cell:
    if difference is None:
        return Cell("–")
    half_width = f"{(difference.high - difference.low) / 2:.{digits}f}"
    return Cell(f"{difference.value:+.{digits}f}", half_width.removeprefix("0") if digits > 1 else half_width)


def p_value_cell(value: float | None) -> Cell:
    if value is None:
        return Cell("–")
    return Cell("<0.001" if value < 0.001 else f"{value:.3f}")


_SHOWN: dict[str, dict[str, str]] = {
    "shape": {
        "kendall left-to-right": "τ left-right",
        "kendall outer-in": "τ outer-in",
        "edge share": "edge",
        "adjacent share": "adjacent",
        "mean jump": "jump",
    },
    "looks like (share of {noun}s)": {
        f"label {label}": heading
        for label, heading in zip(LABELS, ("outer-in", "left-right", "right-left", "inner-out", "other"), strict=True)
    },
    "nearness to left-to-right": {
        "left-to-right share": "exactly",
        "nearly left-to-right share": "nearly",
        "punctuation first share": "end first",
        "local ar-ness@1": "local@1",
        "local ar-ness@2": "local@2",
        "global ar-ness@1": "global@1",
        "global ar-ness@2": "global@2",
    },
    "language": {
        "suffix last share": "suffix last",
        "constituent sentence share": "constituent",
        "constituent share": "of all",
        "function word step": "function",
        "content word step": "content",
        "frequency correlation": "frequency",
    },
    "variety and quality": {
        "order entropy": "entropy",
        "diversity": "diversity",
        "repetition rate": "repetitions",
        "sentence bleu": "sentence BLEU",
        "solved": "solved %",
    },
}
"""Headings by table and metric; the other metrics are in the JSON only. noun: see `Analysis`"""
MAX_TAGS = 6
"""Number of parts of speech to show, the most frequent ones."""


def analysis_tables(analysis: Analysis) -> list[TableData]:
    """One row per system and one for random orders; metrics with half the width of their 95% intervals."""
    shown = {
        title.format(noun=analysis.noun): [
            (heading, [system.metrics.get(name) for system in analysis.systems]) for name, heading in columns.items()
        ]
        for title, columns in _SHOWN.items()
    }
    tags = list(dict.fromkeys(tag for system in analysis.systems for tag in system.by_tag or ()))[:MAX_TAGS]
    shown["relative step by part of speech"] = [
        (tag, [(system.by_tag or {}).get(tag) for system in analysis.systems]) for tag in tags
    ]
    names = [*(system.name for system in analysis.systems), "random"]
    tables: list[TableData] = []
    for group, measured in shown.items():
        columns = [
            Column(heading, [*map(_metric_cell, metrics), Cell(_random_text(metrics))])
            for heading, metrics in measured
            if any(metric is not None for metric in metrics)
        ]
        if columns:
            title = group if tables else f"{count_text(analysis.sentences, analysis.noun)}: {group}"
            tables.append(TableData(title, "system", names, {group: columns}, last_is_random=True))
    return tables


def _metric_cell(metric: results.Metric | None) -> Cell:
    if metric is None or metric.value is None:
        return Cell("–")
    if metric.low is None or metric.high is None:
        return Cell(_number_text(metric.value))
    return Cell(_number_text(metric.value), _number_text((metric.high - metric.low) / 2).removeprefix("0"))


def _random_text(metrics: Sequence[results.Metric | None]) -> str:
    """The value for random orders, averaged over the systems, whose sentences differ slightly."""
    known = [metric.null for metric in metrics if metric is not None and metric.null is not None]
    return _number_text(sum(known) / len(known)) if known else "–"


def _number_text(value: float) -> str:
    digits = 3 if 0.0005 <= abs(value) < 0.0095 else 2 if abs(value) < 9.995 else 1
    return f"{value:.{digits}f}" if round(value, digits) else "0.00"


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _limit_text(limit: int | None) -> str:
    return "all" if limit is None else f"≤{limit}"


def check_table_file(file: Path | None) -> None:
    """Raise an `InputError` unless the file's name says in which format to write it."""
    if file is not None and file.suffix not in _WRITERS:
        raise InputError(f"{file}: expected a name that ends in {' or '.join(_WRITERS)}", "table")


def format_tables(tables: Sequence[TableData], file: Path, notes: Sequence[str] = ()) -> str:
    """The text for a file of that name. Notes, such as a signature, become comments that stay with the numbers."""
    return _WRITERS[file.suffix](tables, notes)


def _rows(
    table: TableData, text: Callable[[str], str], heading: Callable[[Column], str], cell: Callable[[Cell], str]
) -> Iterator[list[str]]:
    """The headings, then a row for each name, in the writing of a format."""
    columns = [column for group in table.groups.values() for column in group]
    yield [text(table.head), *map(heading, columns)]
    for row, name in enumerate(table.names):
        yield [text(name), *(cell(column.cells[row]) for column in columns)]


def _latex(tables: Sequence[TableData], notes: Sequence[str]) -> str:
    parts = []
    for table in tables:
        rows = list(_rows(table, _latex_text, _latex_heading, _latex_cell))
        lines = [f"{' & '.join(cells)} \\\\" for cells in rows]
        lines.insert(1, "\\midrule")
        if table.last_is_random:
            lines.insert(-1, "\\midrule")
        body = "\n".join(["\\toprule", *lines, "\\bottomrule"])
        comments = "".join(f"% {_on_one_line(text)}\n" for text in (table.title, *table.notes))
        alignment = "r" * (len(rows[0]) - 1)
        parts.append(f"{comments}\\begin{{tabular}}{{l{alignment}}}\n{body}\n\\end{{tabular}}\n")
    return "".join(f"% {_on_one_line(note)}\n" for note in notes) + "\n".join(parts)


def _latex_heading(column: Column) -> str:
    return _latex_text(_heading(column)) if column.heading != "p" else f"$p$ {_latex_text(column.detail)}".strip()


def _latex_cell(cell: Cell) -> str:
    text = _latex_text(cell.text)
    text = f"\\textbf{{{text}}}" if cell.best else text
    return f"{text}\\,$\\pm$\\,{cell.spread}" if cell.spread else text


_LATEX = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$",
    "≤": "$\\le$", "→": "$\\to$", "λ": "$\\lambda$", "τ": "$\\tau$", "Δ": "$\\Delta$", "–": "--", "|": "\\textbar{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    **{mark: f"{{{mark}}}" for mark in "[]*"},  # at the start of a row, they would be an argument of the line before
}  # fmt: skip


def _latex_text(text: str) -> str:
    """Escaped for LaTeX; the hyphen of a number becomes a minus sign."""
    if re.fullmatch(r"-[\d.,]+", text):
        return f"$-${text[1:]}"
    return "".join(_LATEX.get(mark, mark) for mark in _on_one_line(text))


def _markdown(tables: Sequence[TableData], notes: Sequence[str]) -> str:
    parts = []
    for table in tables:
        rows = list(_rows(table, _markdown_text, lambda column: _markdown_text(_heading(column)), _markdown_cell))
        rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        below = [line for note in table.notes for line in (_markdown_text(note), "")]
        parts.append("\n".join([_markdown_text(table.title), "", *lines, "", *below]))
    comments = (re.sub(r"-(?=[->])", "- ", _on_one_line(note)) for note in notes)  # "-->" would end one
    return "\n".join(parts) + "".join(f"\n<!-- {comment} -->\n" for comment in comments)


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text} ± {cell.spread}" if cell.spread else text


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]<>])", r"\\\1", _on_one_line(text))


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _heading(column: Column) -> str:
    return f"{column.heading} {column.detail}".strip()


_WRITERS = {".tex": _latex, ".md": _markdown}

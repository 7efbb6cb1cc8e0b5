"""What an evaluation and an analysis show, as sheets of cells: the terminal prints them, papers take them over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anyorder.analysis.analyze import Analysis, Metric
from anyorder.analysis.order_metrics import LABELS
from anyorder.evaluation.evaluate import Evaluation, Score


@dataclass(frozen=True)
class Cell:
    text: str
    spread: str = ""
    """Half of the interval around it."""
    best: bool = False
    """Of its column."""


@dataclass(frozen=True)
class Column:
    heading: str
    cells: Sequence[Cell]
    about: str = ""
    """What is compared or measured, where the heading alone does not tell."""


@dataclass(frozen=True)
class TableData:
    """Groups of columns beside names."""

    title: str
    head: str
    """What the names are."""
    names: Sequence[str]
    groups: Mapping[str, Sequence[Column]]
    """By what they share, such as a length limit."""
    last_is_chance: bool = False
    """The last row is what random orders give."""


def evaluation_sheet(evaluation: Evaluation, speed: bool = True) -> TableData:
    """One row an order, one group of columns a length limit; with the machine's speed, which is nothing for a paper."""
    orders = list(dict.fromkeys(row.order for row in evaluation.rows))
    limits = list(dict.fromkeys(row.max_length for row in evaluation.rows))
    of: dict[tuple[str, int | None], Score] = {(row.order, row.max_length): row for row in evaluation.rows}
    counts = "; ".join(f"{_limit(limit)}: {_number_of(of[orders[0], limit].sentences, 'sentence')}" for limit in limits)
    against = [order for order in orders if any(order in row.p_values for row in evaluation.rows)]
    compared = f", p-values against {', '.join(against)}" if against else ""
    groups: dict[str, Sequence[Column]] = {}
    for limit in limits:
        rows = [of[order, limit] for order in orders]
        bleu = [f"{row.bleu:.2f}" for row in rows]
        best = max(bleu, key=float) if len(rows) > 1 else None
        group = [
            Column("BLEU", [Cell(shown, best=shown == best) for shown in bleu], _limit(limit)),
            Column("chrF", [Cell(f"{row.chrf:.1f}") for row in rows]),
        ]
        for one in against:
            p_values = [Cell(f"{row.p_values[one]:.3f}" if one in row.p_values else "–") for row in rows]
            group.append(Column("p", p_values, "" if len(against) == 1 else one))
        if speed:
            speeds = [Cell(f"{row.sentences / row.seconds:,.0f}" if row.seconds else "") for row in rows]
            group.append(Column("sent/s", speeds))
        groups[_limit(limit)] = group
    return TableData(f"{evaluation.direction}{compared} ({counts})", "order", orders, groups)


_SHOWN: dict[str, dict[str, str]] = {
    "shape": {
        "kendall left-to-right": "τ left-right",
        "kendall outer-in": "τ outer-in",
        "edge share": "edge",
        "adjacent share": "adjacent",
        "mean jump": "jump",
    },
    "looks like (share of sentences)": {
        f"label {label}": head
        for label, head in zip(LABELS, ("outer-in", "left-right", "right-left", "inner-out", "other"), strict=True)
    },
    "nearness to left-to-right": {
        "left-to-right share": "exactly",
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
    },
}
"""What is shown of an analysis; the rest is in the JSON."""


def analysis_sheets(analysis: Analysis) -> list[TableData]:
    """One row a system and one for random orders; figures with half of their 95% intervals."""
    shown = {
        title: [(head, [one.figures.get(name) for one in analysis.systems]) for name, head in columns.items()]
        for title, columns in _SHOWN.items()
    }
    tags = list(dict.fromkeys(tag for one in analysis.systems for tag in one.by_tag or ()))[:6]
    shown["relative step by part of speech"] = [
        (tag, [(one.by_tag or {}).get(tag) for one in analysis.systems]) for tag in tags
    ]
    names = [*(one.name for one in analysis.systems), "random"]
    sheets: list[TableData] = []
    for title, figures in shown.items():
        columns = [
            Column(head, [*map(_figure, own), Cell(_random(own))])
            for head, own in figures
            if any(one is not None for one in own)
        ]
        if columns:
            told = title if sheets else f"{_number_of(analysis.sentences, 'sentence')}: {title}"
            sheets.append(TableData(told, "system", names, {title: columns}, last_is_chance=True))
    return sheets


def _figure(one: Metric | None) -> Cell:
    if one is None or one.value is None:
        return Cell("–")
    if one.low is None or one.high is None:
        return Cell(_number(one.value))
    return Cell(_number(one.value), _number((one.high - one.low) / 2).removeprefix("0"))


def _random(figures: Sequence[Metric | None]) -> str:
    """What random orders give, over all systems: their sentences differ a little."""
    known = [one.null for one in figures if one is not None and one.null is not None]
    return _number(sum(known) / len(known)) if known else "–"


def _number(value: float) -> str:
    digits = 3 if 0.0005 <= abs(value) < 0.0095 else 2 if abs(value) < 9.995 else 1
    return f"{value:.{digits}f}" if round(value, digits) else "0.00"


def _number_of(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _limit(limit: int | None) -> str:
    return "all" if limit is None else f"≤{limit}"

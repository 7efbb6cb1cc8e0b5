"""What the command line prints: tables and sentences filling up."""

import re
from collections.abc import Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anyorder.analysis.shape import LABELS
from anyorder.analysis.summary import Analysis, Figure
from anyorder.data.prepare import REASONS, Account
from anyorder.decoding.trajectory import Trajectory
from anyorder.evaluation.tables import Evaluation, Score

BLANK = "__"


def trace(trajectory: Trajectory) -> list[str]:
    """The sentence after every step, in the paper's notation.

    Neighbours that were filled in consecutive steps stand in [ ] if the pen moved right and in { } if it moved left.
    """
    lines = []
    width = len(str(max(trajectory.steps, default=0)))
    for step in range(1, max(trajectory.steps, default=0) + 1):
        lines.append(f"{step:{width}d}  {_bracketed(trajectory.tokens, trajectory.steps, step)}")
    return lines


def runs(steps: Sequence[int]) -> list[tuple[int, int, int]]:
    """Maximal stretches filled one neighbour after the other, as (first position, last position, +1 or -1).

    >>> runs([1, 2, 6, 5, 4, 3])
    [(0, 1, 1), (2, 5, -1)]
    """
    found: list[tuple[int, int, int]] = []
    start = 0
    while start < len(steps) - 1:
        direction = steps[start + 1] - steps[start]
        if abs(direction) != 1:
            start += 1
            continue
        end = start + 1
        while end + 1 < len(steps) and steps[end + 1] - steps[end] == direction:
            end += 1
        found.append((start, end, direction))
        start = end + 1
    return found


def _bracketed(tokens: Sequence[str], steps: Sequence[int], now: int) -> str:
    shown = [token if step <= now else BLANK for token, step in zip(tokens, steps, strict=True)]
    # A position not filled yet must not look like anyone's neighbour in time.
    known = [step if step <= now else -2 * (i + 1) for i, step in enumerate(steps)]
    for first, last, direction in runs(known):
        left, right = "[]" if direction == 1 else "{}"
        shown[first] = left + shown[first]
        shown[last] += right
    return " ".join(shown)


def evaluation_tables(evaluation: Evaluation, width: int) -> list[Table]:
    """One row an order, one group of columns a length limit; as many tables as fit the width."""
    orders = list(dict.fromkeys(row.order for row in evaluation.rows))
    limits = list(dict.fromkeys(row.max_length for row in evaluation.rows))
    of: dict[tuple[str, int | None], Score] = {(row.order, row.max_length): row for row in evaluation.rows}
    counts = "; ".join(f"{_limit(limit)}: {_number_of(of[orders[0], limit].sentences, 'sentence')}" for limit in limits)
    against = [order for order in orders if any(order in row.p_values for row in evaluation.rows)]
    compared = f", p-values against {', '.join(against)}" if against else ""
    groups: dict[str, list[Column]] = {}
    for limit in limits:
        rows = [of[order, limit] for order in orders]
        best = max(row.bleu for row in rows)
        bleu = [f"[bold]{row.bleu:.2f}[/bold]" if row.bleu == best else f"{row.bleu:.2f}" for row in rows]
        group: list[Column] = [(f"BLEU\n{_limit(limit)}", bleu), ("chrF", [f"{row.chrf:.1f}" for row in rows])]
        for one in against:
            p_values = [f"{row.p_values[one]:.3f}" if one in row.p_values else "–" for row in rows]
            group.append(("p" if len(against) == 1 else f"p\n{_broken(one)}", p_values))
        group.append(("sent/s", [f"{row.sentences / row.seconds:,.0f}" if row.seconds else "" for row in rows]))
        groups[_limit(limit)] = group
    return _fitting(f"{evaluation.direction}{compared} ({counts})", "order", orders, groups, width)


Column = tuple[str, Sequence[str]]
"""A heading (plain, its lines stay lines) and cells (in rich's markup)."""


def _fitting(
    title: str, head: str, names: Sequence[str], groups: Mapping[str, Sequence[Column]], width: int
) -> list[Table]:
    """Groups of numbers beside names, in as many tables as fit the width: numbers are never cut, long names are folded.

    A group stays together where it can; a table that goes on is called by its group.
    """
    named = min(max(map(cell_len, (head, *names))), max(12, width // 2))
    parts: list[tuple[str, list[Column]]] = [(title, [])]
    room = width - named - 2
    for called, columns in groups.items():
        needs = [_width(column) + 2 for column in columns]
        for i, (column, need) in enumerate(zip(columns, needs, strict=True)):
            if parts[-1][1] and room < (need if i else sum(needs)):
                parts.append((called, []))
                room = width - named - 2
            parts[-1][1].append(column)
            room -= need
    tables = []
    for called, columns in parts:
        table = Table(
            title=escape(called), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        table.add_column(escape(head), overflow="fold", max_width=named)
        for heading, _ in columns:
            table.add_column(escape(heading), justify="right", no_wrap=True)
        for row, name in enumerate(names):
            table.add_row(escape(name), *(cells[row] for _, cells in columns))
        tables.append(table)
    return tables


def _width(column: Column) -> int:
    heading, cells = column
    return max([*map(cell_len, heading.split("\n")), *(Text.from_markup(cell).cell_len for cell in cells)])


def _broken(name: str) -> str:
    """A name as a heading: a new line after every joint."""
    return re.sub(r"(?<=[-:,])(?=.)", "\n", name)


def _number_of(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _limit(limit: int | None) -> str:
    return "all" if limit is None else f"≤{limit}"


def account_table(account: Account) -> Table:
    """Where every line of the corpora went."""
    reasons = [reason for reason in REASONS if any(counts[reason] for counts in account.lines.values())]
    table = Table(title="lines", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("split", "corpus"):
        table.add_column(name)
    for name in ("read", *reasons):
        table.add_column(name, justify="right")
    for (split, corpus), counts in account.lines.items():
        cells = [f"{sum(counts.values()):,}", *(f"{counts[reason]:,}" if counts[reason] else "" for reason in reasons)]
        table.add_row(split, corpus, *cells)
    for split, count in account.moved.items():
        table.add_row(split, "held out of train", "", f"{count:,}")
    return table


_SHEETS: dict[str, dict[str, str]] = {
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
"""What the terminal shows; the rest is in the JSON."""


def analysis_tables(analysis: Analysis, width: int) -> list[Table]:
    """One row a system and one for random orders, as many tables as fit the width; figures with half of their 95%
    intervals."""
    sheets = {
        title: [(head, [one.figures.get(name) for one in analysis.systems]) for name, head in columns.items()]
        for title, columns in _SHEETS.items()
    }
    tags = list(dict.fromkeys(tag for one in analysis.systems for tag in one.by_tag or ()))[:6]
    sheets["relative step by part of speech"] = [
        (tag, [(one.by_tag or {}).get(tag) for one in analysis.systems]) for tag in tags
    ]
    names = [*(one.name for one in analysis.systems), "random"]
    tables: list[Table] = []
    for title, sheet in sheets.items():
        held = [(head, figures) for head, figures in sheet if any(one is not None for one in figures)]
        if held:
            columns = [(head, [*map(_figure, figures), f"[dim]{_random(figures)}[/dim]"]) for head, figures in held]
            told = title if tables else f"{_number_of(analysis.sentences, 'sentence')}: {title}"
            tables += _fitting(told, "system", names, {title: columns}, width)
    return tables


def _figure(one: Figure | None) -> str:
    if one is None or one.value is None:
        return "–"
    if one.low is None or one.high is None:
        return _number(one.value)
    return f"{_number(one.value)}[dim]±{_number((one.high - one.low) / 2).removeprefix('0')}[/dim]"


def _random(figures: Sequence[Figure | None]) -> str:
    """What random orders give, over all systems: their sentences differ a little."""
    known = [one.null for one in figures if one is not None and one.null is not None]
    return _number(sum(known) / len(known)) if known else "–"


def _number(value: float) -> str:
    digits = 3 if 0.0005 <= abs(value) < 0.0095 else 2 if abs(value) < 9.995 else 1
    return f"{value:.{digits}f}" if round(value, digits) else "0.00"

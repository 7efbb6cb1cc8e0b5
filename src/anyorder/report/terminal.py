"""What the command line prints: tables and sentences filling up."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

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


def evaluation_table(evaluation: Evaluation) -> Table:
    """One row an order, one group of columns a length limit."""
    limits = list(dict.fromkeys(row.max_length for row in evaluation.rows))
    count = {row.max_length: row.sentences for row in evaluation.rows}
    told = "; ".join(f"{_limit(limit)}: {count[limit]:,} sentences" for limit in limits)
    orders = list(dict.fromkeys(row.order for row in evaluation.rows))
    against = [order for order in orders if any(order in row.p_values for row in evaluation.rows)]
    compared = f", p-values against {', '.join(against)}" if against else ""
    title = f"{evaluation.direction}{compared} ({told})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("order", no_wrap=True)
    of: dict[tuple[str, int | None], Score] = {(row.order, row.max_length): row for row in evaluation.rows}
    best = {limit: max(row.bleu for row in evaluation.rows if row.max_length == limit) for limit in limits}
    for limit in limits:
        table.add_column(f"BLEU {_limit(limit)}", justify="right")
        table.add_column("chrF", justify="right")
        for order in against:
            table.add_column("p" if len(against) == 1 else f"p {order}", justify="right", overflow="fold")
        table.add_column("sent/s", justify="right")
    for order in orders:
        cells = [order]
        for limit in limits:
            row = of[order, limit]
            bleu = f"{row.bleu:.2f}"
            cells.append(f"[bold]{bleu}[/bold]" if row.bleu == best[limit] else bleu)
            cells.append(f"{row.chrf:.1f}")
            cells += [f"{row.p_values[one]:.3f}" if one in row.p_values else "–" for one in against]
            cells.append(f"{row.sentences / row.seconds:,.0f}" if row.seconds else "")
        table.add_row(*cells)
    return table


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


def analysis_tables(analysis: Analysis) -> list[Table]:
    """One row a system and one for random orders; figures with half of their 95% intervals."""
    tables: list[Table] = []
    for title, columns in _SHEETS.items():
        held = {name: head for name, head in columns.items() if any(name in one.figures for one in analysis.systems)}
        rows = [(one.name, [one.figures.get(name) for name in held]) for one in analysis.systems]
        tables.append(
            _sheet(title if tables else f"{analysis.sentences:,} sentences: {title}", list(held.values()), rows)
        )
    tags = list(dict.fromkeys(tag for one in analysis.systems for tag in one.by_tag or ()))[:6]
    if tags:
        rows = [(one.name, [(one.by_tag or {}).get(tag) for tag in tags]) for one in analysis.systems]
        tables.append(_sheet("relative step by part of speech", tags, rows))
    return tables


def _sheet(title: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Figure | None]]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("system", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, figures in rows:
        table.add_row(escape(name), *(_figure(one) for one in figures))
    table.add_row("random", *(_random([figures[i] for _, figures in rows]) for i in range(len(heads))), style="dim")
    return table


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

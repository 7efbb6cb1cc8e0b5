"""What the command line prints: tables and sentences filling up."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

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


def evaluation_table(evaluation: Evaluation, against: str) -> Table:
    """One row an order, one group of columns a length limit."""
    limits = list(dict.fromkeys(row.max_length for row in evaluation.rows))
    count = {row.max_length: row.sentences for row in evaluation.rows}
    told = "; ".join(f"{_limit(limit)}: {count[limit]:,} sentences" for limit in limits)
    title = f"{evaluation.direction}, p-values against {against} ({told})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("order", no_wrap=True)
    of: dict[tuple[str, int | None], Score] = {(row.order, row.max_length): row for row in evaluation.rows}
    best = {limit: max(row.bleu for row in evaluation.rows if row.max_length == limit) for limit in limits}
    for limit in limits:
        table.add_column(f"BLEU {_limit(limit)}", justify="right")
        table.add_column("chrF", justify="right")
        table.add_column("p", justify="right")
        table.add_column("sent/s", justify="right")
    for order in dict.fromkeys(row.order for row in evaluation.rows):
        cells = [order]
        for limit in limits:
            row = of[order, limit]
            bleu = f"{row.bleu:.2f}"
            cells.append(f"[bold]{bleu}[/bold]" if row.bleu == best[limit] else bleu)
            cells.append(f"{row.chrf:.1f}")
            cells.append("–" if row.p_value is None else f"{row.p_value:.3f}")
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

"""What the command line prints: tables and sentences filling up."""

import re
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from anyorder.data.prepare import REASONS, FilterReport
from anyorder.decoding.trajectory import Trajectory
from anyorder.report.table_data import Cell, Column, TableData

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


def tables(sheet: TableData, width: int) -> list[Table]:
    """The sheet in as many tables as fit the width: numbers are never cut, long names are folded.

    A group stays together where it can; a table that goes on is called by its group.
    """
    named = min(max(map(cell_len, (sheet.head, *sheet.names))), max(12, width // 2))
    parts: list[tuple[str, list[Column]]] = [(sheet.title, [])]
    room = width - named - 2
    for called, columns in sheet.groups.items():
        needs = [_width(column) + 2 for column in columns]
        for i, (column, need) in enumerate(zip(columns, needs, strict=True)):
            if parts[-1][1] and room < (need if i else sum(needs)):
                parts.append((called, []))
                room = width - named - 2
            parts[-1][1].append(column)
            room -= need
    made = []
    for called, columns in parts:
        table = Table(
            title=escape(called), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        table.add_column(escape(sheet.head), overflow="fold", max_width=named)
        for column in columns:
            table.add_column(escape(_heading(column)), justify="right", no_wrap=True)
        for row, name in enumerate(sheet.names):
            chance = sheet.last_is_chance and row == len(sheet.names) - 1
            cells = [_marked(column.cells[row]) for column in columns]
            table.add_row(escape(name), *(f"[dim]{cell}[/dim]" if chance else cell for cell in cells))
        made.append(table)
    return made


def _heading(column: Column) -> str:
    """Lines: a new one after every joint of a name."""
    return "\n".join([column.heading, *([re.sub(r"(?<=[-:,])(?=.)", "\n", column.about)] if column.about else [])])


def _marked(cell: Cell) -> str:
    text = f"[bold]{cell.text}[/bold]" if cell.best else cell.text
    return f"{text}[dim]±{cell.spread}[/dim]" if cell.spread else text


def _width(column: Column) -> int:
    return max(
        *map(cell_len, _heading(column).split("\n")),
        *(cell_len(cell.text) + (1 + cell_len(cell.spread) if cell.spread else 0) for cell in column.cells),
    )


def account_table(account: FilterReport) -> Table:
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

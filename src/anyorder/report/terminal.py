"""What the command line prints: tables, and sentences and puzzles as they are filled in. Computes no numbers."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from anyorder.data.prepare import REASONS, FilterReport
from anyorder.decoding.trajectory import Trajectory
from anyorder.report.tables import Cell, Column, TableData

if TYPE_CHECKING:  # it imports torch, which verbs that only print do not need
    from anyorder.tasks import PuzzleTask

BLANK = "__"
EMPTY_CELL = "."
"""A cell that no step has filled."""
WIDTH = 80
"""Width in characters for grids side by side."""
GAP = "   "
"""Between two grids."""


def trace(trajectory: Trajectory) -> list[str]:
    """The sentence after every step, in the paper's notation; a puzzle as a grid, and at the end the step of each cell.

    Neighbors that were filled in consecutive steps are bracketed, by [ ] from left to right and by { } from right to
    left. A step that replaces an earlier token, which a revision masked again, shows both: `old->new`. In a grid,
    [ ] marks what the step wrote, and { } what it wrote over another symbol.
    """
    from anyorder.evaluation.puzzles import grid_task  # imports the scoring of answers, which a sentence does not need

    task = grid_task({"": [trajectory]})
    return _trace_line(trajectory) if task is None else _trace_grid(trajectory, task)


def _trace_line(trajectory: Trajectory) -> list[str]:
    given = trajectory.canvas or [None] * trajectory.length
    tokens = [BLANK if token is None else token for token in given]
    # Given and masked tokens must not look as if they were filled right before or after a neighbor.
    steps = [-2 * (i + 1) for i in range(len(given))]
    written = _written(trajectory)
    last = max(written, default=0)
    lines = []
    for now in range(1, last + 1):
        shown = list(tokens)
        for position, token in written.get(now, ()):
            is_new = steps[position] < 0 or tokens[position] == token
            shown[position] = token if is_new else f"{tokens[position]}->{token}"
            tokens[position], steps[position] = token, now
        lines.append(f"{now:{len(str(last))}d}  {_bracketed(shown, steps)}")
    return lines


def _trace_grid(trajectory: Trajectory, task: "PuzzleTask") -> list[str]:
    given = trajectory.canvas or [None] * task.cells
    cells = [EMPTY_CELL if symbol is None else symbol for symbol in given]
    numbers = [EMPTY_CELL] * task.cells
    written = _written(trajectory)
    grids = []
    for now in range(1, max(written, default=0) + 1):
        shown = [f" {cell} " for cell in cells]
        for position, symbol in written.get(now, ()):
            is_new = cells[position] in (EMPTY_CELL, symbol)
            shown[position] = f"[{symbol}]" if is_new else f"{{{symbol}}}"
            cells[position], numbers[position] = symbol, str(now)
        grids.append([f"step {now}", *_grid(shown, task)])
    width = max(map(len, numbers))
    steps = [f" {number:>{width}} " for number in numbers]
    return [*_side_by_side(grids), "step of each cell", *(line.rstrip() for line in _grid(steps, task)), ""]


def _grid(cells: Sequence[str], task: "PuzzleTask") -> list[str]:
    """The rows of a grid, with lines between its boxes. Cells are equally wide."""
    side = task.box or task.columns
    lines: list[str] = []
    for row in range(task.rows):
        of_row = cells[row * task.columns : (row + 1) * task.columns]
        parts = ["".join(of_row[first : first + side]) for first in range(0, task.columns, side)]
        if task.box and row and row % task.box == 0:
            lines.append("+".join("-" * cell_len(part) for part in parts))
        lines.append("|".join(parts))
    return lines


def _side_by_side(grids: Sequence[Sequence[str]]) -> Iterator[str]:
    """Grids of one size, as many side by side as fit, with a blank line below each row of them."""
    width = max((cell_len(line) for grid in grids for line in grid), default=1)
    at_once = max(1, (WIDTH + len(GAP)) // (width + len(GAP)))
    for first in range(0, len(grids), at_once):
        for lines in zip(*grids[first : first + at_once], strict=True):
            yield GAP.join(line + " " * (width - cell_len(line)) for line in lines).rstrip()
        yield ""


def _written(trajectory: Trajectory) -> dict[int, list[tuple[int, str]]]:
    """What each step wrote, as positions and tokens."""
    written: dict[int, list[tuple[int, str]]] = {}
    if trajectory.writes is None:
        for step, position, token in zip(trajectory.steps, trajectory.positions, trajectory.tokens, strict=True):
            written.setdefault(step, []).append((position, token))
    for write in trajectory.writes or ():
        written.setdefault(write.step, []).append((write.position, write.token))
    return written


def runs(steps: Sequence[int]) -> list[tuple[int, int, int]]:
    """Maximal runs of neighbors filled in consecutive steps, as (first position, last position, +1 or -1).

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


def _bracketed(tokens: Sequence[str], steps: Sequence[int]) -> str:
    shown = list(tokens)
    for first, last, direction in runs(steps):
        left, right = "[]" if direction == 1 else "{}"
        shown[first] = left + shown[first]
        shown[last] += right
    return " ".join(shown)


def render_tables(data: TableData, width: int) -> list[Table]:
    """The data in as many tables as the width requires: numbers are never cut off, long names are folded.

    The columns of a group stay together if they fit; a table that continues another is titled by its group if there are
    several.
    """
    name_width = min(max(map(cell_len, (data.head, *data.names))), max(12, width // 2))
    parts: list[tuple[str, list[Column]]] = [(data.title, [])]
    room = width - name_width - 2
    for group, columns in data.groups.items():
        widths = [_width(column) + 2 for column in columns]
        for i, (column, column_width) in enumerate(zip(columns, widths, strict=True)):
            if parts[-1][1] and room < (column_width if i else sum(widths)):
                parts.append((group if len(data.groups) > 1 else "continued", []))
                room = width - name_width - 2
            parts[-1][1].append(column)
            room -= column_width
    tables = []
    for title, columns in parts:
        table = Table(
            title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        table.add_column(escape(data.head), overflow="fold", max_width=name_width)
        for column in columns:
            table.add_column(escape(_heading(column)), justify="right", no_wrap=True)
        for row, name in enumerate(data.names):
            is_random = data.last_is_random and row == len(data.names) - 1
            cells = [_marked_up(column.cells[row]) for column in columns]
            table.add_row(escape(name), *(f"[dim]{cell}[/dim]" if is_random else cell for cell in cells))
        tables.append(table)
    return tables


def _heading(column: Column) -> str:
    """The heading, broken into lines after each part of a name."""
    detail = [re.sub(r"(?<=[-:,])(?=.)", "\n", column.detail)] if column.detail else []
    return "\n".join([column.heading, *detail])


def _marked_up(cell: Cell) -> str:
    text = f"[bold]{cell.text}[/bold]" if cell.best else cell.text
    return f"{text}[dim]±{cell.spread}[/dim]" if cell.spread else text


def _width(column: Column) -> int:
    return max(
        *map(cell_len, _heading(column).split("\n")),
        *(cell_len(cell.text) + (1 + cell_len(cell.spread) if cell.spread else 0) for cell in column.cells),
    )


def filter_table(report: FilterReport) -> Table:
    """How many lines of each corpus were kept, and why the others were not."""
    reasons = [reason for reason in REASONS if any(counts[reason] for counts in report.lines.values())]
    table = Table(title="lines", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("split", "corpus"):
        table.add_column(name)
    for name in ("read", *reasons):
        table.add_column(name, justify="right")
    for (split, corpus), counts in report.lines.items():
        cells = [f"{sum(counts.values()):,}", *(f"{counts[reason]:,}" if counts[reason] else "" for reason in reasons)]
        table.add_row(split, corpus, *cells)
    for split, count in report.held_out.items():
        table.add_row(split, "held out of train", "", f"{count:,}")
    return table

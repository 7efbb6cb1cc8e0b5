"""Sudoku: 4x4 with the digits 1 to 4, and 9x9 with 1 to 9; how puzzles are made, and solved.

A puzzle is made by emptying cells of a random grid as long as the solution stays unique. The solver takes many grids at
once: bit masks, singles, and branching over a work list, all in numpy. A grid of box size n has n^2 rows, columns and
boxes, each of which holds n^2 different digits. A cell's candidates are the bits of a number: bit d - 1 is set while
the digit d is possible.
"""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from anyorder.tasks.base import register_task
from anyorder.tasks.puzzles import EMPTY, Examples, PuzzleTask

DIGITS = "123456789"
FIRST_BLOCK = 16
"""Cells to empty at once initially; halved whenever that allows a second solution."""
BATCH = 512
"""Boards to process together, or more if a single branching yields more: fewer would waste time."""
MAX_BOARDS = 2000
"""Boards to visit per puzzle before the search for more solutions stops."""


class Sudoku(PuzzleTask):
    """A grid of boxes; every row, column and box holds every digit once."""

    clues: ClassVar[tuple[int, int]]
    """Minimum and maximum number of clues to ask for; the number is drawn uniformly."""

    def generate(self, count: int, seed: int) -> Examples:
        """A puzzle keeps more clues than asked for if no further cell can be emptied."""
        random = np.random.Generator(np.random.Philox(key=seed))
        solutions = random_grids(self.box, count, random)
        wanted = random.integers(self.clues[0], self.clues[1] + 1, count)
        return Examples(dig(self.box, solutions, wanted, random), solutions)

    def augment(self, examples: Examples, random: np.random.Generator) -> Examples:
        """Each is as hard as the one it was made from, and a unique solution stays unique.

        Digits are renamed; rows are permuted within a band and bands among each other, columns likewise; half of the
        grids are transposed.
        """
        box, size, count = self.box, self.box**2, len(examples)
        digits = random.permuted(np.tile(np.arange(1, size + 1), (count, 1)), axis=1)
        names = np.concatenate([np.full((count, 1), EMPTY), digits], axis=1)
        rows, columns = _line_permutation(box, count, random), _line_permutation(box, count, random)
        cell = rows[:, :, None] * size + columns[:, None, :]
        cell = np.where(random.random((count, 1, 1)) < 0.5, cell, cell.swapaxes(1, 2)).reshape(count, -1)
        each = np.arange(count)[:, None]
        return Examples(names[each, examples.puzzles[each, cell]], names[each, examples.solutions[each, cell]])

    def is_solved(self, puzzles: np.ndarray, answers: np.ndarray) -> np.ndarray:
        keeps_clues = ((puzzles == EMPTY) | (puzzles == answers)).all(1)
        return keeps_clues & is_valid(self.box, answers)

    def problems(self, puzzles: np.ndarray) -> list[str]:
        found = solve(self.box, puzzles, limit=1)
        return ["no solution" if missing else "" for missing in found.complete & (found.count == 0)]


@register_task("sudoku-4x4")
class Sudoku4x4(Sudoku):
    """Digits 1 to 4 in boxes of 2 x 2; 4 to 6 clues."""

    box, symbols, columns, rows, clues = 2, DIGITS[:4], 4, 4, (4, 6)


@register_task("sudoku-9x9")
class Sudoku9x9(Sudoku):
    """Digits 1 to 9 in boxes of 3 x 3; 24 to 36 clues."""

    box, symbols, columns, rows, clues = 3, DIGITS, 9, 9, (24, 36)


def random_grids(box: int, count: int, random: np.random.Generator) -> np.ndarray:
    """(count, cells) filled grids."""
    shape = layout(box)
    start = np.full((count, shape.cells), EMPTY, np.int64)
    first_row = shape.units[0]
    start[:, first_row] = random.permuted(np.tile(np.arange(1, shape.size + 1), (count, 1)), axis=1)
    return solve(box, start, limit=1, random=random).first


def dig(box: int, solutions: np.ndarray, wanted: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """(N, cells) puzzles: cells are emptied in random order until `wanted` clues are left. wanted: (N,)"""
    count, cells = solutions.shape
    puzzles = solutions.copy()
    order = random.permuted(np.tile(np.arange(cells), (count, 1)), axis=1)
    rank = np.argsort(order, axis=1)
    """(N, cells) when it is each cell's turn."""
    tried, block = np.zeros(count, np.int64), np.full(count, FIRST_BLOCK)
    while True:
        surplus = (puzzles != EMPTY).sum(1) - wanted
        active = np.flatnonzero((surplus > 0) & (tried < cells))
        if not len(active):
            return puzzles
        size = np.minimum(block[active], surplus[active])
        turn = rank[active] - tried[active, None]
        emptied = np.where((turn >= 0) & (turn < size[:, None]), EMPTY, puzzles[active])
        found = solve(box, emptied, limit=2)
        unique = (found.count == 1) & found.complete
        puzzles[active[unique]] = emptied[unique]
        tried[active] += np.where(unique, size, size == 1)
        block[active] = np.where(unique, block[active], np.maximum(size // 2, 1))


def _line_permutation(box: int, count: int, random: np.random.Generator) -> np.ndarray:
    """(count, size) permutations of rows or columns that keep bands together."""
    bands = random.permuted(np.tile(np.arange(box), (count, 1)), axis=1)
    within = random.permuted(np.tile(np.arange(box), (count, box, 1)), axis=2)
    return (bands[:, :, None] * box + within).reshape(count, box * box)


class Layout:
    """Which cells belong together."""

    def __init__(self, box: int):
        self.size = size = box * box
        """Digits, and cells per unit."""
        self.cells = size * size
        grid = np.arange(self.cells).reshape(size, size)
        boxes = grid.reshape(box, box, box, box).swapaxes(1, 2).reshape(size, size)
        self.units = np.concatenate([grid, grid.T, boxes])
        """(3 * size, size) cells of the rows, columns and boxes."""
        self.units_of = np.argsort(self.units.reshape(3, -1), axis=1) // size + size * np.arange(3)[:, None]
        """(3, cells) the row, column and box of each cell."""


layout = cache(Layout)


@dataclass(frozen=True)
class Solutions:
    """What a search found for each of N puzzles."""

    count: np.ndarray
    """(N,) number of solutions, up to the limit."""
    first: np.ndarray
    """(N, cells) one of them; 0 if there is none."""
    complete: np.ndarray
    """(N,) bool: the search did not end early, so the count is exact up to the limit."""


def solve(box: int, puzzles: np.ndarray, limit: int = 2, random: np.random.Generator | None = None) -> Solutions:
    """Look for up to `limit` solutions of every puzzle, (N, cells), in boxes of 2 or 3 cells along each side.

    random: for trying the digits in random order; in ascending order if not given.
    """
    shape, total = layout(box), len(puzzles)
    count, visited = np.zeros(total, np.int64), np.zeros(total, np.int64)
    first = np.zeros((total, shape.cells), np.int64)
    full = np.uint16((1 << shape.size) - 1)
    candidates = np.where(puzzles.T > 0, 1 << np.maximum(puzzles.T - 1, 0), full).astype(np.uint16)
    work = [(np.ascontiguousarray(candidates), np.arange(total))]
    """Depth-first: the top entry is the last guess."""
    while work:
        board, owner = _pop(work, min(BATCH, 4 * total))
        open_ = (count[owner] < limit) & (visited[owner] < MAX_BOARDS)
        board, owner = board[:, open_], owner[open_]
        if not len(owner):
            continue
        np.add.at(visited, owner, 1)
        board, owner = propagate(shape, board, owner)
        choices = np.bitwise_count(board)
        done = (choices == 1).all(0)
        # Two boards of one puzzle may both be solved now; the last one written is kept.
        # A digit is one more than the number of bits below its own.
        first[owner[done]] = np.bitwise_count(board[:, done] - np.uint16(1)).T.astype(np.int64) + 1
        np.add.at(count, owner[done], 1)
        if not done.all():
            work += _branch(board[:, ~done], choices[:, ~done], owner[~done], random)
    return Solutions(np.minimum(count, limit), first, (visited < MAX_BOARDS) | (count >= limit))


def _pop(work: list[tuple[np.ndarray, np.ndarray]], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Boards from the top of the work list: one entry, or several small ones, with a few boards per puzzle.

    With more boards, the search would turn breadth-first, and if there are few puzzles, they would use up their boards
    on guesses.
    """
    taken = [work.pop()]
    while work and sum(len(owner) for _, owner in taken) + len(work[-1][1]) <= most:
        taken.append(work.pop())
    return np.concatenate([board for board, _ in taken], 1), np.concatenate([owner for _, owner in taken])


def propagate(shape: Layout, board: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fill in singles until nothing changes; boards with a contradiction are dropped.

    board: (cells, N) uint16; owner: (N,) the puzzle of each board, dropped along with it.
    """
    finished, finished_owner = [], []
    while len(owner):
        before = board
        board, alive = _eliminate(shape, board)
        unchanged = (board == before).all(0)
        settled = alive & unchanged
        if settled.any():
            finished.append(board[:, settled])
            finished_owner.append(owner[settled])
        going = alive & ~unchanged
        board, owner = board[:, going], owner[going]
    if not finished:
        return board[:, :0], owner[:0]
    return np.concatenate(finished, 1), np.concatenate(finished_owner)


def _eliminate(shape: Layout, board: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One round of naked and hidden singles: the new candidates, and (N,) bool which boards have no contradiction."""
    full = np.uint16((1 << shape.size) - 1)
    row, column, box = shape.units_of
    # Naked singles: a known digit is removed from the candidates of the other cells in its units.
    single = np.where(board & (board - np.uint16(1)), np.uint16(0), board)
    taken, twice = _once_and_twice(shape, single)
    alive = ~twice.any(0)
    new = board & (~(taken[row] | taken[column] | taken[box]) | single)
    # Hidden singles: a digit that only one cell of a unit can hold belongs there.
    once, twice = _once_and_twice(shape, new)
    alive &= (once == full).all(0)  # every digit has a place
    only = once & ~twice
    needed = new & (only[row] | only[column] | only[box])
    new = np.where(needed, needed, new)
    alive &= (new != 0).all(0) & ~(needed & (needed - np.uint16(1))).any(0)
    return new, alive


def _once_and_twice(shape: Layout, board: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(units, N) the candidates of at least one cell of each unit, and of at least two."""
    once, twice = (np.zeros((len(shape.units), board.shape[1]), np.uint16) for _ in range(2))
    for cells in shape.units.T:
        here = board[cells]
        twice |= once & here
        once |= here
    return once, twice


def _branch(
    board: np.ndarray, choices: np.ndarray, owner: np.ndarray, random: np.random.Generator | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split each board at a cell with the fewest candidates: without one of them, or with only it (on top)."""
    boards = np.arange(len(owner))
    cell = np.where(choices > 1, choices, 99).argmin(0)
    options = board[cell, boards]
    if random is None:
        guess = options & -options.astype(np.int32)
    else:  # a random one of the set bits
        digits = 1 << np.arange(16, dtype=np.int64)
        keys = np.where(options.astype(np.int64) & digits[:, None], random.random((16, len(owner))), -1.0)
        guess = digits[keys.argmax(0)]
    with_guess, without = board.copy(), board.copy()
    with_guess[cell, boards] = guess
    without[cell, boards] = options & ~guess
    return [(without, owner), (with_guess, owner)]


def is_valid(box: int, grids: np.ndarray) -> np.ndarray:
    """(N,) bool: every row, column and box holds every digit. grids: (N, cells) digits."""
    shape = layout(box)
    in_range = (grids.min(axis=1) >= 1) & (grids.max(axis=1) <= shape.size)
    bits = 1 << (np.where(in_range[:, None], grids, 1) - 1)
    seen = np.bitwise_or.reduce(bits[:, shape.units], axis=2)
    return in_range & (seen == (1 << shape.size) - 1).all(axis=1)

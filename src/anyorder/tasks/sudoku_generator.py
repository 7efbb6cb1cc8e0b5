"""Sudoku puzzles with exactly one solution. Deterministic given the seed.

Cells of random grids are emptied as long as the solution stays unique; symmetries turn one puzzle into others.
"""

import numpy as np

from anyorder.tasks.puzzles import EMPTY, Examples
from anyorder.tasks.sudoku_solver import layout, solve

FIRST_BLOCK = 16
"""Cells to empty at once initially; halved whenever that allows a second solution."""


def generate(box: int, count: int, clues: tuple[int, int], random: np.random.Generator) -> Examples:
    """New puzzles. A puzzle keeps more clues than asked for if no further cell can be emptied.

    Args:
        box: Cells along the side of a box.
        count: Number of puzzles.
        clues: The smallest and the largest number of clues; the target is drawn uniformly from this range.
        random: The only source of randomness.
    """
    solutions = random_grids(box, count, random)
    wanted = random.integers(clues[0], clues[1] + 1, count)
    return Examples(dig(box, solutions, wanted, random), solutions)


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


def apply_symmetries(box: int, examples: Examples, random: np.random.Generator) -> Examples:
    """Other puzzles, each as hard as the one it was made from.

    Digits are renamed; rows are permuted within a band and bands among each other, columns likewise; half of the grids
    are transposed. A unique solution stays unique.
    """
    count, size = len(examples), box * box
    names = np.concatenate(
        [np.zeros((count, 1), np.int64), random.permuted(np.tile(np.arange(1, size + 1), (count, 1)), axis=1)], axis=1
    )
    rows, columns = _line_permutation(box, count, random), _line_permutation(box, count, random)
    cell = rows[:, :, None] * size + columns[:, None, :]
    cell = np.where(random.random((count, 1, 1)) < 0.5, cell, cell.swapaxes(1, 2)).reshape(count, -1)
    each = np.arange(count)[:, None]
    return Examples(names[each, examples.puzzles[each, cell]], names[each, examples.solutions[each, cell]])


def _line_permutation(box: int, count: int, random: np.random.Generator) -> np.ndarray:
    """(count, size) permutations of rows or columns that keep bands together."""
    bands = random.permuted(np.tile(np.arange(box), (count, 1)), axis=1)
    within = random.permuted(np.tile(np.arange(box), (count, box, 1)), axis=2)
    return (bands[:, :, None] * box + within).reshape(count, box * box)

"""Sudoku: 4x4 with the digits 1 to 4, and 9x9 with 1 to 9."""

from typing import ClassVar

import numpy as np

from anyorder.tasks.base import register_task
from anyorder.tasks.puzzles import EMPTY, Examples, PuzzleTask
from anyorder.tasks.sudoku_generator import apply_symmetries, generate
from anyorder.tasks.sudoku_solver import is_valid, solve

DIGITS = "123456789"


class Sudoku(PuzzleTask):
    """A grid of boxes; every row, column and box holds every digit once."""

    box: ClassVar[int]
    """Cells along the side of a box."""
    clues: ClassVar[tuple[int, int]]
    """Minimum and maximum number of clues to ask for."""

    def generate(self, count: int, seed: int) -> Examples:
        random = np.random.Generator(np.random.Philox(key=seed))
        return generate(self.box, count, self.clues, random)

    def augment(self, examples: Examples, random: np.random.Generator) -> Examples:
        return apply_symmetries(self.box, examples, random)

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

"""Tasks with one right answer: a grid of cells, some given and some empty. Independent of models and tokenizers.

To add a task, write a small class in a file of your own::

    @anyorder.register_task("my-puzzle")
    class MyPuzzle(anyorder.PuzzleTask):
        symbols, columns, rows = ("1", "2", "3"), 3, 3

        def generate(self, count, seed): ...
        def is_solved(self, puzzles, answers): ...
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from anyorder.errors import InputError, unknown
from anyorder.registry import check_free

EMPTY = 0
"""An empty cell, to be filled. Other cells hold the number of their symbol, from 1."""
BLANKS = "0."
"""Characters that stand for an empty cell; `write` uses the first."""


@dataclass(frozen=True)
class Examples:
    """N puzzles and their solutions."""

    puzzles: np.ndarray
    """(N, cells) int64: the number of a symbol, `EMPTY` where a cell is to be filled."""
    solutions: np.ndarray
    """(N, cells) int64"""

    def __len__(self) -> int:
        return len(self.puzzles)

    def take(self, rows: np.ndarray) -> "Examples":
        """Some of the examples, by index."""
        return Examples(self.puzzles[rows], self.solutions[rows])


class PuzzleTask(ABC):
    """What a puzzle looks like, how to get examples of it, and when an answer is right."""

    name: str = "puzzle"
    """As it was registered."""
    symbols: ClassVar[Sequence[str]]
    """What a cell may hold: one character each."""
    columns: ClassVar[int]
    """The width of the grid, for display."""
    rows: ClassVar[int]
    box: ClassVar[int] = 0
    """Cells along the side of a box, for display; 0 if the grid has no boxes."""

    @abstractmethod
    def generate(self, count: int, seed: int) -> Examples:
        """New puzzles that have exactly one solution; the same ones for the same seed."""

    @abstractmethod
    def is_solved(self, puzzles: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """(N,) bool: which answers keep given cells and break no rule. Both are (N, cells)."""

    def augment(self, examples: Examples, random: np.random.Generator) -> Examples:
        """Change examples at random into equally valid ones. Much cheaper than generating new ones."""
        return examples

    def problems(self, puzzles: np.ndarray) -> list[str]:
        """What is wrong with each puzzle, such as `no solution`; empty if nothing is."""
        return [""] * len(puzzles)

    @property
    def cells(self) -> int:
        return self.columns * self.rows

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each symbol."""
        return {symbol: i for i, symbol in enumerate(self.symbols, start=1)}

    def read(self, line: str) -> np.ndarray:
        """(cells,) int64 from a line, one character per cell; an `InputError` says what is wrong."""
        line = line.strip()
        values = {**dict.fromkeys(BLANKS, EMPTY), **self.numbers}
        unknown_symbols = [character for character in line if character not in values]
        if len(line) != self.cells:
            found = f"{len(line):,} character{'' if len(line) == 1 else 's'}"
        elif unknown_symbols:
            found = f"'{unknown_symbols[0]}'"
        else:
            return np.array([values[character] for character in line], np.int64)
        symbols = f"{self.symbols[0]} to {self.symbols[-1]}, or {BLANKS[0]} for an empty cell"
        raise InputError(f"{found}, expected the {self.cells} cells of {self.name}: {symbols}")

    def write(self, cells: np.ndarray) -> str:
        """A line that `read` reads."""
        return "".join(BLANKS[0] if cell == EMPTY else self.symbols[cell - 1] for cell in cells)

    def is_right(self, puzzles: np.ndarray, answers: np.ndarray, solutions: np.ndarray | None = None) -> np.ndarray:
        """(N,) bool: which answers solve their puzzle, or equal the given solution. All are (N, cells)."""
        solved = self.is_solved(puzzles, answers)
        return solved if solutions is None else solved | (answers == solutions).all(1)

    def score(self, puzzles: np.ndarray, answers: np.ndarray, solutions: np.ndarray) -> np.ndarray:
        """(N,) float64: the fraction of empty cells filled correctly; 1 if there was nothing to fill."""
        empty = puzzles == EMPTY
        right = (empty & (answers == solutions)).sum(1)
        return np.where(empty.any(1), right / np.maximum(empty.sum(1), 1), 1.0)

    def show(self, cells: np.ndarray) -> str:
        """The grid as text, row by row."""
        line = self.write(cells)
        return "\n".join(line[i : i + self.columns] for i in range(0, self.cells, self.columns))


TASKS: dict[str, type[PuzzleTask]] = {}
"""All tasks by name."""
Registered = TypeVar("Registered", bound=type[PuzzleTask])


def register_task(name: str) -> Callable[[Registered], Registered]:
    """Decorator: register the task under this name."""

    def add(task: Registered) -> Registered:
        check_free("a task", name, TASKS)
        TASKS[name] = task
        return task

    return add


def make_task(name: str) -> PuzzleTask:
    """The task of that name."""
    if name not in TASKS:
        raise unknown("task", name, sorted(TASKS))
    task = TASKS[name]()
    task.name = name
    return task

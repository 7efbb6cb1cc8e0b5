"""Puzzles as canvases of a model, and filled canvases as answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyorder.decoding.config import BoundDecoding
from anyorder.decoding.distributed import decode_distributed
from anyorder.errors import InputError
from anyorder.models.base import Canvas, Model
from anyorder.tasks.base import EMPTY, PuzzleTask


class CellTokens:
    """Which tokens of a model stand for the symbols of a task."""

    def __init__(self, model: Model, task: PuzzleTask):
        if task.cells > model.max_length:
            raise InputError(f"{task.name} has {task.cells} cells, the model has room for {model.max_length}")
        spelled = {token: i for i, token in reversed(list(enumerate(model.to_tokens(np.arange(model.vocab_size)))))}
        missing = [symbol for symbol in task.symbols if symbol not in spelled]
        if missing:
            raise InputError(f"this model cannot solve {task.name}: it has no token for '{missing[0]}'")
        self.task = task
        self._ids = np.array([model.mask_token, *(spelled[symbol] for symbol in task.symbols)], np.int64)
        """Ids by symbol number; the mask for an empty cell."""
        self._numbers = np.full(model.vocab_size, EMPTY, np.int64)
        self._numbers[self._ids[1:]] = np.arange(1, len(self._ids))

    def tokens(self, puzzles: np.ndarray) -> np.ndarray:
        """(N, cells) int64 ids of puzzles or solutions, masked where a cell is empty."""
        return self._ids[puzzles]

    def canvases(self, puzzles: np.ndarray, keys: Sequence[int]) -> list[Canvas]:
        """A canvas per puzzle. keys: see `Canvas`."""
        return [
            Canvas(tokens, task=self.task.name, key=key) for tokens, key in zip(self.tokens(puzzles), keys, strict=True)
        ]

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        """(N, cells) symbol numbers; `EMPTY` where a token is not a symbol."""
        return self._numbers[tokens]


@dataclass(frozen=True)
class Answers:
    """Puzzles that a model filled in."""

    cells: np.ndarray
    """(N, cells) symbol numbers."""
    steps: list[np.ndarray]
    """(cells,) per puzzle: the step, from 1, at which each cell was filled; 0 where it was given."""


def fill_puzzles(model: Model, cells: CellTokens, puzzles: np.ndarray, decoding: BoundDecoding) -> Answers:
    """Fill in puzzles. The key of a puzzle is its index."""
    canvases = cells.canvases(puzzles, range(len(puzzles)))
    filled = [best for [best] in decode_distributed(model, canvases, decoding)]
    ids = np.stack([hypothesis.ids for hypothesis in filled])
    return Answers(cells.answers(ids), [hypothesis.steps for hypothesis in filled])

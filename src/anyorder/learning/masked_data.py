"""Canvases without a source to learn an order from: generated puzzles, or lines of text with masks."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from anyorder.data.random_streams import random_for
from anyorder.decoder import Decoder
from anyorder.decoding.trajectory import INFILL
from anyorder.device import inference_dtype
from anyorder.errors import InputError
from anyorder.evaluation.test_set import masked_test_set
from anyorder.learning.config import RLConfig
from anyorder.learning.data import Examples, LearningData
from anyorder.learning.rewards import (
    HOLE,
    REWARDS,
    Accuracy,
    ExactMatch,
    Likelihood,
    Reward,
    ScoredTexts,
    check_reward,
)
from anyorder.models.base import Canvas
from anyorder.models.hf.adapter import TransformersModel
from anyorder.tasks import Examples as Puzzles
from anyorder.tasks import PuzzleTask
from anyorder.tasks.masked import mask_lines
from anyorder.tasks.puzzles import EMPTY, CellTokens
from anyorder.training.validation import Validation, puzzle_validation

GENERATED = 4096
"""Maximum number of puzzles to generate; the rest are symmetric variants of them."""


class MaskedData(LearningData):
    """Canvases with some positions given, and the correct tokens for the rest.

    Args:
        model: The model that fills; it is frozen.
        targets: Ids of the finished canvases.
    """

    metric = "accuracy"
    model_tasks = (INFILL,)
    model: TransformersModel

    def __init__(self, model: TransformersModel, targets: Sequence[np.ndarray]):
        self.model, self._targets = model, targets

    @abstractmethod
    def _masked(self, number: int) -> np.ndarray:
        """(T,) bool: which positions of a canvas to fill; the same ones each time."""

    @abstractmethod
    def spell(self, ids: np.ndarray) -> str:
        """A canvas as text for the user's reward; `HOLE` marks unfilled positions."""

    def __len__(self) -> int:
        return len(self._targets)

    def _canvases(self, numbers: Sequence[int]) -> list[Canvas]:
        return [
            Canvas(np.where(self._masked(number), self.model.mask_token, self._targets[number]), key=number)
            for number in numbers
        ]

    def examples(self, numbers: np.ndarray, random: np.random.Generator) -> Examples:
        masked = np.array([int(self._masked(number).sum()) for number in numbers.tolist()])
        chosen = numbers[np.argsort(-masked, kind="stable")].tolist()
        batch = self.model.pack(self._canvases(chosen))
        references = np.full((len(chosen), int(batch.lengths.max())), self.model.mask_token, np.int64)
        for row, number in zip(references, chosen, strict=True):
            row[: len(self._targets[number])] = self._targets[number]
        return Examples(batch, references, batch.lengths)

    def reward(self, name: str) -> Reward:
        check_reward(name)
        reward = REWARDS[name]
        if not isinstance(reward, type):
            return ScoredTexts(name, reward, lambda ids, language: self.spell(ids))
        if not issubclass(reward, Accuracy | ExactMatch | Likelihood):
            known = "accuracy, exact-match and likelihood"
            raise InputError(
                f"{name}: is for translations; where masks are filled there are {known}", "reward", RLConfig
            )
        return reward()

    def move(self, device: torch.device) -> None:
        if self.model.device != device:
            self.model.network.to(device=device, dtype=inference_dtype(device))

    def fingerprint(self) -> dict[str, object]:
        return {
            "vocabulary": self.model.vocabulary_fingerprint,
            "task": list(self.tasks),
            self.unit: len(self),
        }


class PuzzleData(MaskedData):
    """Puzzles of a task; the validation score is the share of puzzles solved entirely.

    Args:
        task: Generates the puzzles.
        model: The model that fills.
        puzzles: Number of puzzles to learn from.
        validation: Number of other puzzles to validate on.
        seed: Seed for the puzzles.
    """

    unit = "puzzles"

    def __init__(self, task: PuzzleTask, model: TransformersModel, puzzles: int, validation: int, seed: int):
        self._cells, self._task = CellTokens(model, task), task
        learning = _with_choice(_many(task, puzzles, 2 * seed))
        self._puzzles = learning.puzzles
        super().__init__(model, list(self._cells.tokens(learning.solutions)))
        self.tasks = [task.name]
        self.validations = {task.name: puzzle_validation(task, model, validation, seed)} if validation else {}

    def _masked(self, number: int) -> np.ndarray:
        return self._puzzles[number] == EMPTY

    def spell(self, ids: np.ndarray) -> str:
        return self._task.write(np.where(ids == HOLE, EMPTY, self._cells.answers(np.maximum(ids, 0))))


class TextData(MaskedData):
    """Lines of text with some tokens masked at random; the validation score is the share of these filled correctly.

    Args:
        lines: Plain texts; those with other lengths are left out.
        model: The model that fills.
        mask_share: Fraction of tokens to mask; at least two are masked, so that there is a choice.
        lengths: Minimum and maximum number of tokens.
        validation: Number of lines to validate on; at most a fifth.
        seed: Seed for the masks.
    """

    unit = "lines"

    def __init__(
        self,
        lines: Sequence[str],
        model: TransformersModel,
        mask_share: float,
        lengths: tuple[int, int],
        validation: int,
        seed: int,
    ):
        shortest, longest = lengths[0], min(lengths[1], model.max_length)
        if not lines:
            raise InputError("is empty", "text")
        masked = mask_lines(model, lines, mask_share, seed)
        chosen = [line for line in masked if line.example.can_fill and shortest <= len(line.ids) <= longest]
        validation = min(validation, len(chosen) // 5)
        if len(chosen) - validation < 1:
            counts = [len(line.ids) for line in masked]
            field, limit = ("min_length", lengths[0]) if max(counts) < shortest else ("max_length", lengths[1])
            found = f"no line of the text has {shortest} to {longest} tokens; they have {min(counts)} to {max(counts)}"
            raise InputError(f"{limit}: {found}", field, RLConfig)
        learning = chosen[: len(chosen) - validation]
        super().__init__(model, [line.ids for line in learning])
        self.tasks = [INFILL]
        self._masks, self._mask_share = [line.masked for line in learning], mask_share
        held_out = masked_test_set(Decoder(model, INFILL), chosen[len(learning) :], mask_share)
        self.validations = {INFILL: Validation(held_out)} if validation else {}

    def _masked(self, number: int) -> np.ndarray:
        return self._masks[number]

    def spell(self, ids: np.ndarray) -> str:
        return self.model.to_text(ids[ids != HOLE], INFILL)

    def fingerprint(self) -> dict[str, object]:
        return {**super().fingerprint(), "mask_share": self._mask_share}


def _many(task: PuzzleTask, count: int, seed: int) -> Puzzles:
    """`count` puzzles: generated ones, and symmetric variants of them if more are needed."""
    generated = task.generate(min(count, GENERATED), seed)
    if count <= len(generated):
        return generated
    return task.augment(generated.take(np.arange(count) % len(generated)), random_for(seed, "puzzles", 0))


def _with_choice(puzzles: Puzzles) -> Puzzles:
    """The puzzles in which the order matters: those with two or more empty cells."""
    chosen = np.flatnonzero((puzzles.puzzles == EMPTY).sum(1) >= 2)
    if not len(chosen):
        raise InputError("makes puzzles with a single empty cell, so there is no order to learn", "task")
    return puzzles if len(chosen) == len(puzzles) else puzzles.take(chosen)

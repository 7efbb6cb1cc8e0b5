"""Data for learning an order without a source: generated puzzles, or lines of text with masks."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.distributed import decode_distributed
from anyorder.decoding.trajectory import INFILL
from anyorder.device import inference_dtype
from anyorder.errors import InputError
from anyorder.models.adapter import TransformersModel
from anyorder.models.base import Canvas
from anyorder.orders import Order
from anyorder.orders.policy import PolicyNetwork
from anyorder.orders.storage import save_order
from anyorder.tasks import Examples as Puzzles
from anyorder.tasks import PuzzleTask
from anyorder.tasks.base import EMPTY
from anyorder.tasks.canvases import CellTokens
from anyorder.training.batches import random_for
from anyorder.training.order_data import Examples, OrderData
from anyorder.training.order_loss import RLConfig
from anyorder.training.rewards import (
    HOLE,
    REWARDS,
    Accuracy,
    ExactMatch,
    Likelihood,
    Outcome,
    Reward,
    TextReward,
    check_reward,
    score_texts,
)
from anyorder.training.validation import ValidationResult

GENERATED = 4096
"""Maximum number of puzzles to generate; the rest are symmetric variants of them."""
SAMPLE = 8
"""Canvases to fill to estimate the time of a validation."""


class FillData(OrderData):
    """Canvases with some positions given, and the correct tokens for the rest.

    Args:
        model: The model that fills; it is frozen.
        targets: Ids of the finished canvases: first those to learn from, then those to validate on.
        validation: Number of canvases to validate on.
    """

    metric = "accuracy"
    weights = None

    def __init__(self, model: TransformersModel, targets: Sequence[np.ndarray], validation: int):
        self.hidden_size = model.hidden_size
        self._model, self._targets = model, targets
        self._learning = len(targets) - validation

    @abstractmethod
    def _masked(self, number: int) -> np.ndarray:
        """(T,) bool: which positions of a canvas to fill; the same ones each time."""

    @abstractmethod
    def _score(self, number: int, ids: np.ndarray) -> float:
        """How well canvas `number` was filled, in percent."""

    @abstractmethod
    def _spell(self, ids: np.ndarray) -> str:
        """A canvas as text for the user's reward; `HOLE` marks unfilled positions."""

    def __len__(self) -> int:
        return self._learning

    def _canvases(self, numbers: Sequence[int]) -> list[Canvas]:
        return [
            Canvas(np.where(self._masked(number), self._model.mask_token, self._targets[number]), key=number)
            for number in numbers
        ]

    def examples(self, numbers: np.ndarray, random: np.random.Generator) -> Examples:
        masked = np.array([int(self._masked(number).sum()) for number in numbers.tolist()])
        chosen = numbers[np.argsort(-masked, kind="stable")].tolist()
        batch = self._model.pack(self._canvases(chosen))
        references = np.full((len(chosen), int(batch.lengths.max())), self._model.mask_token, np.int64)
        for row, number in zip(references, chosen, strict=True):
            row[: len(self._targets[number])] = self._targets[number]
        return Examples(batch, references, batch.lengths)

    def reward(self, name: str) -> Reward:
        check_reward(name)
        reward = REWARDS[name]
        if not isinstance(reward, type):
            return ScoredFillings(name, reward, self)
        if not issubclass(reward, Accuracy | ExactMatch | Likelihood):
            known = "accuracy, exact-match and likelihood"
            raise InputError(
                f"{name}: is for translations; where masks are filled there are {known}", "reward", RLConfig
            )
        return reward()

    def spell(self, ids: Tensor, lengths: Tensor) -> list[str]:
        """Texts of canvases, given as (N, T) ids with `HOLE` at unfilled positions."""
        rows = zip(ids.cpu().numpy(), lengths.tolist(), strict=True)
        return [self._spell(row[:length]) for row, length in rows]

    def model_on(self, device: torch.device) -> TransformersModel:
        if self._model.device != device:
            self._model.network.to(device=device, dtype=inference_dtype(device))
        return self._model

    def bind(self, order: Order) -> list[Order]:
        return [order.bind(self._model, INFILL)]

    def evaluate(self, order: Order, task: str) -> ValidationResult:
        return self._evaluate(order, range(self._learning, len(self._targets)))

    def estimate_seconds(self, order: Order) -> float:
        start, count = time.monotonic(), len(self._targets) - self._learning
        self._evaluate(order, range(self._learning, self._learning + min(SAMPLE, count)))
        return (time.monotonic() - start) * count / min(SAMPLE, count)

    def _evaluate(self, order: Order, numbers: Sequence[int]) -> ValidationResult:
        decoding = DecodingConfig(order, "one").bind(self._model, INFILL)
        filled = [best for [best] in decode_distributed(self._model, self._canvases(numbers), decoding)]
        scores = [self._score(number, one.ids) for number, one in zip(numbers, filled, strict=True)]
        return ValidationResult(float(np.mean(scores)), [one.steps[one.steps > 0] for one in filled])

    def save(self, policy: PolicyNetwork, folder: Path, **record: Any) -> None:
        save_order(policy, folder, self._model, list(dict.fromkeys([INFILL, *self.tasks])), **record)

    def fingerprint(self) -> dict[str, object]:
        return {
            "vocabulary": self._model.vocabulary_fingerprint,
            "task": list(self.tasks),
            self.unit: self._learning,
        }


class PuzzleData(FillData):
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
        learning, held_out = _with_choice(_many(task, puzzles, 2 * seed)), task.generate(validation, 2 * seed + 1)
        self._puzzles = np.concatenate([learning.puzzles, held_out.puzzles])
        solutions = self._cells.tokens(np.concatenate([learning.solutions, held_out.solutions]))
        super().__init__(model, list(solutions), validation)
        self.tasks = [task.name]
        self.validated = self.tasks if validation else []

    def _masked(self, number: int) -> np.ndarray:
        return self._puzzles[number] == EMPTY

    def _score(self, number: int, ids: np.ndarray) -> float:
        return 100.0 * bool(self._task.is_right(self._puzzles[[number]], self._cells.answers(ids[None]))[0])

    def _spell(self, ids: np.ndarray) -> str:
        return self._task.write(np.where(ids == HOLE, EMPTY, self._cells.answers(np.maximum(ids, 0))))


class TextData(FillData):
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
        targets = [ids for ids in model.encode(lines) if shortest <= len(ids) <= longest]
        validation = min(validation, len(targets) // 5)
        if len(targets) - validation < 1:
            limits = "see the options min_length and max_length of rl"
            raise InputError(f"has no line of {shortest} to {longest} tokens ({limits})", "text")
        super().__init__(model, targets, validation)
        self.tasks = [INFILL]
        self.validated = self.tasks if validation else []
        self._mask_share, self._seed = mask_share, seed

    def _masked(self, number: int) -> np.ndarray:
        length = len(self._targets[number])
        masked = np.zeros(length, bool)
        count = min(length, max(2, round(self._mask_share * length)))
        masked[random_for(self._seed, "mask", number).permutation(length)[:count]] = True
        return masked

    def _score(self, number: int, ids: np.ndarray) -> float:
        return 100 * float((ids == self._targets[number])[self._masked(number)].mean())

    def _spell(self, ids: np.ndarray) -> str:
        return self._model.to_text(ids[ids != HOLE], INFILL)

    def fingerprint(self) -> dict[str, object]:
        return {**super().fingerprint(), "mask_share": self._mask_share}


class ScoredFillings(Reward):
    """A user's function of filled and correct texts. It runs on the host, once per batch."""

    def __init__(self, name: str, function: TextReward, data: FillData):
        self.name = name  # type: ignore[misc]
        self._function, self._data = function, data

    def final(self, outcome: Outcome) -> Tensor:
        hypotheses = self._data.spell(outcome.ids, outcome.lengths)
        references = self._data.spell(outcome.references, outcome.reference_lengths)
        return score_texts(self.name, self._function, hypotheses, references).to(outcome.ids.device)


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

"""Training a masked model to fill in puzzles: the loss and the objective.

The clues are always given. A random number of the empty cells, uniformly from one to all, is masked, and the rest show
the solution, so the model learns from every state that a decoder can reach, in any order.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.decoding.trajectory import INFILL
from anyorder.device import to_device
from anyorder.errors import InputError, check_number
from anyorder.orders import make_order, split_orders
from anyorder.tasks import PuzzleTask
from anyorder.tasks.puzzles import EMPTY, FIRST_SYMBOL, MASK_ID, as_model, save_encoder
from anyorder.training.objective import IGNORED, Objective
from anyorder.training.run_folder import Cursor
from anyorder.training.validation import puzzle_validation

if TYPE_CHECKING:
    from transformers import BertForMaskedLM

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class FillConfig:
    """What the model learns from."""

    puzzles: int = 20_000
    """Puzzles to generate before training; they are reused, augmented by the task's symmetries."""
    validation_puzzles: int = 200
    """Validation puzzles, generated with another seed; 0 skips validation."""
    validation_orders: str = "uniform,margin"
    """Orders to validate with; the last one selects the best model."""

    def __post_init__(self) -> None:
        check_number("puzzles", self.puzzles, at_least=1, at_most=10**8, config=FillConfig)
        check_number("validation_puzzles", self.validation_puzzles, at_least=0, at_most=10**6, config=FillConfig)


class FillLoss(nn.Module):
    """Cross-entropy of the masked cells."""

    def __init__(self, model: "BertForMaskedLM"):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss to minimize, and (2,) values to report. tokens, labels: (B, cells)."""
        logits = self.model(input_ids=tokens).logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        masked = labels != IGNORED
        right = ((logits.detach().argmax(-1) == labels) & masked).sum() / masked.sum()
        return loss, torch.stack([loss.detach(), right])


class FillObjective(Objective[Batch]):
    """Learn to fill in the puzzles of a task. batch_size: in puzzles. seed: that of the puzzles and the batches."""

    reports = ("loss", "right")
    shown = ("loss", "right")
    unit = "puzzles"
    learner: "BertForMaskedLM"

    def __init__(self, task: PuzzleTask, model: "BertForMaskedLM", fill: FillConfig, batch_size: int, seed: int):
        self.learner = model
        self.module = FillLoss(model)
        self._task, self._fill, self._batch_size, self.seed = task, fill, batch_size, seed
        self._examples = task.generate(fill.puzzles, 2 * seed)
        names = split_orders(fill.validation_orders) if fill.validation_orders.strip() else []
        if not names and fill.validation_puzzles:
            raise InputError("is empty: name at least one order", "validation_orders", FillConfig)
        untrained = as_model(deepcopy(model), task)  # a copy, because it is frozen
        self._orders = {name: make_order(name) for name in names}
        for order in self._orders.values():  # fail before training if a learned order does not fit
            order.bind(untrained, INFILL)
        held_out = fill.validation_puzzles
        self._validation = puzzle_validation(task, untrained, held_out, seed) if held_out else None

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[Batch, Cursor]]:
        for batch, after in super().batches(cursor, first, rank, world):
            yield batch, replace(after, offset=0)  # its number alone says what is in a batch

    def epoch_batches(self, epoch: int) -> range:
        return range(1 << 62)  # one endless epoch: every batch draws its puzzles itself

    def build(self, _: int, random: np.random.Generator) -> Batch:
        rows = random.integers(len(self._examples), size=self._batch_size)
        examples = self._task.augment(self._examples.take(rows), random)
        masked = sample_masked_cells(examples.puzzles == EMPTY, random)
        solutions = examples.solutions + FIRST_SYMBOL - 1
        return {"tokens": np.where(masked, MASK_ID, solutions), "labels": np.where(masked, solutions, IGNORED)}

    def minibatches(self, batch: Batch, device: torch.device) -> list[dict[str, Any]]:
        return [{name: to_device(array, device) for name, array in batch.items()}]

    def cost(self, batch: Batch) -> tuple[int, float]:
        config, (puzzles, cells) = self.learner.config, batch["tokens"].shape
        size = config.hidden_size
        per_cell = config.num_hidden_layers * (4 * size**2 + 2 * size * config.intermediate_size + 2 * cells * size)
        return puzzles, 6.0 * puzzles * cells * (per_cell + size**2 + size * config.vocab_size)

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """Accuracy of the averaged weights, in percent, by order name."""
        if self._validation is None:
            return {}
        model = as_model(deepcopy(average), self._task)
        return {name: self._validation.evaluate(order, model) for name, order in self._orders.items()}

    def selection_metric(self, scores: dict[str, float]) -> float:
        return scores[list(self._orders)[-1]]

    def save(self, average: nn.Module, out: Path) -> None:
        save_encoder(average, self._task, out / self.folder)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "fill",
            "task": self._task.name,
            "batch_size": self._batch_size,
            "fill": self._fill,
            "encoder": {
                name: getattr(self.learner.config, name)
                for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
            },
        }


def sample_masked_cells(empty: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """(B, cells) bool: mask 1 to n of a puzzle's n empty cells, every number equally likely. empty: (B, cells)"""
    masked_count = np.ceil((1 - random.random(len(empty))) * empty.sum(1))
    keys = np.where(empty, random.random(empty.shape), 2.0)
    rank = keys.argsort(1).argsort(1)
    return (rank < masked_count[:, None]) & empty

"""What can be learned: an `Objective` brings batches, a loss and a validation. `loop.py` runs it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from anyorder.models.attention import to_device
from anyorder.models.translation import TranslationModel
from anyorder.training.batches import Cursor
from anyorder.training.deepnorm import branch_rates

Batch = TypeVar("Batch")


class Objective(ABC, Generic[Batch]):
    """Something to learn."""

    learner: nn.Module
    """What is trained."""
    module: nn.Module
    """Called with each of the minibatches; returns the loss to minimize and the numbers to report."""
    reports: tuple[str, ...]
    """Names of those numbers. The loop stops if one is not finite."""
    shown: tuple[str, ...]
    """Those that the progress bar shows."""
    unit: str
    """What the speed counts: tokens, rollouts."""
    epochs: int = 1
    """How often a batch is used."""
    folder: str
    """The folder, in that of the run, which `save` writes."""
    compiles: bool = True
    """Whether the module's shapes never change on CUDA, so that compiling it pays."""

    @abstractmethod
    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[Batch, Cursor]]:
        """This process's batches from number `first` on, each with the cursor behind it.

        `cursor` was handed out before, and is not behind `first`.
        """

    @abstractmethod
    def minibatches(self, batch: Batch, device: torch.device) -> list[dict[str, Any]]:
        """The arguments of the module, one set for every step of the optimizer; the same number for every batch."""

    @abstractmethod
    def cost(self, batch: Batch) -> tuple[int, float]:
        """How many units a batch has, and the floating-point operations it takes."""

    @abstractmethod
    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """Scores of the averaged weights, by name. Empty where there is no dev split.

        quick: leave out scores that are only for comparison.
        """

    def validation_passes(self, quick: bool = False) -> int:
        """How many times the next validation decodes the dev split."""
        return 1

    def estimate_pass_seconds(self, average: nn.Module) -> float:
        """About how long one of these passes will take, found out in a fraction of that time."""
        return 0.0

    def selection_metric(self, scores: dict[str, float]) -> float:
        """The number by which the best of several validations is chosen."""
        return sum(scores.values()) / len(scores)

    @abstractmethod
    def save(self, average: nn.Module, out: Path) -> None:
        """Write what was learned into the folder of the run."""

    def rate_scales(self) -> dict[nn.Parameter, float]:
        """The share of the learning rate of every parameter that has not the whole."""
        return {}

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed."""

    def fingerprint_defaults(self) -> dict[str, dict[str, object]]:
        """The configs in the fingerprint as they are if nothing is set.

        A run from before a setting existed counts as one with its default.
        """
        return {}


@dataclass(frozen=True)
class HostBatch:
    """A batch of text, on the host."""

    arrays: dict[str, np.ndarray]
    """For the device."""
    longest: int
    """No segment is longer."""
    lengths: dict[str, np.ndarray] | None
    """Segment lengths by name, where attention needs them on the host."""
    tokens: int
    """Real tokens, padding not counted."""
    predicted: int
    """Positions that are predicted."""


class TextObjective(Objective[HostBatch]):
    """A model that learns from text."""

    learner: TranslationModel
    deepnorm: bool = False
    """Whether it learns as a deep model, see `deepnorm.py`."""
    unit = "tokens"
    shown = ("loss",)
    folder = "model"

    def minibatches(self, batch: HostBatch, device: torch.device) -> list[dict[str, Any]]:
        tensors = {name: to_device(array, device) for name, array in batch.arrays.items()}
        return [{"batch": tensors, "longest": batch.longest, "lengths": batch.lengths}]

    def cost(self, batch: HostBatch) -> tuple[int, float]:
        return batch.tokens, training_flops(self.learner, batch.tokens, batch.predicted)

    def rate_scales(self) -> dict[nn.Parameter, float]:
        return branch_rates(self.learner.transformer) if self.deepnorm else {}

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, TranslationModel)
        average.save_pretrained(out / self.folder)


def training_flops(model: TranslationModel, tokens: int, predicted: int) -> float:
    """Floating-point operations of one batch: the last layer and the output run only at predicted positions."""
    return 6 * model.forward_flops(tokens, predicted, predicted)

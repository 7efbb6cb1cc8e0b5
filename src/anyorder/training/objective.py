"""Training objectives: an `Objective` provides batches, a loss and a validation. `loop.py` runs it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from anyorder.models.base import SavedModel
from anyorder.orders import Order
from anyorder.training.batches import Cursor
from anyorder.training.validation import Validation

Batch = TypeVar("Batch")


class Objective(ABC, Generic[Batch]):
    """A training objective."""

    learner: nn.Module
    """The module to train."""
    module: nn.Module
    """Called with each minibatch; returns the loss to minimize and the numbers to report."""
    reports: tuple[str, ...]
    """Names of the reported numbers. The loop stops if one is not finite."""
    shown: tuple[str, ...]
    """The reports that the progress bar shows."""
    unit: str
    """What the speed counts, such as tokens or rollouts."""
    epochs: int = 1
    """Passes over each batch."""
    folder: str = "model"
    """The subfolder of the run folder that `save` writes."""
    compiles: bool = True
    """Whether the module's shapes are static on CUDA, so that compiling it pays off."""

    validations: Mapping[str, Validation] = {}
    """What it validates on, by task."""

    @abstractmethod
    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[Batch, Cursor]]:
        """This process's batches, starting at number `first`, each with the cursor after it.

        `cursor` was returned earlier, and is at or before batch `first`.
        """

    @abstractmethod
    def minibatches(self, batch: Batch, device: torch.device) -> list[dict[str, Any]]:
        """The module's arguments, one set per optimizer step; every batch has the same number of sets."""

    @abstractmethod
    def cost(self, batch: Batch) -> tuple[int, float]:
        """How many units a batch has, and the floating-point operations it takes."""

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """Scores of the averaged weights, by name; empty if there is nothing to validate on.

        quick: leave out scores that are only for comparison.
        """
        return {}

    def validation_passes(self, quick: bool = False) -> int:
        """How many times the next validation decodes a test set. quick: see `validate`."""
        return max(1, len(self.validations))

    def validation_order(self, average: nn.Module) -> tuple[Order, SavedModel]:
        """The order and the model that are validated."""
        raise NotImplementedError

    def selection_metric(self, scores: dict[str, float]) -> float:
        """The score that selects the best checkpoint; higher is better."""
        return sum(scores.values()) / len(scores)

    @abstractmethod
    def save(self, average: nn.Module, out: Path) -> None:
        """Write the result to the run folder."""

    def rate_scales(self) -> dict[nn.Parameter, float]:
        """Learning-rate factors of the parameters that do not get the full learning rate."""
        return {}

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed; configs as they are."""

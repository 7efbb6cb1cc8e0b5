"""What an order is learned from, for any task: canvases to fill, their rewards, and a validation.

The objective sees only `LearningData`: translation pairs (`translation_data.py`), puzzles or texts with masks
(`masked_data.py`). Nothing here knows about rollouts or the policy's loss.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyorder.learning.rewards import Reward
from anyorder.models.base import CanvasBatch, SavedModel
from anyorder.orders import Order
from anyorder.orders.policy import PolicyNetwork
from anyorder.orders.storage import save_order
from anyorder.training.validation import Validation


@dataclass(frozen=True)
class Examples:
    """Canvases to roll out and their references, on the host; those with the most masked positions first."""

    canvases: CanvasBatch
    references: np.ndarray
    """(canvases, R) ids, padded."""
    reference_lengths: np.ndarray
    """(canvases,)"""


class LearningData(ABC):
    """Canvases for a frozen model, and how well orders fill them."""

    model: SavedModel
    """The model that fills."""
    tasks: Sequence[str]
    """What validations are called: directions, `infill`, or the name of a puzzle. One order is learned for all."""
    model_tasks: Sequence[str]
    """What orders are bound to: the same, or `infill` for a puzzle."""
    unit: str
    """What messages call the canvases."""
    weights: np.ndarray | None = None
    """(canvases,) how often each is used per epoch; None if each is used once."""
    metric: str
    """The name of the validation's score, such as `bleu`."""
    validations: Mapping[str, Validation]
    """By task, if it has data to validate on."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of canvases to learn from."""

    @abstractmethod
    def examples(self, numbers: np.ndarray, random: np.random.Generator) -> Examples:
        """These canvases, in the order that `Examples` requires. random: for canvases that are drawn."""

    @abstractmethod
    def reward(self, name: str) -> Reward:
        """The reward of that name."""

    @abstractmethod
    def move(self, device: torch.device) -> None:
        """Move the model to a device, in the precision for inference there."""

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed."""

    def bind(self, order: Order) -> list[Order]:
        """The order bound to each of the model's tasks."""
        return [order.bind(self.model, task) for task in self.model_tasks]

    def save(self, policy: PolicyNetwork, folder: Path, **record: Any) -> None:
        """Write a learned order. record: how it was learned."""
        save_order(policy, folder, self.model, list(dict.fromkeys([*self.model_tasks, *self.tasks])), **record)

    def forward_flops(self, tokens: float, last: float, predicted: float) -> float:
        """Multiply-adds of a forward pass, from the numbers of tokens, those in the last layer, and those predicted."""
        return 0.0

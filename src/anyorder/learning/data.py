"""What an order is learned from, for any task: canvases to fill, their rewards, and a validation.

The objective sees only `LearningData`: translation pairs (`translation_data.py`), puzzles or texts with masks
(`masked_data.py`). Nothing here knows about the policy or its loss.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from anyorder.learning.rewards import Reward
from anyorder.learning.rollout import OrderBatch
from anyorder.models.base import SavedModel
from anyorder.training.validation import Validation


class LearningData(ABC):
    """Canvases for a frozen model, and how well orders fill them."""

    model: SavedModel
    """The model that fills."""
    network: nn.Module
    """Its weights."""
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
    def batch(self, numbers: np.ndarray, keys: np.ndarray, copies: int, random: np.random.Generator) -> OrderBatch:
        """These canvases `copies` times, those with the most masked positions first, and their references.

        keys: see `DecodeBatch`. random: for what is drawn anew each time.
        """

    @abstractmethod
    def reward(self, name: str) -> Reward:
        """The reward of that name."""

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed."""

    def forward_flops(self, tokens: float, last: float, predicted: float) -> float:
        """Multiply-adds of a forward pass, from the numbers of tokens, those in the last layer, and those predicted."""
        return 0.0

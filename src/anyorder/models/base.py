"""The model as the decoding engine sees it: canvases in, hidden states and logits out.

Nothing here knows a particular architecture, a language or a file format. `TranslationModel` and `TransformersModel`
implement it; other masked models plug in by the same few methods.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import PackedBatch
from anyorder.models.attention import QueryPositions, to_device


@dataclass(frozen=True)
class Canvas:
    """One sequence to fill: some positions are masked, the others are given."""

    tokens: np.ndarray
    """(T,) int64 ids; the model's mask token where a position is to be filled."""
    source: np.ndarray | None = None
    """(S,) int64 ids that the canvas is conditioned on, for models that have a source."""
    task: str = ""
    """What the model is asked to do, such as the direction `de-en`."""
    key: int = 0
    """Belongs to the sentence and the seed; random orders hash it."""


@dataclass(frozen=True)
class CanvasBatch:
    """B canvases as the model packs them, on the host."""

    packed: PackedBatch
    """The canvases end to end, with the model's delimiters around them."""
    starts: np.ndarray
    """(B,) where the first position of each canvas lies in the packed tokens."""
    lengths: np.ndarray
    """(B,) positions of each canvas."""
    sources: PackedBatch | None = None
    """What each canvas is conditioned on."""

    def take(self, canvases: np.ndarray) -> "CanvasBatch":
        """Some of the canvases, by number; a number may come several times."""
        packed = self.packed.take(canvases)
        offsets = self.starts - self.packed.starts
        return CanvasBatch(
            packed,
            packed.starts + offsets[canvases],
            self.lengths[canvases],
            None if self.sources is None else self.sources.take(canvases),
        )


class Context(ABC):
    """A batch of canvases that a model can be asked about again and again while they fill up.

    It may cache what does not change, such as the keys and values of the source.
    """

    @abstractmethod
    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        """The last hidden states at some positions: (queries, hidden_size). tokens: (packed tokens,)"""

    @abstractmethod
    def repeat(self, copies: int) -> "Context":
        """Every canvas so many times, its copies side by side; what is cached is copied, not computed again."""

    @abstractmethod
    def keep_first(self, count: int) -> None:
        """From now on there are only the first `count` canvases. Nothing moves."""

    @abstractmethod
    def select(self, canvases: np.ndarray) -> "Context":
        """Only these canvases, by number."""


class Model(Protocol):
    """A masked model that the engine can decode with."""

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def mask_token(self) -> int:
        """The id that stands where a position is not filled."""

    @property
    def allowed_tokens(self) -> np.ndarray:
        """(vocab_size,) bool: which tokens may be filled in."""

    @property
    def max_length(self) -> int:
        """How many positions a canvas may have."""

    def pack(self, canvases: Sequence[Canvas]) -> CanvasBatch:
        """Canvases as this model wants them."""

    def context(self, batch: CanvasBatch) -> Context:
        """Ready to be asked about these canvases."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(queries, vocab_size) float32 scores of all tokens."""

    def to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Ids as a reader sees them."""

    def to_text(self, ids: Sequence[int] | np.ndarray, task: str) -> str:
        """A finished canvas as a reader expects it."""


class SavedModel(Model, Protocol):
    """A model that lies in a folder, with its learned orders beside it."""

    @property
    def path(self) -> Path | None:
        """The folder; None if it was never saved."""

    @property
    def name(self) -> str:
        """What it is called in records."""

    @property
    def hidden_size(self) -> int:
        """Of the hidden states that an order may look at."""

    @property
    def vocabulary_fingerprint(self) -> str:
        """Differs between vocabularies: an order that was learned with one does not fit another."""


class AllowedTokens:
    """The tokens that may be filled in. Where the others are the first ids of the vocabulary, restricting is a view."""

    def __init__(self, allowed: np.ndarray, device: torch.device):
        """allowed: (vocab_size,) bool"""
        self.first = int(np.argmax(allowed)) if allowed[int(np.argmax(allowed)) :].all() else 0
        """Smaller ids are not allowed; 0 where `blocked` says it."""
        self.blocked: Tensor | None = None if allowed[self.first :].all() else to_device(~allowed, device)
        """(vocab_size,) bool, where the ids that are not allowed are not the first ones."""

    def restrict(self, logits: Tensor) -> Tensor:
        """(N, vocab_size) to (N, vocab_size - first), -inf where a token may not be filled in."""
        return restrict(logits, self.first, self.blocked)

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely allowed token at each position and its log-probability: (N,), (N,)."""
        best, index = self.restrict(logits).max(-1)
        return index + self.first, best - log_total(logits)


def restrict(logits: Tensor, first: int, blocked: Tensor | None) -> Tensor:
    """`AllowedTokens.restrict` as a function that compiles."""
    allowed = logits[:, first:]
    return allowed if blocked is None else allowed.masked_fill(blocked[first:], -torch.inf)


def log_total(logits: Tensor) -> Tensor:
    """(N, vocab_size) to (N,) the logarithm of the denominator of each row's softmax."""
    return _not_alone(logits).logsumexp(-1)[: len(logits)]


def row_sums(values: Tensor) -> Tensor:
    """(N, vocab_size) to (N,) sums."""
    return _not_alone(values).sum(-1)[: len(values)]


def _not_alone(values: Tensor) -> Tensor:
    """A single row twice: on the CPU, threads share the sum of a long one, but not the sums of several."""
    return values.expand(2, -1) if values.device.type == "cpu" and len(values) == 1 else values

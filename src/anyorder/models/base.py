"""The model as the decoding engine sees it: canvases in, hidden states and logits out.

Nothing here depends on a particular architecture, language or file format. `TranslationModel` and `TransformersModel`
implement it; other masked models plug in by implementing the same few methods.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import PackedBatch, ranges
from anyorder.device import to_device
from anyorder.models.native.attention import QueryPositions

NEVER = -1e30
"""A logit that makes a token impossible. Infinity would do so, too, but entropies would not be numbers."""


@dataclass(frozen=True)
class Canvas:
    """One sequence to fill: some positions are masked, the rest are given."""

    tokens: np.ndarray
    """(T,) int64 ids; the model's mask token at positions to be filled."""
    source: np.ndarray | None = None
    """(S,) int64 ids that the canvas is conditioned on, for models that have a source."""
    task: str = ""
    """What the model is asked to do, such as the direction `de-en`."""
    key: int = 0
    """Depends on the sentence and the seed; random orders hash it."""
    fillable: np.ndarray | None = None
    """(T,) bool: the positions to fill, which hold the mask token; None for all that hold it. Any other mask is part of
    the text and stays."""
    is_delimited: bool = True
    """Whether the model puts its delimiters around the tokens; if not, these are all that it reads."""

    def masked(self, mask_token: int) -> np.ndarray:
        """(T,) bool: the positions to fill."""
        return self.tokens == mask_token if self.fillable is None else self.fillable


@dataclass(frozen=True)
class CanvasBatch:
    """B canvases as the model packs them, on the host."""

    packed: PackedBatch
    """The canvases end to end, with the model's delimiters around them."""
    starts: np.ndarray
    """(B,) index of each canvas's first position in the packed tokens."""
    lengths: np.ndarray
    """(B,) number of positions in each canvas."""
    sources: PackedBatch | None = None
    """What each canvas is conditioned on."""
    fillable: np.ndarray | None = None
    """(packed tokens,) bool: the positions to fill; None for all that hold the mask token."""

    def masked(self, mask_token: int) -> np.ndarray:
        """(packed tokens,) bool: the positions to fill."""
        return self.packed.tokens == mask_token if self.fillable is None else self.fillable

    def with_fillable(self, canvases: Sequence[Canvas], mask_token: int) -> "CanvasBatch":
        """The batch of these canvases, of which some may have masks that are not to be filled."""
        if all(canvas.fillable is None for canvas in canvases):
            return self
        fillable = np.zeros(len(self.packed.tokens), bool)
        at = ranges(self.starts, self.lengths)
        fillable[at] = np.concatenate([canvas.masked(mask_token) for canvas in canvases])
        return replace(self, fillable=fillable)

    def take(self, canvases: np.ndarray) -> "CanvasBatch":
        """A selection of the canvases, by index; indices may repeat."""
        packed = self.packed.take(canvases)
        starts = packed.starts + (self.starts - self.packed.starts)[canvases]
        sources = None if self.sources is None else self.sources.take(canvases)
        fillable = None
        if self.fillable is not None:
            fillable = self.fillable[ranges(self.packed.starts[canvases], self.packed.sizes[canvases])]
        return CanvasBatch(packed, starts, self.lengths[canvases], sources, fillable)


class Context(ABC):
    """A batch of canvases that a model runs on repeatedly while they fill up.

    It may cache what does not change, such as the keys and values of the source.
    """

    @abstractmethod
    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        """The last hidden states at some positions: (queries, hidden_size). tokens: (packed tokens,)"""

    @abstractmethod
    def keep_first(self, count: int) -> None:
        """Drop all but the first `count` canvases, in place. Nothing moves."""

    @abstractmethod
    def select(self, canvases: np.ndarray) -> "Context":
        """These canvases, by index; indices may repeat. Cached values are copied, not recomputed."""


class Model(Protocol):
    """A masked model that the engine can decode with."""

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def mask_token(self) -> int:
        """The id at positions that are not filled yet."""

    @property
    def allowed_tokens(self) -> np.ndarray:
        """(vocab_size,) bool: which tokens may be filled in."""

    @property
    def max_length(self) -> int:
        """Maximum number of positions."""

    def pack(self, canvases: Sequence[Canvas]) -> CanvasBatch:
        """Canvases in this model's format."""

    def context(self, batch: CanvasBatch) -> Context:
        """A context for these canvases."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(queries, vocab_size) float32 scores of all tokens."""

    def to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Ids as readable tokens."""

    def to_text(self, ids: Sequence[int] | np.ndarray, task: str) -> str:
        """A finished canvas as readable text."""


class SavedModel(Model, Protocol):
    """A model stored in a folder, along with its learned orders."""

    @property
    def path(self) -> Path | None:
        """The folder; None if it was never saved."""

    @property
    def name(self) -> str:
        """Its name in records."""

    @property
    def hidden_size(self) -> int:
        """Size of the hidden states an order may use."""

    @property
    def vocabulary_fingerprint(self) -> str:
        """Identifies the vocabulary: an order learned with one does not fit another."""


class AllowedTokens:
    """The tokens that may be filled in. If all other ids come before them, restricting is just a view."""

    def __init__(self, allowed: np.ndarray, device: torch.device):
        """allowed: (vocab_size,) bool"""
        self.first = int(np.argmax(allowed)) if allowed[int(np.argmax(allowed)) :].all() else 0
        """Ids below this are not allowed; 0 if `blocked` is used instead."""
        self.blocked: Tensor | None = None if allowed[self.first :].all() else to_device(~allowed, device)
        """(vocab_size,) bool: which ids are not allowed; None if `first` says it all."""

    def restrict(self, logits: Tensor) -> Tensor:
        """(N, vocab_size) to (N, vocab_size - first), -inf where a token may not be filled in."""
        return restrict(logits, self.first, self.blocked)

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely allowed token at each position and its log-probability: (N,), (N,)."""
        best, index = self.restrict(logits).max(-1)
        return index + self.first, log_probability(logits, best)


def restrict(logits: Tensor, first: int, blocked: Tensor | None) -> Tensor:
    """`AllowedTokens.restrict` as a compilable function."""
    allowed = logits[:, first:]
    return allowed if blocked is None else allowed.masked_fill(blocked[first:], -torch.inf)


def log_probability(logits: Tensor, scores: Tensor) -> Tensor:
    """The log-probability of tokens whose logits are `scores`: (N,), or (N, K) for several per row.

    log p = (score - highest) - log(1 + others), where `others` sums exp(logit - highest) over all tokens but the most
    likely one. So what sets the most likely token apart from certainty is not lost: -log(1 + 1e-9) is -1e-9, while a
    difference of logits near 20 is a multiple of 2e-6, and positions of which the model is nearly certain would tie.
    """
    highest, index = logits.max(-1, keepdim=True)
    others = row_sums((logits - highest).exp_().scatter_(-1, index, 0)).log1p()
    if scores.dim() == 1:
        return scores - highest.squeeze(-1) - others
    return scores - highest - others[:, None]


def token_log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """(N, vocab_size) and (N,) ids to (N,): the log-probability of one token per row."""
    return log_probability(logits, logits.gather(1, tokens[:, None]).squeeze(1))


def row_sums(values: Tensor) -> Tensor:
    """(N, vocab_size) to (N,) sums."""
    # On the CPU, threads split the sum of one long row, but not of several: a single row is duplicated.
    several = values.expand(2, -1) if values.device.type == "cpu" and len(values) == 1 else values
    return several.sum(-1)[: len(values)]

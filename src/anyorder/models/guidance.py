"""Classifier-free guidance: a model that predicts with and without what is given, and exaggerates the difference.

It wraps any model. Orders, schedules and the engine see one model whose hidden states are those of both passes.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import ranges, starts_of
from anyorder.device import to_device
from anyorder.models.base import CanvasBatch, Context, Model
from anyorder.models.native.attention import QueryPositions


class GuidedModel:
    """The model with logits u + (scale + 1) (c - u): c as it predicts, u if all given tokens were masked (LLaDA).

    It is the model in everything but its contexts and logits.
    """

    def __init__(self, model: Model, scale: float):
        self._model, self._scale = model, scale

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def context(self, batch: CanvasBatch) -> Context:
        inside = np.zeros(len(batch.packed.tokens), bool)
        inside[ranges(batch.starts, batch.lengths)] = True  # delimiters stay
        given = to_device(inside & (batch.packed.tokens != self.mask_token), self.device)
        contexts = self._model.context(batch), self._model.context(batch)
        return GuidedContext(*contexts, given, batch.packed.sizes, self.mask_token)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: (queries, 2 * hidden_size), with and without what is given"""
        with_given, without = (self._model.logits(part.contiguous()) for part in hidden.chunk(2, -1))
        return without + (self._scale + 1) * (with_given - without)


class GuidedContext(Context):
    """Two contexts of the same canvases: one sees them as they are, the other with masks in place of what was given."""

    def __init__(self, with_given: Context, without: Context, given: Tensor, sizes: np.ndarray, mask_token: int):
        """given: (packed tokens,) bool; sizes: (B,) length of each sequence, delimiters included."""
        self._with, self._without, self._given = with_given, without, given
        self._sizes, self._mask_token = sizes, mask_token

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        hidden = tokens.masked_fill(self._given[: len(tokens)], self._mask_token)
        return torch.cat([self._with.hidden(tokens, at), self._without.hidden(hidden, at)], -1)

    def keep_first(self, count: int) -> None:
        self._with.keep_first(count)
        self._without.keep_first(count)

    def select(self, canvases: np.ndarray) -> "GuidedContext":
        sizes = self._sizes[canvases]
        rows = to_device(ranges(starts_of(self._sizes)[canvases], sizes), self._given.device)
        contexts = self._with.select(canvases), self._without.select(canvases)
        return GuidedContext(*contexts, self._given[rows], sizes, self._mask_token)

"""Right-padded sequences of a Transformers model; those of the same padded length run together.

Sequences that need no padding run separately, without an attention mask. On the CPU a sequence's result does not depend
on its batch: its padded length and whether it has a mask depend on the sequence alone.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import starts_of
from anyorder.models.attention import QueryPositions, to_device
from anyorder.models.base import Context

if TYPE_CHECKING:
    from anyorder.models.adapter import TransformersModel

ROUND_CPU, ROUND_CUDA = 16, 64
"""Padded lengths are multiples of this. Elementwise kernels handle the last few elements of a tensor differently; with
multiples of 16 rows there is no such remainder on the CPU. On CUDA, fewer and larger batches are faster."""


class PaddedContext(Context):
    """Sequences that are run in full on every call, grouped by padded length."""

    def __init__(self, model: "TransformersModel", sizes: np.ndarray):
        """sizes: (B,) length of each sequence, delimiters included."""
        self._model = model
        self._plan(sizes)

    def _plan(self, sizes: np.ndarray) -> None:
        """Group the sequences, and locate the output of each token."""
        model, device = self._model, self._model.device
        self._sizes = sizes
        self._groups: list[tuple[Tensor, Tensor, Tensor | None]] = []
        """Per group: indices of its packed tokens (B, L), which of them are real (B, L), and the attention mask."""
        starts = starts_of(sizes)
        padded = np.minimum(round_up(sizes, rounding(device)), model.max_positions)
        groups = 2 * padded + (sizes < padded)
        row_of = np.zeros(int(sizes.sum()), np.int64)
        done = 0
        for group in np.unique(groups).tolist():
            members = np.flatnonzero(groups == group)
            column = np.arange(group // 2)
            real = column < sizes[members, None]
            take = starts[members, None] + np.where(real, column, 0)
            mask = None if real.all() else to_device(real.astype(np.int64), device)
            self._groups.append((to_device(take, device), to_device(real, device), mask))
            row_of[take[real]] = done + np.flatnonzero(real)
            done += real.size
        self._row_of = to_device(row_of[predicted_by(sizes, model.is_shifted)], device)
        """(packed tokens,) for each token, the index of the output that predicts it, among those of all groups."""

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        body = self._model.network.base_model
        options = {"use_cache": False} if self._model.family.is_language_model else {}
        outputs = []
        for take, real, mask in self._groups:
            ids = tokens[take].masked_fill(~real, self._model.padding_token)
            states = body(input_ids=ids, attention_mask=mask, **options).last_hidden_state
            outputs.append(states.flatten(0, 1))
        return torch.cat(outputs)[self._row_of[at.rows]]

    def repeat(self, copies: int) -> "PaddedContext":
        return PaddedContext(self._model, np.repeat(self._sizes, copies))

    def keep_first(self, count: int) -> None:
        self._plan(self._sizes[:count])

    def select(self, canvases: np.ndarray) -> "PaddedContext":
        return PaddedContext(self._model, self._sizes[canvases])


def predicted_by(sizes: np.ndarray, is_shifted: bool) -> np.ndarray:
    """(packed tokens,) the token whose output predicts each one. sizes: (B,) length of each sequence"""
    rows = np.arange(int(sizes.sum()))
    if is_shifted:  # the first token has no output before it and is predicted by its own
        rows -= 1
        rows[starts_of(sizes)] += 1
    return rows


def rounding(device: torch.device) -> int:
    """Padded lengths are multiples of this."""
    return ROUND_CUDA if device.type == "cuda" else ROUND_CPU


def round_up(lengths: np.ndarray, step: int) -> np.ndarray:
    """The next multiples of `step`."""
    return -(-lengths // step) * step

"""Right-padded sequences of a Transformers model; those of the same padded length run together.

Sequences that need no padding run separately, without an attention mask. On the CPU a sequence's result does not depend
on its batch: its padded length and whether it has a mask depend on the sequence alone.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import padded_rows, round_up, same_shapes, starts_of
from anyorder.device import to_device
from anyorder.models.base import Context
from anyorder.models.native.attention import QueryPositions

if TYPE_CHECKING:
    from anyorder.models.hf.adapter import TransformersModel

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
        step = ROUND_CUDA if device.type == "cuda" else ROUND_CPU
        padded = np.minimum(round_up(sizes, step), model.max_positions)
        row_of = np.zeros(int(sizes.sum()), np.int64)
        done = 0
        for (width, has_padding), members in same_shapes(padded, sizes < padded):
            take, real = padded_rows(starts[members], sizes[members], width)
            mask = to_device(real.astype(np.int64), device) if has_padding else None
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

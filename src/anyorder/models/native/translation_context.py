"""Contexts of the translation model: sources, and targets that fill up over repeated calls.

If the source does not attend to the target, its keys and values are computed once and cached; otherwise every call runs
the whole pair. With schedules known in advance, canvases are dropped from the end of the batch, so that the remaining
ones are always a prefix and nothing moves.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import PackedBatch, ranges, starts_of
from anyorder.device import to_device
from anyorder.models.base import Context
from anyorder.models.native.attention import CachedSource, FullAttention, Prefill, QueryPositions, Segments, store

if TYPE_CHECKING:
    from anyorder.models.native.translation_model import TranslationModel


class PairContext(Context):
    """Sources and targets, both packed as `</s> subwords </s>` end to end. In a pair the source comes first."""

    def __init__(self, model: "TranslationModel", sources: PackedBatch, targets: PackedBatch):
        self._model = model
        self._device = model.device
        self._sources, self._targets = sources, targets
        self._pair_sizes = sources.sizes + targets.sizes
        self._pair_starts = starts_of(self._pair_sizes)
        self._source_rows = self._send(ranges(self._pair_starts, sources.sizes))
        self._target_rows = self._send(ranges(self._pair_starts + sources.sizes, targets.sizes))
        self._positions = self._send(targets.positions)
        self._languages = self._send(targets.languages)
        self._target_segments = Segments.of(targets.sizes, self._device)
        self._pair_segments = Segments.of(self._pair_sizes, self._device)

    def keep_first(self, count: int) -> None:
        self._target_segments = self._target_segments.first(count)
        self._pair_segments = self._pair_segments.first(count)
        tokens = int(self._targets.sizes[:count].sum())
        self._target_rows = self._target_rows[:tokens]
        self._positions = self._positions[:tokens]
        self._languages = self._languages[:tokens]

    def _send(self, array: np.ndarray) -> Tensor:
        return to_device(array, self._device)


class CachedSourceContext(PairContext):
    """Keys and values of the source are computed once; each call runs only the target.

    cache: per layer (tokens of all pairs, 2, heads, size), keys and values; computed here if not given.
    """

    def __init__(
        self,
        model: "TranslationModel",
        sources: PackedBatch,
        targets: PackedBatch,
        cache: list[Tensor] | None = None,
    ):
        super().__init__(model, sources, targets)
        self._cache = self._prefill() if cache is None else cache

    def _prefill(self) -> list[Tensor]:
        model, sources, config = self._model, self._sources, self._model.config.transformer
        size = (int(self._pair_sizes.sum()), 2, config.num_heads, config.hidden_size // config.num_heads)
        dtype = model.output_bias.dtype
        cache = [torch.empty(size, dtype=dtype, device=self._device) for _ in range(config.num_layers)]
        below = model.transformer.below_last(
            self._send(sources.tokens),
            self._send(sources.positions),
            self._send(sources.languages),
            Prefill(Segments.of(sources.sizes, self._device), self._source_rows, cache),
        )
        store(cache[-1], self._source_rows, model.transformer.layers[-1].keys_values(below))  # type: ignore[operator]
        return cache

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        pattern = CachedSource(self._target_segments, self._pair_segments, self._target_rows, self._cache)
        return self._model.transformer(tokens, self._positions, self._languages, pattern, at).last

    def select(self, canvases: np.ndarray) -> "CachedSourceContext":
        rows = self._send(ranges(self._pair_starts[canvases], self._pair_sizes[canvases]))
        cache = [keys_values[rows] for keys_values in self._cache]
        return CachedSourceContext(self._model, self._sources.take(canvases), self._targets.take(canvases), cache)


class FullPairContext(PairContext):
    """XLM's attention: the source sees the target, so every call runs both."""

    def __init__(self, model: "TranslationModel", sources: PackedBatch, targets: PackedBatch):
        super().__init__(model, sources, targets)
        count = int(self._pair_sizes.sum())
        self._pair_tokens = torch.zeros(count, dtype=torch.int64, device=self._device)
        self._pair_positions = torch.zeros_like(self._pair_tokens)
        self._pair_languages = torch.zeros_like(self._pair_tokens)
        self._pair_tokens[self._source_rows] = self._send(sources.tokens)
        self._pair_positions[self._source_rows] = self._send(sources.positions)
        self._pair_positions[self._target_rows] = self._positions
        self._pair_languages[self._source_rows] = self._send(sources.languages)
        self._pair_languages[self._target_rows] = self._languages

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        self._pair_tokens[self._target_rows] = tokens
        in_pairs = QueryPositions(self._target_rows[at.rows], at.segments)
        pattern = FullAttention(self._pair_segments)
        return self._model.transformer(
            self._pair_tokens, self._pair_positions, self._pair_languages, pattern, in_pairs
        ).last

    def select(self, canvases: np.ndarray) -> "FullPairContext":
        return FullPairContext(self._model, self._sources.take(canvases), self._targets.take(canvases))

    def keep_first(self, count: int) -> None:
        super().keep_first(count)
        tokens = int(self._pair_sizes[:count].sum())
        self._pair_tokens = self._pair_tokens[:tokens]
        self._pair_positions = self._pair_positions[:tokens]
        self._pair_languages = self._pair_languages[:tokens]

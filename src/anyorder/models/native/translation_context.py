"""Contexts of the translation model: sources, and targets that fill up over repeated calls.

If the source does not attend to the target, its keys and values are computed once and cached; otherwise every call runs
the whole pair. With schedules known in advance, canvases are dropped from the end of the batch, so that the remaining
ones are always a prefix and nothing moves.
"""

from dataclasses import replace
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

    def __init__(self, model: "TranslationModel", sources: PackedBatch, targets: PackedBatch, run: PackedBatch):
        """run: what each call runs, the targets or whole pairs."""
        self._model = model
        self._device = model.device
        self._sources, self._targets, self._run = sources, targets, run
        self._pair_sizes = sources.sizes + targets.sizes
        self._pair_starts = starts_of(self._pair_sizes)
        self._target_rows = self._send(ranges(self._pair_starts + sources.sizes, targets.sizes))
        """(target tokens,) their places in the pairs, which lie end to end."""
        self._positions, self._languages = self._send(run.positions), self._send(run.languages)
        self._target_segments = Segments.of(targets.sizes, self._device)
        self._pair_segments = Segments.of(self._pair_sizes, self._device)

    def keep_first(self, count: int) -> None:
        self._target_segments = self._target_segments.first(count)
        self._pair_segments = self._pair_segments.first(count)
        self._target_rows = self._target_rows[: int(self._targets.sizes[:count].sum())]
        tokens = int(self._run.sizes[:count].sum())
        self._positions, self._languages = self._positions[:tokens], self._languages[:tokens]

    def _send(self, array: np.ndarray) -> Tensor:
        return to_device(array, self._device)


class CachedSourceContext(PairContext):
    """Keys and values of the source are computed once; each call runs only the target."""

    def __init__(
        self, model: "TranslationModel", sources: PackedBatch, targets: PackedBatch, cache: list[Tensor] | None = None
    ):
        """cache: per layer (tokens of all pairs, 2, heads, size), keys and values; computed if not given."""
        super().__init__(model, sources, targets, run=targets)
        self._cache = self._prefill() if cache is None else cache

    def _prefill(self) -> list[Tensor]:
        model, sources, config = self._model, self._sources, self._model.config.transformer
        size = (int(self._pair_sizes.sum()), 2, config.num_heads, config.hidden_size // config.num_heads)
        dtype = model.output_bias.dtype
        cache = [torch.empty(size, dtype=dtype, device=self._device) for _ in range(config.num_layers)]
        rows = self._send(ranges(self._pair_starts, sources.sizes))
        below = model.below_last(sources, Prefill(Segments.of(sources.sizes, self._device), rows, cache))
        store(cache[-1], rows, model.transformer.layers[-1].keys_values(below))  # type: ignore[operator]
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
        names = ("tokens", "positions", "languages", "sizes")
        halves = PackedBatch(*(np.concatenate([getattr(sources, name), getattr(targets, name)]) for name in names))
        interleaved = np.arange(len(halves.sizes)).reshape(2, -1).T.flatten()  # source 1, target 1, source 2, ...
        pairs = replace(halves.take(interleaved), sizes=sources.sizes + targets.sizes)
        super().__init__(model, sources, targets, run=pairs)
        self._tokens = self._send(pairs.tokens)

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        self._tokens[self._target_rows] = tokens
        in_pairs = QueryPositions(self._target_rows[at.rows], at.segments)
        inputs = self._tokens[: len(self._positions)], self._positions, self._languages
        return self._model.transformer(*inputs, FullAttention(self._pair_segments), in_pairs).last

    def select(self, canvases: np.ndarray) -> "FullPairContext":
        return FullPairContext(self._model, self._sources.take(canvases), self._targets.take(canvases))

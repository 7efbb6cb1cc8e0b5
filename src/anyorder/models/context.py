"""A batch of sources that can be asked again and again about targets that fill up. What decoding sees of the model.

Where the source does not attend to the target its keys and values are computed once and kept; otherwise every question
runs the whole pair. Sentences leave from the end of the batch, so that what stays is always a prefix and nothing moves.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import PackedBatch, ranges, starts_of
from anyorder.models.attention import Cache, CachedSource, FullAttention, Prefill, QueryPositions, Segments, to_device
from anyorder.models.translation import TranslationModel


class Context(ABC):
    """Targets are packed like sources: `</s> words </s>`, end to end."""

    def __init__(self, model: TranslationModel, sources: PackedBatch, targets: PackedBatch):
        self._model = model
        self._device = model.device
        self._rows = sources, targets
        self._target_sizes = targets.sizes
        self._pair_sizes = sources.sizes + targets.sizes
        self._pair_ends = np.cumsum(self._pair_sizes)
        self._target_ends = np.cumsum(targets.sizes)
        begins = starts_of(self._pair_sizes)
        self._source_rows = self._send(ranges(begins, sources.sizes))
        self._target_rows = self._send(ranges(begins + sources.sizes, targets.sizes))
        self._positions = self._send(targets.positions)
        self._languages = self._send(targets.languages)
        self._targets = Segments.of(targets.sizes, self._device)
        self._pairs = Segments.of(self._pair_sizes, self._device)
        self._tokens = len(targets.tokens)

    @abstractmethod
    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        """The last layer at some target positions: (places, width). tokens: (target tokens,)"""

    @abstractmethod
    def repeated(self, copies: int) -> "Context":
        """Every sentence so many times, its copies side by side; what is known of the sources is not computed again."""

    def keep(self, sentences: int) -> None:
        """From now on there are only the first `sentences`."""
        self._targets = self._targets.first(sentences)
        self._pairs = self._pairs.first(sentences)
        self._tokens = int(self._target_ends[sentences - 1])
        self._target_rows = self._target_rows[: self._tokens]
        self._positions = self._positions[: self._tokens]
        self._languages = self._languages[: self._tokens]

    def _send(self, array: np.ndarray) -> Tensor:
        return to_device(array, self._device)


class CachedSourceContext(Context):
    """Keys and values of the source are computed once; each question runs the target only."""

    def __init__(self, model: TranslationModel, sources: PackedBatch, targets: PackedBatch, run: bool = True):
        super().__init__(model, sources, targets)
        self._cache = self._empty()
        if run:
            self._run(sources)

    def _run(self, sources: PackedBatch) -> None:
        model, cache = self._model, self._cache
        below = model.transformer.below_last(
            self._send(sources.tokens),
            self._send(sources.positions),
            self._send(sources.languages),
            Prefill(Segments.of(sources.sizes, self._device), self._source_rows, cache),
        )
        last = model.config.transformer.num_layers - 1
        cache.store(last, self._source_rows, model.transformer.layers[last].keys_values(below))  # type: ignore[operator]

    def _empty(self) -> Cache:
        config = self._model.config.transformer
        size = (int(self._pair_ends[-1]), 2, config.num_heads, config.hidden_size // config.num_heads)
        dtype = self._model.output_bias.dtype
        return Cache([torch.empty(size, dtype=dtype, device=self._device) for _ in range(config.num_layers)])

    def repeated(self, copies: int) -> "CachedSourceContext":
        sources, targets = self._rows
        sizes = np.repeat(sources.sizes, copies)
        take = self._source_rows[self._send(ranges(np.repeat(starts_of(sources.sizes), copies), sizes))]
        again = CachedSourceContext(self._model, sources.repeated(copies), targets.repeated(copies), run=False)
        for layer, both in enumerate(self._cache.layers):
            again._cache.store(layer, again._source_rows, both[take])
        return again

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        pattern = CachedSource(self._targets, self._pairs, self._target_rows, self._cache)
        return self._model.transformer(tokens, self._positions, self._languages, pattern, at).last


class FullPairContext(Context):
    """XLM's attention: the source sees the target, so every question runs both."""

    def __init__(self, model: TranslationModel, sources: PackedBatch, targets: PackedBatch):
        super().__init__(model, sources, targets)
        count = int(self._pair_ends[-1])
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
        places = QueryPositions(self._target_rows[at.rows], at.segments)
        return self._model.transformer(
            self._pair_tokens, self._pair_positions, self._pair_languages, FullAttention(self._pairs), places
        ).last

    def repeated(self, copies: int) -> "FullPairContext":
        sources, targets = self._rows
        return FullPairContext(self._model, sources.repeated(copies), targets.repeated(copies))

    def keep(self, sentences: int) -> None:
        super().keep(sentences)
        count = int(self._pair_ends[sentences - 1])
        self._pair_tokens = self._pair_tokens[:count]
        self._pair_positions = self._pair_positions[:count]
        self._pair_languages = self._pair_languages[:count]


def condition(model: TranslationModel, sources: PackedBatch, targets: PackedBatch) -> Context:
    """`sources` and `targets` hold the same sentences in the same order."""
    kind = FullPairContext if model.config.transformer.source_sees_target else CachedSourceContext
    return kind(model, sources, targets)

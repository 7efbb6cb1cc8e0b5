"""The undirected translation model: Transformer, tied output layer, lengths, vocabulary; and its contexts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import PackedBatch, pack_ids, pack_sentences, ranges, starts_of
from anyorder.data.text import Text, TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.device import to_device
from anyorder.errors import InputError, check_number
from anyorder.models.base import Canvas, CanvasBatch, Context
from anyorder.models.native.attention import (
    AttentionPattern,
    CachedSource,
    FullAttention,
    Prefill,
    QueryPositions,
    Segments,
    store,
)
from anyorder.models.native.transformer import Linear, Transformer, TransformerConfig, float32_linear

REACH = 64
"""Predicted targets are at most this much longer or shorter than their source."""


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a model that is not a weight."""

    transformer: TransformerConfig
    vocab_size: int
    """Size of the vocabulary."""
    languages: tuple[str, ...]
    """A language's number is its index here."""
    text: TextConfig = field(default_factory=TextConfig)
    activation: str = "gelu"
    language_embeddings: bool = True
    predicts_length: bool = True
    """False if the length predictor was never trained, as in other projects' models."""
    trained_directions: tuple[str, ...] = ()
    """The directions it was trained on; empty means every pair of its languages."""

    def __post_init__(self) -> None:
        check_number("vocab_size", self.vocab_size, at_least=1, at_most=10_000_000, config=ModelConfig)
        if not self.languages or len(set(self.languages)) < len(self.languages) or not all(self.languages):
            raise InputError(f"{self.languages}: expected different codes such as de and en", "languages", ModelConfig)
        if self.activation not in ("gelu", "relu"):
            raise InputError(f"'{self.activation}': expected gelu or relu", "activation", ModelConfig)
        if self.trained_directions and len(self.directions) < len(set(self.trained_directions)):
            message = f"{self.trained_directions}: not all are pairs of its languages"
            raise InputError(message, "trained_directions", ModelConfig)

    @cached_property
    def directions(self) -> list[str]:
        """The directions it translates, such as `de-en`."""
        pairs = [f"{a}-{b}" for a in self.languages for b in self.languages if a != b]
        return [pair for pair in pairs if pair in self.trained_directions] if self.trained_directions else pairs

    def direction(self, name: str) -> tuple[int, int]:
        """Numbers of the source and target language of a direction such as `de-en`."""
        if name not in self.directions:
            raise InputError(f"unknown direction '{name}': this model translates {', '.join(self.directions)}")
        source, _, target = name.partition("-")
        return self.languages.index(source), self.languages.index(target)


class TranslationModel(nn.Module):
    """`TranslationModel.from_pretrained` loads a trained one."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary):
        super().__init__()
        if len(vocabulary) != config.vocab_size:
            raise InputError(
                f"wrong vocabulary: it has {len(vocabulary)} entries, the model was trained with {config.vocab_size}"
            )
        self.config = config
        self.vocabulary = vocabulary
        self.vocab_size = config.vocab_size
        self.hidden_size = config.transformer.hidden_size
        self.mask_token = vocabulary.mask
        self.max_length = config.transformer.max_positions - 2
        """Maximum subwords in a source or target, no delimiters."""
        self.length_table: LengthTable | None = None
        self.path: Path | None = None
        """The folder it was loaded from; learned orders are stored there."""
        languages = len(config.languages)
        self.transformer = Transformer(
            config.transformer, config.vocab_size, languages if config.language_embeddings else 0, config.activation
        )
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.length = LengthPredictor(config.transformer.hidden_size, config.transformer.max_positions, languages)

    @property
    def device(self) -> torch.device:
        return self.output_bias.device

    @property
    def dtype(self) -> torch.dtype:
        return self.output_bias.dtype

    @property
    def name(self) -> str:
        """Its name in records: that of the folder it was loaded from."""
        return self.path.name if self.path else ""

    @property
    def vocabulary_fingerprint(self) -> str:
        return self.vocabulary.fingerprint

    @property
    def allowed_tokens(self) -> np.ndarray:
        """(vocab_size,) bool: everything but the special tokens, which come first."""
        return np.arange(self.vocab_size) >= self.vocabulary.first_word

    def languages(self, direction: str) -> tuple[str, str]:
        """Source and target language of a direction such as `de-en`."""
        source, target = self.config.direction(direction)
        return self.config.languages[source], self.config.languages[target]

    def blank_canvas(self, source: np.ndarray, length: int, direction: str, key: int = 0) -> Canvas:
        """A target of `length` masks for a source."""
        return Canvas(np.full(length, self.mask_token), source, direction, key)

    def pack(self, canvases: Sequence[Canvas]) -> CanvasBatch:
        languages = np.array([self.config.direction(canvas.task) for canvas in canvases])
        sources = [np.zeros(0, np.int64) if canvas.source is None else canvas.source for canvas in canvases]
        eos = self.vocabulary.eos
        packed_sources = pack_sentences(sources, languages[:, 0], eos)
        return _pairs(packed_sources, pack_sentences([canvas.tokens for canvas in canvases], languages[:, 1], eos))

    def pack_targets(self, sources: PackedBatch, lengths: np.ndarray, languages: np.ndarray) -> CanvasBatch:
        """A target of masks for each source. lengths, languages: (B,) number of masks, and of the target's language."""
        masks = np.full(int(lengths.sum()), self.mask_token, np.int64)
        return _pairs(sources, pack_ids(masks, lengths, languages, self.vocabulary.eos))

    def context(self, batch: CanvasBatch) -> Context:
        assert batch.sources is not None
        kind = FullPairContext if self.config.transformer.source_sees_target else CachedSourceContext
        return kind(self, batch.sources, batch.packed)

    def words(self, texts: Sequence[str], language: str) -> list[str]:
        """Plain sentences as lines of words separated by spaces."""
        text = self._text[language]
        return [text.words(line) for line in texts]

    def encode(self, texts: Sequence[str], language: str) -> list[np.ndarray]:
        """Subword ids of plain sentences, without delimiters."""
        return [np.array(ids, np.int64) for ids in self.vocabulary.encode(self.words(texts, language))]

    def to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        return self.vocabulary.pieces(ids)

    def to_text(self, ids: Sequence[int] | np.ndarray, task: str) -> str:
        return self._text[self.languages(task)[1]].sentence(self.vocabulary.words(ids))

    @cached_property
    def _text(self) -> dict[str, Text]:
        return {language: Text(language, self.config.text) for language in self.config.languages}

    def below_last(self, batch: PackedBatch, pattern: AttentionPattern) -> Tensor:
        """`Transformer.below_last` for a batch on the host."""
        arrays = (batch.tokens, batch.positions, batch.languages)
        tokens, positions, languages = (to_device(array, self.device) for array in arrays)
        return self.transformer.below_last(tokens, positions, languages, pattern)

    def logits(self, hidden: Tensor) -> Tensor:
        """(queries, vocab_size) scores, in float32 when decoding."""
        output = F.linear if torch.is_grad_enabled() else float32_linear
        return output(hidden, self.transformer.tokens.weight, self.output_bias)

    def forward_flops(self, run: float, last: float, predicted: float) -> float:
        """Multiply-adds of a forward pass, given the tokens run, those in the last layer and those predicted."""
        size = self.config.transformer
        everywhere = (12 * (size.num_layers - 1) + 2) * run + 10 * last
        return float(everywhere * size.hidden_size**2 + predicted * self.config.vocab_size * size.hidden_size)

    @torch.inference_mode()
    def predict_lengths(self, sources: list[np.ndarray], direction: str, count: int) -> list[list[int]]:
        """The `count` most likely target lengths for each source, best first."""
        if not self.config.predicts_length:
            raise InputError("this model has no trained length predictor: use length gold, or train it")
        source_language, target_language = self.config.direction(direction)
        packed = pack_sentences(sources, np.full(len(sources), source_language), self.vocabulary.eos)
        lengths, device = packed.sizes - 2, self.device
        below = self.below_last(packed, FullAttention(Segments.of(packed.sizes, device)))
        sentence = to_device(np.repeat(np.arange(len(sources)), packed.sizes), device)
        pooled = pool(below, sentence, len(sources)).to(below.dtype)
        languages = torch.full((len(sources),), target_language, device=device)
        scores = self.length(pooled, to_device(lengths, device), languages)
        return likely_lengths(scores.float().cpu().numpy(), lengths, count, self.max_length)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> "TranslationModel":
        """A model from a folder, a bundled one by name (`de-en`), or one on the Hugging Face hub (`owner/name`).

        Folders of Hugging Face's own XLM models work too.
        """
        from anyorder.models.native.storage import load

        return load(name).to(device=device, dtype=dtype).eval()

    def save_pretrained(self, folder: str | Path, storage: str = "float32") -> None:
        """Write config.json, model.safetensors and tokenizer.json; `storage` is float32, bfloat16 or int8."""
        from anyorder.models.native.storage import save

        save(self, Path(folder), storage)


def _pairs(sources: PackedBatch, targets: PackedBatch) -> CanvasBatch:
    """Targets to fill, with their sources. Delimiters are given."""
    return CanvasBatch(targets, targets.starts + 1, targets.sizes - 2, sources)


class PairContext(Context):
    """Sources, and targets that fill up over repeated calls, both packed as `</s> subwords </s>` end to end.

    In a pair the source comes first. With schedules known in advance, canvases are dropped from the end of the batch,
    so that the remaining ones are always a prefix and nothing moves.
    """

    def __init__(self, model: TranslationModel, sources: PackedBatch, targets: PackedBatch, run: PackedBatch):
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
        self, model: TranslationModel, sources: PackedBatch, targets: PackedBatch, cache: list[Tensor] | None = None
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
        return self._model.transformer(tokens, self._positions, self._languages, pattern, at)

    def select(self, canvases: np.ndarray) -> "CachedSourceContext":
        rows = self._send(ranges(self._pair_starts[canvases], self._pair_sizes[canvases]))
        cache = [keys_values[rows] for keys_values in self._cache]
        return CachedSourceContext(self._model, self._sources.take(canvases), self._targets.take(canvases), cache)


class FullPairContext(PairContext):
    """XLM's attention: the source sees the target, so every call runs both."""

    def __init__(self, model: TranslationModel, sources: PackedBatch, targets: PackedBatch):
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
        return self._model.transformer(*inputs, FullAttention(self._pair_segments), in_pairs)

    def select(self, canvases: np.ndarray) -> "FullPairContext":
        return FullPairContext(self._model, self._sources.take(canvases), self._targets.take(canvases))


class LengthPredictor(nn.Module):
    """A distribution over target length minus source length, both in subwords.

    Its input is the mean state of the source, encoded alone, below the last layer. No gradient flows back: the
    translation model is the same with and without it.
    """

    def __init__(self, width: int, positions: int, languages: int):
        super().__init__()
        self.source_length = nn.Embedding(positions, width)
        self.language = nn.Embedding(languages, width)
        self.inner = Linear(width, width)
        self.outer = Linear(width, 2 * REACH + 1)
        for table in (self.source_length, self.language):
            nn.init.normal_(table.weight, std=width**-0.5)

    def forward(self, pooled: Tensor, lengths: Tensor, languages: Tensor) -> Tensor:
        """pooled: (sentences, width); source lengths, target languages: (sentences,). Scores: (sentences, offsets)"""
        states = pooled.detach() + self.source_length(lengths) + self.language(languages)
        return self.outer(F.gelu(self.inner(states)))


def pool(states: Tensor, sentence: Tensor, sentences: int, counts: Tensor | None = None) -> Tensor:
    """Mean over the counted tokens of each sentence. states: (tokens, width); sentence, counts (bool): (tokens,)"""
    weights = torch.ones_like(states[:, 0], dtype=torch.float32) if counts is None else counts.float()
    states = states.float() * weights[:, None]
    total = states.new_zeros(sentences, states.shape[-1]).index_add_(0, sentence, states)
    number = states.new_zeros(sentences).index_add_(0, sentence, weights)
    return total / number.clamp(min=1)[:, None]


def offset_class(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The predictor's output class for a pair of lengths."""
    return np.clip(target - source, -REACH, REACH) + REACH


def likely_lengths(scores: np.ndarray, source: np.ndarray, count: int, longest: int) -> list[list[int]]:
    """The `count` best target lengths of each sentence, best first, between 1 and `longest`."""
    candidates = source[:, None] + np.arange(-REACH, REACH + 1)
    allowed = np.where((candidates >= 1) & (candidates <= longest), scores, -np.inf)
    # Stable: of equally likely lengths the shortest comes first, on every machine.
    best = np.argsort(-allowed, axis=1, kind="stable")[:, :count]
    chosen = np.take_along_axis(candidates, best, axis=1)
    possible = np.isfinite(np.take_along_axis(allowed, best, axis=1))
    rows = [row[keep].tolist() for row, keep in zip(chosen, possible, strict=True)]
    return [row or [min(int(own), longest)] for row, own in zip(rows, source, strict=True)]


@dataclass(frozen=True)
class LengthTable:
    """The paper's method: the most common target lengths per source length in training."""

    seen: dict[str, dict[int, list[int]]]
    """By direction and source length: target lengths, most frequent first."""

    KEEP = 8

    @classmethod
    def count(cls, lengths: dict[str, tuple[np.ndarray, np.ndarray]]) -> "LengthTable":
        """Count the source and target lengths of all training pairs per direction."""
        seen: dict[str, dict[int, list[int]]] = {}
        for direction, (source, target) in lengths.items():
            pairs, counts = np.unique(np.stack([source, target]), axis=1, return_counts=True)
            # By source length, then by count, then the shorter one: never by where a pair stands in the corpus.
            order = np.lexsort((pairs[1], -counts, pairs[0]))
            rows: dict[int, list[int]] = {}
            for s, t in pairs[:, order].T.tolist():
                if len(rows.setdefault(s, [])) < cls.KEEP:
                    rows[s].append(t)
            seen[direction] = rows
        return cls(seen)

    def candidates(self, direction: str, source: int, count: int) -> list[int]:
        """Falls back to the nearest source length that was seen, shifted."""
        rows = self.seen.get(direction)
        if not rows:
            raise InputError(f"the model's table of lengths is empty for {direction}: use length predicted or gold")
        nearest = min(rows, key=lambda length: (abs(length - source), length))
        shift = source - nearest
        return [max(1, target + shift) for target in rows[nearest][:count]]

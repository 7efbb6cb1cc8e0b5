"""Masked translation: hide part of the target, predict it from the source and what is left. Both directions at once."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import pack
from anyorder.data.store import Store
from anyorder.errors import InputError, check_number
from anyorder.models.attention import AttentionPattern, FullAttention, QueryPositions, Segments, SourceIsolated
from anyorder.models.length import LengthTable, offset_class, pool
from anyorder.models.transformer import TransformerConfig
from anyorder.models.translation import ModelConfig, TranslationModel
from anyorder.orders import make_order
from anyorder.training.batches import (
    IGNORED,
    BatchRows,
    Cursor,
    draw,
    hide,
    offsets_of,
    pad_places,
    pad_to,
    random_for,
    shuffled,
    tail,
    weights_by_corpus,
)
from anyorder.training.task import HostBatch, TextTask
from anyorder.training.validation import Dev

_BY_PAIR = ("source_length", "target_language", "length_class")


@dataclass(frozen=True)
class MaskingConfig:
    """What the model learns from."""

    smoothing: float = 0.1
    """Label smoothing."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often a corpus's pairs come in an epoch, by name; 1 where nothing is said."""
    validation_sentences: int = 500
    """Sentences of the dev split that validation translates, in each direction."""
    validation_length: int = 30
    """Only those with at most so many subwords on both sides; 0 takes any."""

    def check(self) -> None:
        check_number("--masking.smoothing", self.smoothing, at_least=0, below=1)
        check_number("--masking.validation_sentences", self.validation_sentences, at_least=1)
        check_number("--masking.validation_length", self.validation_length, at_least=0)


class TranslationLoss(nn.Module):
    """The loss of one batch: predicted words, and the length predictor's own loss beside it."""

    def __init__(self, model: TranslationModel, smoothing: float):
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(
        self, batch: dict[str, Tensor], longest: int, lengths: dict[str, np.ndarray] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss to descend, and what to report: (words, length)."""
        lengths = lengths or {}

        def segments(name: str) -> Segments:
            return Segments(batch[f"{name}_offsets"], longest, lengths.get(name))

        pairs, halves = segments("pair"), segments("half")
        together = self.model.config.transformer.source_sees_target
        pattern: AttentionPattern = (
            FullAttention(pairs) if together else SourceIsolated(pairs, halves, batch["is_target"])
        )
        inputs = batch["tokens"], batch["positions"], batch["languages"]
        at = QueryPositions(batch["rows"], segments("row"))
        hidden = self.model.transformer(*inputs, pattern, at)
        logits = self.model.logits(hidden.last)
        words = F.cross_entropy(logits.float(), batch["labels"], label_smoothing=self.smoothing)

        below = hidden.below
        if together:  # the predictor must not see the target's length
            with torch.no_grad():
                below = self.model.transformer.below_last(*inputs, FullAttention(halves))
        sentences = len(batch["length_class"])
        pooled = pool(below.detach(), batch["pair_of"], sentences, ~batch["is_target"])
        scores = self.model.length(pooled, batch["source_length"], batch["target_language"])
        length = F.cross_entropy(scores.float(), batch["length_class"])
        return words + length, torch.stack([words.detach(), length.detach()])


class TranslationTask(TextTask):
    """Masked translation on a store's `train` split."""

    reports = ("loss", "length loss")

    def __init__(
        self, store: Store, model: TranslationModel, masking: MaskingConfig, batch_tokens: int, seed: int, fixed: bool
    ):
        masking.check()
        self.learner = model
        self.module = TranslationLoss(model, masking.smoothing)
        self._split = store.split("train")
        self._masking = masking
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._fixed = fixed
        if not self._split.parallel:
            raise InputError(f"{store.path}: the split 'train' is not parallel")
        self._languages = list(store.languages)
        self._sides = [self._split.sides[language] for language in self._languages]
        lengths = np.stack([side.lengths for side in self._sides])
        longest, room = int(lengths.max()), model.config.transformer.max_positions - 2
        if longest > room:
            raise InputError(
                f"{store.path}: has sentences of {longest} subwords, the model has room for {room}; "
                f"set --shape.positions {longest + 2} or prepare with --filters.max-length {room}"
            )
        store.check_ids(self._split, len(model.vocabulary))
        if len(self._languages) != 2:
            raise InputError(f"{store.path}: masked translation needs two languages, found {len(self._languages)}")
        self._pair_sizes = lengths.sum(0) + 4
        self._longest = int(self._pair_sizes.max())
        # Hardly ever reached, and a bound keeps the tables of a batch of fixed shape short.
        self._most_pairs = int(1.25 * batch_tokens / self._pair_sizes.mean()) + 10
        if self._longest > batch_tokens:
            raise InputError(f"a pair has {self._longest} tokens, more than a batch of {batch_tokens} can hold")
        self._weights = weights_by_corpus(self._split.corpora, np.asarray(self._split.corpus), masking.weights)
        self._dev = None
        if "dev" in store:
            self._dev = Dev(store, masking.validation_sentences, masking.validation_length, room)
            source, target = self._languages
            self._dev.check(source, target, "--masking.validation-length")
        if model.length_table is None:
            a, b = self._languages
            model.length_table = LengthTable.count(
                {f"{a}-{b}": (lengths[0], lengths[1]), f"{b}-{a}": (lengths[1], lengths[0])}
            )

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[HostBatch, Cursor]]:
        everything = np.arange(len(self._split))

        def epoch_rows(epoch: int) -> np.ndarray:
            return shuffled(everything, self._weights, random_for(self._seed, "epoch", epoch))

        sizes = self._pair_sizes.__getitem__
        room = self._batch_tokens, self._most_pairs
        for one, behind in draw(cursor, epoch_rows, sizes, room, self._seed, first, rank, world):
            yield self._build(one), behind

    def _build(self, drawn: BatchRows) -> HostBatch:
        vocabulary = self.learner.vocabulary
        pairs = len(drawn.rows)
        target = drawn.random.integers(0, 2, pairs)
        side = np.stack([1 - target, target], axis=1).reshape(-1)
        row = pack(self._sides, side, np.repeat(drawn.rows, 2), side, vocabulary.eos)
        half_sizes = row.sizes
        pair_sizes = half_sizes.reshape(-1, 2).sum(1)
        target_lengths = half_sizes[1::2] - 2
        half_of = np.repeat(np.arange(2 * pairs), half_sizes)
        is_target = half_of % 2 == 1
        inner = row.inner
        words = inner[is_target[inner]]
        hidden = words[hide(target_lengths, drawn.random)]
        labels = row.tokens[hidden]
        tokens = row.tokens.copy()
        tokens[hidden] = vocabulary.mask
        per_pair = np.bincount(half_of[hidden] // 2, minlength=pairs)
        arrays = {
            "tokens": tokens,
            "positions": row.positions,
            "languages": row.languages,
            "is_target": is_target,
            "pair_of": half_of // 2,
            "rows": hidden,
            "labels": labels,
            "source_length": half_sizes[::2] - 2,
            "target_language": target,
            "length_class": offset_class(half_sizes[::2] - 2, target_lengths),
        }
        lengths = {"pair": pair_sizes, "half": half_sizes, "row": per_pair}
        if not self._fixed:
            for name, sizes in lengths.items():
                arrays[f"{name}_offsets"] = offsets_of(sizes, len(sizes))
            return HostBatch(arrays, self._longest, lengths, len(tokens), len(labels))
        return self._pad(arrays, lengths)

    def _pad(self, arrays: dict[str, np.ndarray], lengths: dict[str, np.ndarray]) -> HostBatch:
        """The same batch in shapes that never change, so that it is compiled once.

        What is left of the row becomes sources without a target.
        """
        size = self._batch_tokens
        # A quarter of the tokens is hidden on average; this is about five standard deviations more.
        places = int(0.25 * size + 5.5 * size**0.5)
        most_pairs = self._most_pairs + size // self._longest + 1  # what is left of the row is cut into pairs, too
        real, predicted = len(arrays["tokens"]), len(arrays["rows"])
        rest = tail(real, size, self._longest)
        lengths = {
            "pair": np.concatenate([lengths["pair"], rest]),
            "half": np.concatenate([lengths["half"], np.stack([rest, np.zeros_like(rest)], axis=1).reshape(-1)]),
        }
        arrays["rows"], arrays["labels"] = pad_places(arrays["rows"], arrays["labels"], size, places)
        pair_of = np.repeat(np.arange(len(lengths["pair"])), lengths["pair"])
        lengths["row"] = np.bincount(pair_of[arrays["rows"]], minlength=len(lengths["pair"]))
        fill = {"length_class": IGNORED, "pair_of": most_pairs - 1}
        sizes = {"rows": places, "labels": places} | dict.fromkeys(_BY_PAIR, most_pairs)
        padded = {name: pad_to(array, sizes.get(name, size), fill.get(name, 0)) for name, array in arrays.items()}
        for name, count in (("pair", most_pairs), ("half", 2 * most_pairs), ("row", most_pairs)):
            padded[f"{name}_offsets"] = offsets_of(lengths[name], count)
        return HostBatch(padded, self._longest, None, real, min(predicted, places))

    def validate(self, average: nn.Module) -> dict[str, float]:
        """BLEU of left-to-right decoding with gold lengths, in both directions."""
        if self._dev is None:
            return {}
        assert isinstance(average, TranslationModel)
        model = deepcopy(average).to(torch.bfloat16) if average.device.type == "cuda" else average
        order = make_order("left-to-right")
        return {
            f"bleu {source}-{target}": self._dev.translate(model, order, source, target)[0]
            for source, target in (self._languages, self._languages[::-1])
        }

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "translation",
            "vocabulary": self.learner.vocabulary.fingerprint,
            "pairs": len(self._split),
            "batch_tokens": self._batch_tokens,
            "shape": asdict(self.learner.config.transformer),
            "masking": asdict(self._masking),
        }


def new_model(store: Store, shape: TransformerConfig, init: str | Path | None, seed: int) -> TranslationModel:
    """A fresh model for a store, or the one to start from; that one brings its own shape."""
    if init is None:
        torch.manual_seed(seed)
        config = ModelConfig(shape, len(store.vocabulary), store.languages, store.rules)
        return TranslationModel(config, store.vocabulary)
    model = TranslationModel.from_pretrained(init)
    if model.vocabulary.fingerprint != store.vocabulary.fingerprint:
        raise InputError(
            f"wrong vocabulary: {store.path} has {store.vocabulary.fingerprint}, "
            f"{init} was trained with {model.vocabulary.fingerprint}; prepare with --tokenizer {init}"
        )
    if model.config.languages != store.languages:
        raise InputError(f"{init} knows {model.config.languages}, {store.path} holds {store.languages}")
    if shape not in (TransformerConfig(), model.config.transformer):
        raise InputError(f"--shape and --init exclude each other: {init} has its own shape, {model.config.transformer}")
    model.config = replace(model.config, predicts_length=True)
    return model

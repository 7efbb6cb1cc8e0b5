"""Masked translation: mask part of the target, predict it from the source and the rest. All directions at once.

Knows nothing about how long to train.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import PackedBatch, pack
from anyorder.data.store import Data, ParallelText, Stores, open_stores
from anyorder.errors import InputError, check_number, unknown
from anyorder.models.native.attention import AttentionPattern, FullAttention, QueryPositions, Segments, SourceIsolated
from anyorder.models.native.translation_model import LengthTable, TranslationModel, offset_class, pool
from anyorder.orders import Order, make_order
from anyorder.training.config import DeepNorm
from anyorder.training.objective import IGNORED, HostBatch, TextObjective, sample_mask, weights_by_corpus
from anyorder.training.validation import check_split, stored_validations


@dataclass(frozen=True)
class MaskingConfig:
    """What the model learns from."""

    label_smoothing: float = 0.1
    """Label smoothing: probability mass spread over all tokens except special ones."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often each pair of a corpus is used per epoch, by name (CORPUS, or STORE/CORPUS such as ro-en/news); by
    default 1."""
    only_into: dict[str, str] = field(default_factory=dict)
    """Corpora, named as in weights, to train in one direction only, and its target language: for back-translated text,
    the language of the human-written side."""
    shifted: float = 0.0
    """Fraction of pairs whose positions are shifted to the right, so that the model also learns positions beyond its
    longest training sentence."""
    validation_sentences: int | None = None
    """Validation sentences per direction; by default 500 on CUDA and 50 on the CPU."""
    validation_length: int = 30
    """Validate only on pairs with at most this many subwords per side; 0 for no limit."""
    validation_split: str = "auto"
    """The store's split to validate on; auto is 'selection' if there is one, else 'dev'; none skips validation."""

    def __post_init__(self) -> None:
        check_number("label_smoothing", self.label_smoothing, at_least=0, below=1, config=MaskingConfig)
        check_number("shifted", self.shifted, at_least=0, at_most=1, config=MaskingConfig)
        check_number("validation_sentences", self.validation_sentences, at_least=1, config=MaskingConfig)
        check_number("validation_length", self.validation_length, at_least=0, config=MaskingConfig)


class TranslationLoss(nn.Module):
    """The loss of one batch: that of the masked tokens plus that of the length predictor."""

    def __init__(self, model: TranslationModel, label_smoothing: float):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self, batch: dict[str, Tensor], longest: int, lengths: dict[str, np.ndarray] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss to minimize, and (2,) values to report: the token loss and the length loss."""
        lengths = lengths or {}

        def segments(name: str) -> Segments:
            return Segments(batch[f"{name}_cu_seqlens"], longest, lengths.get(name))

        pairs, halves = segments("row"), segments("half")
        source_sees_target = self.model.config.transformer.source_sees_target
        pattern: AttentionPattern = (
            FullAttention(pairs) if source_sees_target else SourceIsolated(pairs, halves, batch["is_target"])
        )
        inputs = batch["tokens"], batch["positions"], batch["languages"]
        at = QueryPositions(batch["predicted"], segments("predicted"))
        below = self.model.transformer.below_last(*inputs, pattern)
        logits = self.model.logits(self.model.transformer.last(below, pattern, at))
        first_word = self.model.vocabulary.first_word
        token_loss = smoothed_cross_entropy(logits.float(), batch["labels"], self.label_smoothing, first_word)

        if source_sees_target:  # the predictor must not see the target's length
            with torch.no_grad():
                below = self.model.transformer.below_last(*inputs, FullAttention(halves))
        sentences = len(batch["length_class"])
        pooled = pool(below.detach(), batch["pair_of"], sentences, ~batch["is_target"])
        scores = self.model.length(pooled, batch["source_length"], batch["target_language"])
        length_loss = F.cross_entropy(scores.float(), batch["length_class"])
        return token_loss + length_loss, torch.stack([token_loss.detach(), length_loss.detach()])


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float, first_word: int) -> Tensor:
    """Mean cross-entropy with a share `smoothing` of each label's mass spread over all tokens from `first_word` on.

    The tokens before it are special: they are never filled in, and mass on them would change the probability of the
    mask, which some orders use. logits: (N, vocab_size) float32; labels: (N,), ignored ones do not count.
    """
    log_probs = logits.log_softmax(1)
    loss = F.nll_loss(log_probs, labels, ignore_index=IGNORED)
    if not smoothing:
        return loss
    counts = labels != IGNORED
    by_position = log_probs[:, first_word:].mean(1).masked_fill(~counts, 0.0)
    return (1 - smoothing) * loss - smoothing * by_position.sum() / counts.sum()


class TranslationObjective(TextObjective):
    """Masked translation on the `train` splits of stores of two languages each; see `TextObjective`.

    directions: those to learn, such as `de-en`; by default all of the stores.
    """

    reports = ("loss", "length loss")

    def __init__(
        self,
        data: Data,
        model: TranslationModel,
        masking: MaskingConfig,
        batch_tokens: int,
        seed: int,
        fixed: bool,
        directions: Sequence[str] = (),
        deepnorm: DeepNorm = "auto",
    ):
        stores = open_stores(data)
        check_split(stores, masking.validation_split)
        self._pairs = pairs = TranslationPairs(stores, model, directions, masking.weights, masking.only_into)
        # About five standard deviations above the mean, which is a quarter if both directions are learned.
        max_masked = int(max(0.25, pairs.masked_share) * batch_tokens + 5.5 * batch_tokens**0.5)
        super().__init__(model, pairs.sizes, pairs.weights, batch_tokens, seed, fixed, max_masked, deepnorm)
        self.module = TranslationLoss(model, masking.label_smoothing)
        if self._longest > batch_tokens:
            raise InputError(f"a pair has {self._longest} tokens, more than a batch of {batch_tokens} can hold")
        self._record_directions()
        sentences = masking.validation_sentences or (500 if fixed else 50)
        split, self.validations = stored_validations(
            stores, masking.validation_split, pairs.directions, model, sentences, masking.validation_length
        )
        self._masking = replace(masking, validation_sentences=sentences, validation_split=split)

    def _record_directions(self) -> None:
        """Record the directions to learn in the model's config and its length table."""
        model, directions = self.learner, self._pairs.directions
        languages = len(model.config.languages)
        is_all = len(directions) == languages * (languages - 1)
        model.config = replace(model.config, trained_directions=() if is_all else tuple(directions))
        known = model.length_table.seen if model.length_table else {}
        new = {name: self._pairs.lengths(name) for name in directions if name not in known}
        kept = {name: known[name] for name in directions if name in known}
        model.length_table = LengthTable(kept | LengthTable.count(new).seen)

    def build(self, rows: np.ndarray, random: np.random.Generator) -> HostBatch:
        row, target_language = self._pairs.pack(rows, random)
        half_sizes = row.sizes
        source_lengths, target_lengths = half_sizes[::2] - 2, half_sizes[1::2] - 2
        half_of = np.repeat(np.arange(len(half_sizes)), half_sizes)
        positions = row.positions + self._shifts(half_sizes, random)[half_of // 2]
        is_target = half_of % 2 == 1
        inner = row.inner
        target_tokens = inner[is_target[inner]]
        masked = target_tokens[sample_mask(target_lengths, random)]
        tokens = row.tokens.copy()
        tokens[masked] = self.learner.vocabulary.mask
        by_token = {
            "tokens": tokens,
            "positions": positions,
            "languages": row.languages,
            "is_target": is_target,
            "pair_of": half_of // 2,
        }
        by_pair = {
            "source_length": source_lengths,
            "target_language": target_language,
            "length_class": offset_class(source_lengths, target_lengths),
        }
        pair_sizes = half_sizes.reshape(-1, 2).sum(1)
        return self._host_batch(by_token, masked, row.tokens[masked], pair_sizes, half_sizes, by_pair)

    def _shifts(self, half_sizes: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """(pairs,) how far each pair's positions are shifted to the right, at most to the model's last position."""
        pairs = len(half_sizes) // 2
        if not self._masking.shifted:
            return np.zeros(pairs, np.int64)
        room = self.learner.config.transformer.max_positions - half_sizes.reshape(-1, 2).max(1)
        return np.where(random.random(pairs) < self._masking.shifted, random.integers(0, room + 1), 0)

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """BLEU of left-to-right decoding with gold lengths, in every direction."""
        order, model = self.validation_order(average)
        return {
            f"bleu {direction}": validation.evaluate(order, model) for direction, validation in self.validations.items()
        }

    def validation_order(self, average: nn.Module) -> tuple[Order, TranslationModel]:
        assert isinstance(average, TranslationModel)
        model = deepcopy(average).to(torch.bfloat16) if average.device.type == "cuda" else average
        return make_order("left-to-right"), model

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "translation",
            "vocabulary": self.learner.vocabulary.fingerprint,
            "pairs": len(self._pairs),
            "directions": self._pairs.directions,
            "batch_tokens": self._batch_tokens,
            "transformer": self.learner.config.transformer,
            "masking": self._masking,
            "deepnorm": self.deepnorm,
        }


class TranslationPairs:
    """The pairs that masked translation learns from, and the directions in which each is used.

    They are the `train` splits of stores of two languages each.

    directions: those to learn; by default all. weights: how often each pair of a corpus is used per epoch, by name.
    only_into: corpora, by name, to learn in one direction only, and its target language; besides those that the stores
    themselves limit to one direction.
    """

    def __init__(
        self,
        stores: Stores,
        model: TranslationModel,
        directions: Sequence[str],
        weights: Mapping[str, float],
        only_into: Mapping[str, str],
    ):
        for store in stores:
            if len(store.languages) != 2:
                raise InputError(f"{store.path}: masked translation needs two languages, found {len(store.languages)}")
        self._text = text = ParallelText(stores, tuple(store.split("train") for store in stores))
        self._check_room(model)
        self._store_of = stores.choose_directions(directions)
        for number, store in enumerate(stores):
            if number not in self._store_of.values():
                raise InputError(f"{store.path}: holds none of the directions to learn ({', '.join(self._store_of)})")
        lengths = [[split.sides[language].lengths for language in store.languages] for store, split in text.parts]
        self._lengths = np.concatenate(lengths, axis=1)
        """(2, pairs) subwords of both sides."""
        self.sizes = self._lengths.sum(0) + 4
        """(pairs,) tokens, delimiters included."""
        self._languages = np.array([model.config.languages.index(language) for language in text.languages])
        self._eos = model.vocabulary.eos
        self._allowed = self._allowed_targets(only_into)
        self._both = self._allowed[:, 0] & self._allowed[:, 1]
        self._sides = 2 if self._both.any() else 1
        self.weights = weights_by_corpus(text.corpora, text.corpus, text.by_corpus(weights))
        """(pairs,) how often each is used per epoch; None if each is used once."""
        if not self._allowed.any(1).all():  # such as back-translated text whose direction is not learned
            self.weights = np.where(self._allowed.any(1), 1.0 if self.weights is None else self.weights, 0.0)
        for direction in self.directions:
            if not len(self.lengths(direction)[0]):
                raise InputError(f"no corpus is learned in the direction {direction}: do not limit all with only_into")
        if self.weights is not None and self.weights.sum() < 1:
            raise InputError("less than one pair of an epoch is learned in one of the directions")

    def __len__(self) -> int:
        return len(self._text)

    @property
    def directions(self) -> list[str]:
        """The directions to learn."""
        return list(self._store_of)

    @property
    def masked_share(self) -> float:
        """The mean share of masked tokens: 1 to T of a target's T subwords are masked, every number equally likely."""
        first, second = self._lengths
        targets = np.where(self._both, (first + second) / 2, np.where(self._allowed[:, 1], second, first))
        return float(np.average((targets + 1) / 2, weights=self.weights) / np.average(self.sizes, weights=self.weights))

    def _check_room(self, model: TranslationModel) -> None:
        """Raise an `InputError` if a sentence is too long for the model, or holds a subword that it does not know."""
        room = model.max_length
        for store, split in self._text.parts:
            longest = max(int(side.lengths.max()) for side in split.sides.values())
            if longest > room:
                raise InputError(
                    f"{store.path}: has sentences of {longest} subwords, the model has room for {room}; "
                    f"raise max_positions to {longest + 2} or prepare the data with max_length {room}"
                )
            store.check_ids(split, len(model.vocabulary))

    def _allowed_targets(self, only_into: Mapping[str, str]) -> np.ndarray:
        """(pairs, 2) bool: the first or the second side of the pair's store may be the target."""
        text = self._text
        given = text.by_corpus(only_into)
        allowed: list[list[bool]] = []
        corpora = iter(text.corpora)  # of all stores, one after the other
        for store, split in text.parts:
            first, second = store.languages
            learned = {first: f"{second}-{first}" in self._store_of, second: f"{first}-{second}" in self._store_of}
            for name in split.corpora:
                corpus = next(corpora)
                stored, chosen = split.only_into.get(name), given.get(corpus)
                if chosen is not None and chosen not in learned:
                    raise unknown(f"language of corpus '{corpus}'", chosen, learned)
                allowed.append(
                    [learned[code] and stored in (None, code) and chosen in (None, code) for code in learned]
                )
        return np.array(allowed)[text.corpus]

    def lengths(self, direction: str) -> tuple[np.ndarray, np.ndarray]:
        """Source and target lengths of all pairs that are learned in this direction."""
        store = self._store_of[direction]
        target = self._text.stores[store].languages.index(direction.split("-")[1])
        rows = np.flatnonzero((self._text.store == store) & self._allowed[:, target])
        return self._lengths[1 - target, rows], self._lengths[target, rows]

    def pack(self, rows: np.ndarray, random: np.random.Generator) -> tuple[PackedBatch, np.ndarray]:
        """Some of the pairs, by index, each in one of its directions, chosen at random; and their target languages.

        Source, target, source, target, and so on; (pairs,) languages.
        """
        text = self._text
        drawn = random.integers(0, self._sides, len(rows))
        target = np.where(self._both[rows], drawn, self._allowed[rows, 1])
        first = text.first_side[text.store[rows]]
        side = np.stack([first + 1 - target, first + target], axis=1).reshape(-1)
        language = self._languages[side]
        return pack(text.sides, side, np.repeat(text.row[rows], 2), language, self._eos), language[1::2]

"""Masked translation: mask part of the target, predict it from the source and the rest. All directions at once.

Knows nothing about how long to train.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.store import Data, open_stores
from anyorder.errors import InputError, check_number
from anyorder.models.native.attention import AttentionPattern, FullAttention, QueryPositions, Segments, SourceIsolated
from anyorder.models.native.translation_model import LengthTable, TranslationModel, offset_class, pool
from anyorder.orders import Order, make_order
from anyorder.training.batches import IGNORED, sample_mask
from anyorder.training.config import DeepNorm
from anyorder.training.text_objective import HostBatch, TextObjective
from anyorder.training.translation_pairs import TranslationPairs
from anyorder.training.validation import describe_splits, stored_validations, validation_splits


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
        splits = validation_splits(stores, masking.validation_split)
        sentences = masking.validation_sentences or (500 if fixed else 50)
        self._masking = masking = replace(
            masking, validation_sentences=sentences, validation_split=describe_splits(stores, splits)
        )
        self._pairs = pairs = TranslationPairs(stores, model, directions, masking.weights, masking.only_into)
        # About five standard deviations above the mean, which is a quarter if both directions are learned.
        max_masked = int(max(0.25, pairs.masked_share) * batch_tokens + 5.5 * batch_tokens**0.5)
        super().__init__(model, pairs.sizes, pairs.weights, batch_tokens, seed, fixed, max_masked, deepnorm)
        self.module = TranslationLoss(model, masking.label_smoothing)
        if self._longest > batch_tokens:
            raise InputError(f"a pair has {self._longest} tokens, more than a batch of {batch_tokens} can hold")
        self._record_directions()
        self.validations = stored_validations(
            stores, splits, pairs.directions, model, sentences, masking.validation_length
        )

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

    def _build(self, rows: np.ndarray, random: np.random.Generator) -> HostBatch:
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
            f"bleu {direction}": validation.evaluate(order, model).score
            for direction, validation in self.validations.items()
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

"""Masked translation: mask part of the target, predict it from the source and the rest. All directions at once.

Knows nothing about how long to train.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.stores import Data, open_stores
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
    iter_batches,
    pad_predictions,
    pad_to,
    padded_cu_seqlens,
    random_for,
    sample_mask,
    shuffled,
    tail_lengths,
)
from anyorder.training.config import choose_by_device
from anyorder.training.deepnorm import DeepNorm, scale_branches, use_deepnorm
from anyorder.training.objective import HostBatch, TextObjective
from anyorder.training.translation_pairs import TranslationPairs
from anyorder.training.validation import describe_splits, validation_sets, validation_splits

_BY_PAIR = ("source_length", "target_language", "length_class")


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

        pairs, halves = segments("pair"), segments("half")
        source_sees_target = self.model.config.transformer.source_sees_target
        pattern: AttentionPattern = (
            FullAttention(pairs) if source_sees_target else SourceIsolated(pairs, halves, batch["is_target"])
        )
        inputs = batch["tokens"], batch["positions"], batch["languages"]
        at = QueryPositions(batch["masked"], segments("masked"))
        hidden = self.model.transformer(*inputs, pattern, at)
        logits = self.model.logits(hidden.last)
        first_word = self.model.vocabulary.first_word
        token_loss = smoothed_cross_entropy(logits.float(), batch["labels"], self.label_smoothing, first_word)

        below = hidden.below
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
    """Masked translation on the `train` splits of one or several stores.

    Args:
        data: The text: stores of two languages each.
        model: The model to train.
        masking: The objective and its data.
        batch_tokens: Tokens per batch.
        seed: Seed for the batches.
        fixed: Whether all batches have the same shapes, for CUDA.
        directions: The directions to learn, such as `de-en`; by default all directions of the stores.
        deepnorm: Whether to train with DeepNorm; see `TextTrainConfig`.
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
        masking = replace(with_sizes(masking, fixed), validation_split=describe_splits(stores, splits))
        self.learner = model
        self.module = TranslationLoss(model, masking.label_smoothing)
        self._masking = masking
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._fixed = fixed
        self.deepnorm = use_deepnorm(deepnorm, model.config.transformer.num_layers)
        self._pairs = TranslationPairs(stores, model, directions, masking.weights, masking.only_into)
        self._directions = self._pairs.directions
        self._longest = int(self._pairs.sizes.max())
        # Rarely reached; the bound keeps the tables of fixed-shape batches small.
        self._max_pairs = int(1.25 * batch_tokens / self._pairs.sizes.mean()) + 10
        # About five standard deviations above the mean, which is a quarter if both directions are learned.
        self._max_masked = int(max(0.25, self._pairs.masked_share) * batch_tokens + 5.5 * batch_tokens**0.5)
        if self._longest > batch_tokens:
            raise InputError(f"a pair has {self._longest} tokens, more than a batch of {batch_tokens} can hold")
        assert masking.validation_sentences is not None
        self._validation = validation_sets(
            stores, splits, self._directions, masking.validation_sentences, masking.validation_length, model.max_length
        )
        self._record_directions()

    def _record_directions(self) -> None:
        """Record the directions to learn in the model's config and its length table."""
        model, directions = self.learner, self._directions
        languages = len(model.config.languages)
        is_all = len(directions) == languages * (languages - 1)
        model.config = replace(model.config, trained_directions=() if is_all else tuple(directions))
        known = model.length_table.seen if model.length_table else {}
        new = {name: self._pairs.lengths(name) for name in directions if name not in known}
        kept = {name: known[name] for name in directions if name in known}
        model.length_table = LengthTable(kept | LengthTable.count(new).seen)

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[HostBatch, Cursor]]:
        pairs = np.arange(len(self._pairs))

        def epoch_rows(epoch: int) -> np.ndarray:
            return shuffled(pairs, self._pairs.weights, random_for(self._seed, "epoch", epoch))

        sizes = self._pairs.sizes.__getitem__
        for rows, behind in iter_batches(
            cursor, epoch_rows, sizes, self._batch_tokens, self._max_pairs, self._seed, first, rank, world
        ):
            yield self._build(rows), behind

    def _build(self, batch: BatchRows) -> HostBatch:
        vocabulary = self.learner.vocabulary
        pairs = len(batch.rows)
        directed = self._pairs.pack(batch)
        row = directed.packed
        half_sizes = row.sizes
        pair_sizes = half_sizes.reshape(-1, 2).sum(1)
        target_lengths = half_sizes[1::2] - 2
        half_of = np.repeat(np.arange(2 * pairs), half_sizes)
        positions = row.positions + self._shifts(half_sizes, batch.random)[half_of // 2]
        is_target = half_of % 2 == 1
        inner = row.inner
        target_tokens = inner[is_target[inner]]
        masked = target_tokens[sample_mask(target_lengths, batch.random)]
        labels = row.tokens[masked]
        tokens = row.tokens.copy()
        tokens[masked] = vocabulary.mask
        per_pair = np.bincount(half_of[masked] // 2, minlength=pairs)
        arrays = {
            "tokens": tokens,
            "positions": positions,
            "languages": row.languages,
            "is_target": is_target,
            "pair_of": half_of // 2,
            "masked": masked,
            "labels": labels,
            "source_length": half_sizes[::2] - 2,
            "target_language": directed.target_language,
            "length_class": offset_class(half_sizes[::2] - 2, target_lengths),
        }
        lengths = {"pair": pair_sizes, "half": half_sizes, "masked": per_pair}
        if not self._fixed:
            for name, sizes in lengths.items():
                arrays[f"{name}_cu_seqlens"] = padded_cu_seqlens(sizes, len(sizes))
            return HostBatch(arrays, self._longest, lengths, len(tokens), len(labels))
        return self._pad(arrays, lengths)

    def _shifts(self, half_sizes: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """(pairs,) how far each pair's positions are shifted to the right, at most to the model's last position."""
        pairs = len(half_sizes) // 2
        if not self._masking.shifted:
            return np.zeros(pairs, np.int64)
        room = self.learner.config.transformer.max_positions - half_sizes.reshape(-1, 2).max(1)
        return np.where(random.random(pairs) < self._masking.shifted, random.integers(0, room + 1), 0)

    def _pad(self, arrays: dict[str, np.ndarray], lengths: dict[str, np.ndarray]) -> HostBatch:
        """The same batch padded to static shapes, so that the loss is compiled only once.

        The rest of the row is filled with sources without a target.
        """
        size = self._batch_tokens
        max_masked = self._max_masked
        max_pairs = self._max_pairs + size // self._longest + 1  # the rest of the row is split into pairs, too
        real, predicted = len(arrays["tokens"]), len(arrays["masked"])
        rest = tail_lengths(real, size, self._longest)
        lengths = {
            "pair": np.concatenate([lengths["pair"], rest]),
            "half": np.concatenate([lengths["half"], np.stack([rest, np.zeros_like(rest)], axis=1).reshape(-1)]),
        }
        arrays["masked"], arrays["labels"] = pad_predictions(arrays["masked"], arrays["labels"], size, max_masked)
        pair_of = np.repeat(np.arange(len(lengths["pair"])), lengths["pair"])
        lengths["masked"] = np.bincount(pair_of[arrays["masked"]], minlength=len(lengths["pair"]))
        fill = {"length_class": IGNORED, "pair_of": max_pairs - 1}
        sizes = {"masked": max_masked, "labels": max_masked} | dict.fromkeys(_BY_PAIR, max_pairs)
        padded = {name: pad_to(array, sizes.get(name, size), fill.get(name, 0)) for name, array in arrays.items()}
        for name, count in (("pair", max_pairs), ("half", 2 * max_pairs), ("masked", max_pairs)):
            padded[f"{name}_cu_seqlens"] = padded_cu_seqlens(lengths[name], count)
        return HostBatch(padded, self._longest, None, real, min(predicted, max_masked))

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """BLEU of left-to-right decoding with gold lengths, in every direction."""
        model, order = _for_inference(average), make_order("left-to-right")
        return {
            f"bleu {direction}": validation.evaluate(model, order, direction).score
            for direction, validation in self._validation.items()
        }

    def validation_passes(self, quick: bool = False) -> int:
        return max(1, len(self._validation))

    def estimate_pass_seconds(self, average: nn.Module) -> float:
        for direction, validation in self._validation.items():
            return validation.estimate_seconds(_for_inference(average), make_order("left-to-right"), direction)
        return 0.0

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "translation",
            "vocabulary": self.learner.vocabulary.fingerprint,
            "pairs": len(self._pairs),
            "directions": self._directions,
            "batch_tokens": self._batch_tokens,
            "transformer": asdict(self.learner.config.transformer),
            "masking": asdict(self._masking),
            "deepnorm": self.deepnorm,
        }

    def fingerprint_defaults(self) -> dict[str, dict[str, object]]:
        return {"transformer": asdict(TransformerConfig()), "masking": asdict(with_sizes(MaskingConfig(), self._fixed))}


def with_sizes(masking: MaskingConfig, cuda: bool) -> MaskingConfig:
    """The config with default values for sizes that were not set."""
    device = torch.device("cuda" if cuda else "cpu")
    sentences = choose_by_device(masking.validation_sentences, device, cuda=500, cpu=50)
    return replace(masking, validation_sentences=sentences)


def _for_inference(average: nn.Module) -> TranslationModel:
    assert isinstance(average, TranslationModel)
    return deepcopy(average).to(torch.bfloat16) if average.device.type == "cuda" else average


def new_model(
    data: Data, transformer: TransformerConfig, init: str | Path | None, seed: int, deepnorm: DeepNorm = "auto"
) -> TranslationModel:
    """A new model for the languages of one or several stores, or `init`, which has its own `TransformerConfig`.

    deepnorm: Whether to initialize a new model with DeepNorm; see `TextTrainConfig`.
    """
    stores = open_stores(data)
    where = ", ".join(str(store.path) for store in stores)
    if init is None:
        torch.manual_seed(seed)
        config = ModelConfig(transformer, len(stores.vocabulary), stores.languages, stores.text)
        model = TranslationModel(config, stores.vocabulary)
        if use_deepnorm(deepnorm, transformer.num_layers):
            scale_branches(model.transformer)
        return model
    model = TranslationModel.from_pretrained(init)
    if model.vocabulary.fingerprint != stores.vocabulary.fingerprint:
        raise InputError(
            f"wrong vocabulary: {where} has {stores.vocabulary.fingerprint}, "
            f"{init} was trained with {model.vocabulary.fingerprint}; prepare the data with the tokenizer of {init}"
        )
    if not set(stores.languages) <= set(model.config.languages):
        raise InputError(f"{init} knows {model.config.languages}, {where} holds {stores.languages}")
    if transformer not in (TransformerConfig(), model.config.transformer):
        raise InputError(f"cannot be set: {init} has its own, {model.config.transformer}", "transformer")
    model.config = replace(model.config, predicts_length=True)
    return model

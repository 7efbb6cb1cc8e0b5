"""Masked translation: mask part of the target, predict it from the source and the rest. All directions at once.

Knows nothing of how long to train.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import pack
from anyorder.data.store import Store
from anyorder.errors import InputError, check_number, unknown
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
    weights_by_corpus,
)
from anyorder.training.config import choose_by_device
from anyorder.training.task import HostBatch, TextTask
from anyorder.training.validation import ValidationSet, validation_split

_BY_PAIR = ("source_length", "target_language", "length_class")


@dataclass(frozen=True)
class MaskingConfig:
    """What the model learns from."""

    label_smoothing: float = 0.1
    """Probability that the labels share with all tokens that a target can hold: special tokens get none of it."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often a corpus's pairs come in an epoch, by name; 1 if not given."""
    validation_sentences: int | None = None
    """Sentences that validation translates, in each direction; chosen by the device if not given: 500 on CUDA, 50 on
    the CPU."""
    validation_length: int = 30
    """Only those with at most so many subwords on both sides; 0 takes any."""
    validation_split: str = "auto"
    """The store's split that they come from; auto is 'selection' where there is one, else 'dev'; none leaves validation
    out."""

    def __post_init__(self) -> None:
        check_number("label_smoothing", self.label_smoothing, at_least=0, below=1, config=MaskingConfig)
        check_number("validation_sentences", self.validation_sentences, at_least=1, config=MaskingConfig)
        check_number("validation_length", self.validation_length, at_least=0, config=MaskingConfig)


class TranslationLoss(nn.Module):
    """The loss of one batch: of the masked tokens, plus that of the length predictor."""

    def __init__(self, model: TranslationModel, label_smoothing: float):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self, batch: dict[str, Tensor], longest: int, lengths: dict[str, np.ndarray] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss to minimize, and (2,) what to report: the tokens' loss and the length's."""
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
    """Mean cross-entropy with labels that share `smoothing` of their mass with all tokens from `first_word` on.

    The tokens before it are special: none of them is ever filled in, and mass on them would change the probability of
    the mask, which some orders look at. logits: (N, vocab_size) float32; labels: (N,), ignored ones do not count.
    """
    log_probs = logits.log_softmax(1)
    loss = F.nll_loss(log_probs, labels, ignore_index=IGNORED)
    if not smoothing:
        return loss
    counts = labels != IGNORED
    by_position = log_probs[:, first_word:].mean(1).masked_fill(~counts, 0.0)
    return (1 - smoothing) * loss - smoothing * by_position.sum() / counts.sum()


class TranslationTask(TextTask):
    """Masked translation on a store's `train` split.

    Args:
        store: The text.
        model: What learns.
        masking: The objective and its data.
        batch_tokens: Tokens in a batch.
        seed: Seed of the batches.
        fixed: Whether all batches have the same shapes, for CUDA.
        directions: The directions to learn, such as `de-en`; every one of the store's if there are none.
    """

    reports = ("loss", "length loss")

    def __init__(
        self,
        store: Store,
        model: TranslationModel,
        masking: MaskingConfig,
        batch_tokens: int,
        seed: int,
        fixed: bool,
        directions: Sequence[str] = (),
    ):
        masking = replace(
            with_sizes(masking, fixed), validation_split=validation_split(store, masking.validation_split)
        )
        self.learner = model
        self.module = TranslationLoss(model, masking.label_smoothing)
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
        longest, room = int(lengths.max()), model.max_length
        if longest > room:
            raise InputError(
                f"{store.path}: has sentences of {longest} subwords, the model has room for {room}; "
                f"raise max_positions to {longest + 2} or prepare the data with max_length {room}"
            )
        store.check_ids(self._split, len(model.vocabulary))
        if len(self._languages) != 2:
            raise InputError(f"{store.path}: masked translation needs two languages, found {len(self._languages)}")
        self._directions = _directions(self._languages, directions)
        self._target_sides = np.array(sorted(self._languages.index(to) for _, to in self._directions.values()))
        self._pair_sizes = lengths.sum(0) + 4
        self._longest = int(self._pair_sizes.max())
        # Hardly ever reached, and a bound keeps the tables of a batch of fixed shape short.
        self._max_pairs = int(1.25 * batch_tokens / self._pair_sizes.mean()) + 10
        if self._longest > batch_tokens:
            raise InputError(f"a pair has {self._longest} tokens, more than a batch of {batch_tokens} can hold")
        self._weights = weights_by_corpus(self._split.corpora, np.asarray(self._split.corpus), masking.weights)
        self._validation = None
        if masking.validation_split in store:
            assert masking.validation_sentences is not None
            self._validation = ValidationSet(
                store, masking.validation_split, masking.validation_sentences, masking.validation_length, room
            )
            self._validation.check(*self._languages)
        self._record_directions(dict(zip(self._languages, lengths, strict=True)))

    def _record_directions(self, lengths: dict[str, np.ndarray]) -> None:
        """The model's config and its table of lengths name the directions it learns. lengths: by language, (pairs,)."""
        model, directions = self.learner, self._directions
        is_all = len(directions) == len(_directions(self._languages, ()))
        model.config = replace(model.config, trained_directions=() if is_all else tuple(directions))
        known = model.length_table.seen if model.length_table else {}
        new = {name: (lengths[a], lengths[b]) for name, (a, b) in directions.items() if name not in known}
        kept = {name: known[name] for name in directions if name in known}
        model.length_table = LengthTable(kept | LengthTable.count(new).seen)

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[HostBatch, Cursor]]:
        pairs = np.arange(len(self._split))

        def epoch_rows(epoch: int) -> np.ndarray:
            return shuffled(pairs, self._weights, random_for(self._seed, "epoch", epoch))

        sizes = self._pair_sizes.__getitem__
        for rows, behind in iter_batches(
            cursor, epoch_rows, sizes, self._batch_tokens, self._max_pairs, self._seed, first, rank, world
        ):
            yield self._build(rows), behind

    def _build(self, batch: BatchRows) -> HostBatch:
        vocabulary = self.learner.vocabulary
        pairs = len(batch.rows)
        target = self._target_sides[batch.random.integers(0, len(self._target_sides), pairs)]
        side = np.stack([1 - target, target], axis=1).reshape(-1)
        row = pack(self._sides, side, np.repeat(batch.rows, 2), side, vocabulary.eos)
        half_sizes = row.sizes
        pair_sizes = half_sizes.reshape(-1, 2).sum(1)
        target_lengths = half_sizes[1::2] - 2
        half_of = np.repeat(np.arange(2 * pairs), half_sizes)
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
            "positions": row.positions,
            "languages": row.languages,
            "is_target": is_target,
            "pair_of": half_of // 2,
            "masked": masked,
            "labels": labels,
            "source_length": half_sizes[::2] - 2,
            "target_language": target,
            "length_class": offset_class(half_sizes[::2] - 2, target_lengths),
        }
        lengths = {"pair": pair_sizes, "half": half_sizes, "masked": per_pair}
        if not self._fixed:
            for name, sizes in lengths.items():
                arrays[f"{name}_cu_seqlens"] = padded_cu_seqlens(sizes, len(sizes))
            return HostBatch(arrays, self._longest, lengths, len(tokens), len(labels))
        return self._pad(arrays, lengths)

    def _pad(self, arrays: dict[str, np.ndarray], lengths: dict[str, np.ndarray]) -> HostBatch:
        """The same batch in shapes that never change, so that the loss is compiled once.

        The rest of the row becomes sources without a target.
        """
        size = self._batch_tokens
        # A quarter of the tokens is masked on average; this is about five standard deviations more.
        max_masked = int(0.25 * size + 5.5 * size**0.5)
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
        if self._validation is None:
            return {}
        model, order = _for_inference(average), make_order("left-to-right")
        return {
            f"bleu {direction}": self._validation.evaluate(model, order, direction).bleu
            for direction in self._directions
        }

    def validation_passes(self, quick: bool = False) -> int:
        return len(self._directions)

    def estimate_pass_seconds(self, average: nn.Module) -> float:
        if self._validation is None:
            return 0.0
        direction = next(iter(self._directions))
        return self._validation.estimate_seconds(_for_inference(average), make_order("left-to-right"), direction)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "translation",
            "vocabulary": self.learner.vocabulary.fingerprint,
            "pairs": len(self._split),
            "directions": list(self._directions),
            "batch_tokens": self._batch_tokens,
            "transformer": asdict(self.learner.config.transformer),
            "masking": asdict(self._masking),
        }


def _directions(languages: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Source and target of each of these directions, always in the same sequence; of all if no name is given."""
    known = {f"{a}-{b}": (a, b) for a in languages for b in languages if a != b}
    for name in names:
        if name not in known:
            raise unknown("direction", name, known)
    return {name: pair for name, pair in known.items() if not names or name in names}


def with_sizes(masking: MaskingConfig, cuda: bool) -> MaskingConfig:
    """The config with every size that was not given chosen by the device."""
    device = torch.device("cuda" if cuda else "cpu")
    sentences = choose_by_device(masking.validation_sentences, device, cuda=500, cpu=50)
    return replace(masking, validation_sentences=sentences)


def _for_inference(average: nn.Module) -> TranslationModel:
    assert isinstance(average, TranslationModel)
    return deepcopy(average).to(torch.bfloat16) if average.device.type == "cuda" else average


def new_model(store: Store, transformer: TransformerConfig, init: str | Path | None, seed: int) -> TranslationModel:
    """A new model for a store, or the one to start from, which brings its own `TransformerConfig`."""
    if init is None:
        torch.manual_seed(seed)
        config = ModelConfig(transformer, len(store.vocabulary), store.languages, store.text)
        return TranslationModel(config, store.vocabulary)
    model = TranslationModel.from_pretrained(init)
    if model.vocabulary.fingerprint != store.vocabulary.fingerprint:
        raise InputError(
            f"wrong vocabulary: {store.path} has {store.vocabulary.fingerprint}, "
            f"{init} was trained with {model.vocabulary.fingerprint}; prepare the data with the tokenizer of {init}"
        )
    if model.config.languages != store.languages:
        raise InputError(f"{init} knows {model.config.languages}, {store.path} holds {store.languages}")
    if transformer not in (TransformerConfig(), model.config.transformer):
        raise InputError(f"cannot be set: {init} has its own, {model.config.transformer}", "transformer")
    model.config = replace(model.config, predicts_length=True)
    return model

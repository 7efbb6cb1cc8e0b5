"""Training objectives: an `Objective` provides batches, a loss and a validation. `loop.py` runs it.

An epoch is a list of batches, and a batch is made of rows, which are never split: a sentence, or a pair of sentences.
Batches depend only on the seed and a cursor. Batch n is the same no matter which process asks for it, so several
processes train as one would. Only NumPy makes them, in a thread ahead of the device.

`TextObjective` is what the objectives on text share: rows drawn by their number of tokens, and batches of fixed shapes
on CUDA.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from anyorder.data.packing import starts_of
from anyorder.data.random_streams import random_for
from anyorder.device import to_device
from anyorder.errors import InputError
from anyorder.models.base import SavedModel
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import Order
from anyorder.training.config import DeepNorm
from anyorder.training.optimizer import branch_rates, use_deepnorm
from anyorder.training.run_folder import Cursor
from anyorder.training.validation import Validation

Batch = TypeVar("Batch")
IGNORED = -100
"""The label of a position that is not predicted; `cross_entropy` ignores it."""
MAX_REPEATS = 1000
"""The largest weight of a corpus; it is limited because an epoch is held in memory."""


class Objective(ABC, Generic[Batch]):
    """A training objective."""

    learner: nn.Module
    """The module to train."""
    module: nn.Module
    """Called with each minibatch; returns the loss to minimize and the numbers to report."""
    reports: tuple[str, ...]
    """Names of the reported numbers. The loop stops if one is not finite."""
    shown: tuple[str, ...]
    """The reports that the progress bar shows."""
    unit: str
    """What the speed counts, such as tokens or rollouts."""
    seed: int
    """Seed of the epochs and batches."""
    epochs: int = 1
    """Passes over each batch."""
    folder: str = "model"
    """The subfolder of the run folder that `save` writes."""
    compiles: bool = True
    """Whether the module's shapes are static on CUDA, so that compiling it pays off."""

    on_progress: Callable[[str], None] = staticmethod(lambda text: None)
    """Called with what is going on inside of a step or a validation."""
    validations: Mapping[str, Validation] = {}
    """What it validates on, by task."""
    comparisons: int = 0
    """How many more times it decodes each, for scores that are only for comparison."""

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[Batch, Cursor]]:
        """This process's batches, starting at number `first`, each with the cursor after it. Never ends.

        `cursor` was returned earlier, and is at or before batch `first`.
        """
        while True:
            for rows in self.epoch_batches(cursor.epoch)[cursor.offset :]:
                number = cursor.batch
                cursor = replace(cursor, batch=number + 1, offset=cursor.offset + 1)
                if number >= first and number % world == rank:
                    yield self.build(rows, random_for(self.seed, "batch", number)), cursor
            cursor = replace(cursor, epoch=cursor.epoch + 1, offset=0)

    @abstractmethod
    def epoch_batches(self, epoch: int) -> Sequence[Any]:
        """The batches of an epoch, in order: the rows of the data that each holds, by index."""

    @abstractmethod
    def build(self, rows: Any, random: np.random.Generator) -> Batch:
        """The batch with these rows. random: the random numbers of this batch alone."""

    @abstractmethod
    def minibatches(self, batch: Batch, device: torch.device) -> list[dict[str, Any]]:
        """The module's arguments, one set per optimizer step; every batch has the same number of sets."""

    @abstractmethod
    def cost(self, batch: Batch) -> tuple[int, float]:
        """How many units a batch has, and the floating-point operations it takes."""

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """Scores of the averaged weights, by name; empty if there is nothing to validate on.

        quick: leave out scores that are only for comparison.
        """
        return {}

    def validation_order(self, average: nn.Module) -> tuple[Order, SavedModel]:
        """The order and the model that are validated."""
        raise NotImplementedError

    def selection_metric(self, scores: dict[str, float]) -> float:
        """The score that selects the best checkpoint; higher is better."""
        return sum(scores.values()) / len(scores)

    @abstractmethod
    def save(self, average: nn.Module, out: Path) -> None:
        """Write the result to the run folder."""

    def rate_scales(self) -> dict[nn.Parameter, float]:
        """Learning-rate factors of the parameters that do not get the full learning rate."""
        return {}

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed; configs as they are."""


@dataclass(frozen=True)
class HostBatch:
    """A batch of text, on the host."""

    arrays: dict[str, np.ndarray]
    """Arrays to move to the device."""
    longest: int
    """Upper bound on the segment lengths."""
    lengths: dict[str, np.ndarray] | None
    """Segment lengths by name, if attention needs them on the host."""
    tokens: int
    """Number of real tokens, without padding."""
    predicted: int
    """Number of predicted positions."""


class TextObjective(Objective[HostBatch]):
    """Training a model to predict tokens of text.

    sizes: (rows,) tokens of each row, delimiters included. weights: (rows,) how often each is used per epoch; None if
    each is used once. fixed: whether all batches have the same shapes, for CUDA. max_predicted: maximum number of
    predicted positions in such batches. deepnorm: see `TextTrainConfig`.
    """

    learner: TranslationModel
    unit = "tokens"
    shown = ("loss",)

    def __init__(
        self,
        model: TranslationModel,
        sizes: np.ndarray,
        weights: np.ndarray | None,
        batch_tokens: int,
        seed: int,
        fixed: bool,
        max_predicted: int,
        deepnorm: DeepNorm,
    ):
        self.learner = model
        self.deepnorm = use_deepnorm(deepnorm, model.config.transformer.num_layers)
        self._sizes, self._weights = sizes, weights
        self._batch_tokens, self.seed, self._fixed = batch_tokens, seed, fixed
        self._longest = int(sizes.max())
        # Rarely reached; the bound keeps the tables of fixed-shape batches small.
        self._max_rows = int(1.25 * batch_tokens / sizes.mean()) + 10
        self._max_predicted = max_predicted

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        rows = shuffled(np.arange(len(self._sizes)), self._weights, random_for(self.seed, "epoch", epoch))
        boundaries = batch_boundaries(self._sizes[rows], self._batch_tokens, self._max_rows)
        return [rows[start:stop] for start, stop in pairwise(boundaries)]

    def _host_batch(
        self,
        by_token: dict[str, np.ndarray],
        predicted: np.ndarray,
        labels: np.ndarray,
        sizes: np.ndarray,
        halves: np.ndarray | None = None,
        by_row: dict[str, np.ndarray] | None = None,
    ) -> HostBatch:
        """A batch of these arrays, padded if shapes are fixed, so that the loss is compiled only once.

        by_token, by_row: arrays with a number per token or row. predicted: positions to predict, ascending. labels:
        their tokens. sizes: (rows,) tokens of each row. halves: (2 * rows,) those of its source and target, if rows are
        pairs.
        """
        real, count, size, rows = len(by_token["tokens"]), len(predicted), self._batch_tokens, len(sizes)
        by_row = by_row or {}
        if self._fixed:
            rows = self._max_rows + size // self._longest + 1  # the padding is split into rows, too
            rest = tail_lengths(real, size, self._longest)
            sizes = np.concatenate([sizes, rest])
            if halves is not None:  # sources without a target
                halves = np.concatenate([halves, np.stack([rest, np.zeros_like(rest)], axis=1).reshape(-1)])
            predicted, labels = pad_predictions(predicted, labels, size, self._max_predicted)
            # Padding belongs to the last row, which is not a real one and has no length to predict.
            fill = {"length_class": IGNORED, "pair_of": rows - 1}
            by_token = {name: pad_to(array, size, fill.get(name, 0)) for name, array in by_token.items()}
            by_row = {name: pad_to(array, rows, fill.get(name, 0)) for name, array in by_row.items()}
        row_of = np.repeat(np.arange(len(sizes)), sizes)
        lengths = {"row": sizes, "predicted": np.bincount(row_of[predicted], minlength=len(sizes))}
        if halves is not None:
            lengths["half"] = halves
        cu_seqlens = {
            f"{name}_cu_seqlens": padded_cu_seqlens(segments, 2 * rows if name == "half" else rows)
            for name, segments in lengths.items()
        }
        arrays = {**by_token, **by_row, "predicted": predicted, "labels": labels, **cu_seqlens}
        return HostBatch(arrays, self._longest, None if self._fixed else lengths, real, min(count, len(predicted)))

    def minibatches(self, batch: HostBatch, device: torch.device) -> list[dict[str, Any]]:
        tensors = {name: to_device(array, device) for name, array in batch.arrays.items()}
        return [{"batch": tensors, "longest": batch.longest, "lengths": batch.lengths}]

    def cost(self, batch: HostBatch) -> tuple[int, float]:
        # The last layer and the output run only at predicted positions.
        return batch.tokens, 6 * self.learner.forward_flops(batch.tokens, batch.predicted, batch.predicted)

    def rate_scales(self) -> dict[nn.Parameter, float]:
        return branch_rates(self.learner.transformer) if self.deepnorm else {}

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, TranslationModel)
        average.save_pretrained(out / self.folder)


def tail_lengths(real: int, size: int, longest: int) -> np.ndarray:
    """Lengths of the segments that fill a row of `size` tokens after its `real` ones."""
    return np.diff([*range(0, size - real, longest), size - real])


def pad_predictions(positions: np.ndarray, labels: np.ndarray, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Exactly `count` positions of a row of `size` tokens, ascending, and their labels.

    Surplus positions are dropped from the end. Missing ones are made up with others whose label is ignored; these are
    in real segments too, so no kernel sees undefined values.
    """
    label_at = np.full(size, IGNORED)
    label_at[positions[:count]] = labels[:count]
    others = np.flatnonzero(label_at == IGNORED)[: max(0, count - len(positions))]
    padded = np.sort(np.concatenate([positions[:count], others]))
    return padded, label_at[padded]


def pad_to(array: np.ndarray, size: int, value: int) -> np.ndarray:
    """The array padded with `value`, or truncated, to exactly this size."""
    padded = np.full(size, value, array.dtype)
    padded[: min(size, len(array))] = array[:size]
    return padded


def padded_cu_seqlens(lengths: np.ndarray, count: int) -> np.ndarray:
    """(count + 1,) int32: where each segment starts, padded with empty segments to `count`."""
    cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    return pad_to(cu_seqlens, count + 1, int(cu_seqlens[-1]))


def batch_boundaries(sizes: np.ndarray, max_tokens: int, max_rows: int) -> list[int]:
    """Where each batch starts, and where the last one ends: `[0, ..., len(sizes)]`.

    Every batch holds as many items as fit within `max_tokens`, and at most `max_rows`.
    """
    ends = np.cumsum(sizes)
    boundaries = [0]
    while boundaries[-1] < len(sizes):
        start = boundaries[-1]
        before = int(ends[start - 1]) if start else 0
        full = max(int(np.searchsorted(ends, before + max_tokens, side="right")), start + 1)
        boundaries.append(min(full, start + max_rows))
    return boundaries


def shuffled(rows: np.ndarray, weights: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
    """Rows in random order; a row with weight 2.3 appears twice, and a third time with probability 0.3."""
    if weights is not None:
        times = np.floor(weights).astype(np.int64) + (random.random(len(rows)) < weights % 1)
        rows = np.repeat(rows, times)
    return random.permutation(rows)


def sample_mask(lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Masked translation's corruption: mask 1 to n of a sentence's n tokens, every number equally likely.

    (sentences,) lengths to (tokens,) bool over the concatenated sentences.
    """
    total = int(lengths.sum())
    masked_count = np.ceil((1 - random.random(len(lengths))) * lengths).astype(np.int64)
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    # Every token gets a random key; those with the smallest keys in each sentence are masked.
    by_key = np.argsort(sentence + random.random(total), kind="stable")
    rank = np.arange(total) - starts_of(lengths)[sentence]
    mask = np.zeros(total, bool)
    mask[by_key[rank < masked_count[sentence]]] = True
    return mask


def weights_by_corpus(corpora: Sequence[str], corpus: np.ndarray, weights: dict[str, float]) -> np.ndarray | None:
    """(sentences,) how often each is used per epoch; None if each is used once.

    corpus: (sentences,) the index of each sentence's corpus. weights: by the name of a corpus, one of `corpora`; by
    default 1.
    """
    if not weights:
        return None
    for name, weight in weights.items():
        if not 0 <= weight <= MAX_REPEATS:
            raise InputError(f"the weight of corpus '{name}' is {weight}: expected a number from 0 to {MAX_REPEATS}")
    by_sentence = np.array([weights.get(name, 1.0) for name in corpora])[corpus]
    if by_sentence.sum() < 1:
        raise InputError("the weights of the corpora leave less than one sentence in an epoch")
    return by_sentence

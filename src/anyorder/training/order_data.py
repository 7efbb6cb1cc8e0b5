"""What an order is learned from: canvases to fill, their rewards, and a validation.

The objective and the rollouts see only `OrderData`. `StoreOrderData` is for translation: everything about languages,
directions, vocabularies and reference texts is there. Nothing here knows about the policy's loss.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyorder.data.packing import pack
from anyorder.data.store import join
from anyorder.data.stores import Data, ParallelText, Stores, open_stores
from anyorder.decoding.lengths import make_length, table_lengths
from anyorder.device import inference_dtype
from anyorder.errors import InputError, unknown
from anyorder.models.base import CanvasBatch, Model
from anyorder.models.length import LengthTable
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order
from anyorder.orders.policy import PolicyNetwork
from anyorder.orders.storage import save_order
from anyorder.training.batches import weights_by_corpus
from anyorder.training.order_loss import RLConfig
from anyorder.training.rewards import Reward, make_reward
from anyorder.training.validation import ValidationResult, describe_splits, validation_sets, validation_splits


@dataclass(frozen=True)
class Examples:
    """Canvases to roll out and their references, on the host; those with the most masked positions first."""

    canvases: CanvasBatch
    references: np.ndarray
    """(canvases, R) ids, padded."""
    reference_lengths: np.ndarray
    """(canvases,)"""


class OrderData(ABC):
    """Canvases for a frozen model, and how well orders fill them."""

    tasks: Sequence[str]
    """The model's tasks, such as directions: one order is learned for all, and each is validated."""
    unit: str = "canvases"
    """What messages call the canvases."""
    hidden_size: int
    """Size of the model's hidden states."""
    weights: np.ndarray | None
    """(canvases,) how often each is used per epoch; None if each is used once."""
    metric: str
    """The name of the validation's score, such as `bleu`."""
    validated: Sequence[str]
    """The tasks that have validation data."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of canvases to learn from."""

    @abstractmethod
    def examples(self, numbers: np.ndarray, random: np.random.Generator) -> Examples:
        """These canvases, in the order that `Examples` requires. random: for canvases that are drawn."""

    @abstractmethod
    def reward(self, name: str) -> Reward:
        """The reward of that name."""

    @abstractmethod
    def model_on(self, device: torch.device) -> Model:
        """The model that fills, moved to a device."""

    @abstractmethod
    def bind(self, order: Order) -> list[Order]:
        """The order bound to each of the tasks."""

    @abstractmethod
    def evaluate(self, order: Order, task: str) -> ValidationResult:
        """Fill a task's validation canvases in this order, on the model's device."""

    @abstractmethod
    def estimate_seconds(self, order: Order) -> float:
        """About how long `evaluate` will take."""

    @abstractmethod
    def save(self, policy: PolicyNetwork, folder: Path, **record: Any) -> None:
        """Write a learned order. record: how it was learned."""

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed."""

    def forward_flops(self, tokens: float, last: float, predicted: float) -> float:
        """Multiply-adds of a forward pass, from the numbers of tokens, those in the last layer, and those predicted."""
        return 0.0


class StoreOrderData(OrderData):
    """Pairs of one or several stores.

    Args:
        data: The text, prepared with the model's tokenizer. Of several stores, only those with one of the directions
            are opened.
        model: The model that fills; it is frozen.
        directions: The directions to learn for, such as `de-en`.
        rl: Which pairs to learn from and to validate on; all sizes must be set.
    """

    metric = "bleu"
    unit = "pairs"

    def __init__(self, data: Data, model: TranslationModel, directions: Sequence[str], rl: RLConfig):
        stores = open_stores(data)
        if model.vocabulary.fingerprint != stores.vocabulary.fingerprint:
            where = ", ".join(str(store.path) for store in stores)
            raise InputError(f"wrong vocabulary: {where} was not prepared with this model's tokenizer.json")
        if rl.max_length > model.max_length:
            room = model.max_length
            raise InputError(f"{rl.max_length}: the model has room for {room} subwords", "max_length", RLConfig)
        self.tasks = list(dict.fromkeys(directions))
        self.hidden_size = model.config.transformer.hidden_size
        self._model = model.eval().requires_grad_(False)
        self._languages = np.array([model.config.direction(direction) for direction in self.tasks])
        """(directions, 2) indices of the source and target language."""
        stores = _with_directions(stores, model, self.tasks)
        splits = validation_splits(stores, rl.validation_split)
        self.rl = replace(rl.with_reward("bleu"), validation_split=describe_splits(stores, splits))
        """The config with `auto` resolved for the reward and the validation split."""
        self._text = _training_text(stores, rl.split)
        self._sides = self._direction_sides()
        self._pairs = self._eligible_pairs()
        for store, split in self._text.parts:
            store.check_ids(split, len(model.vocabulary))
        self.weights = self._pair_weights()
        self._candidates = self._candidate_lengths()
        assert rl.validation_sentences is not None
        self._validation = validation_sets(
            stores, splits, self.tasks, rl.validation_sentences, rl.validation_length, model.max_length
        )
        self.validated = list(self._validation)

    def __len__(self) -> int:
        return len(self._pairs)

    def _direction_sides(self) -> np.ndarray:
        """(directions, 2) indices of the source and target sides of the text."""
        store_of = self._text.stores.directions
        sides = [[self._text.side(store_of[name], language) for language in name.split("-")] for name in self.tasks]
        return np.array(sides)

    def _eligible_pairs(self) -> np.ndarray:
        """(pairs, 2): direction and sentence indices of the pairs within the length limits."""
        rl, pairs = self.rl, []
        for number, sides in enumerate(self._sides):
            source, target = (self._text.sides[side].lengths for side in sides)
            fits = (np.minimum(source, target) >= rl.min_length) & (np.maximum(source, target) <= rl.max_length)
            rows = np.flatnonzero(fits)
            if len(rows) == 0:
                store, split = self._text.parts[self._text.stores.directions[self.tasks[number]]]
                window = f"{rl.min_length} to {rl.max_length}"
                raise InputError(
                    f"{store.path}: no pair of the split '{split.name}' has {window} subwords on both sides"
                )
            pairs.append(np.stack([np.full_like(rows, number), rows], 1))
        return np.concatenate(pairs)

    def _pair_weights(self) -> np.ndarray | None:
        text = self._text
        store_of = np.array([text.stores.directions[direction] for direction in self.tasks])
        direction, row = self._pairs.T
        corpus = text.corpus[text.first_pair[store_of[direction]] + row]
        return weights_by_corpus(text.corpora, corpus, text.by_corpus(self.rl.weights))

    def _candidate_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """The target lengths to learn each pair with, (pairs, N), and how many of a row to use, (pairs,)."""
        rule, parts = make_length(self.rl.length), []
        count = min(rule.count, LengthTable.KEEP)
        for number, (task, (source, target)) in enumerate(zip(self.tasks, self._sides, strict=True)):
            rows = self._pairs[self._pairs[:, 0] == number, 1]
            if rule.kind == "gold":
                parts.append(self._text.sides[target].lengths[rows, None])
                continue
            lengths, index = np.unique(self._text.sides[source].lengths[rows], return_inverse=True)
            tried = table_lengths(self._model, lengths.tolist(), task, count)
            parts.append(np.array([known + [0] * (count - len(known)) for known in tried])[index])
        candidates = np.concatenate(parts)
        return candidates, (candidates > 0).sum(1)

    def _draw_lengths(self, numbers: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """(pairs,) for each of these pairs, one of the lengths to learn it with."""
        candidates, counts = self._candidates
        return candidates[numbers, (random.random(len(numbers)) * counts[numbers]).astype(np.int64)]

    def examples(self, numbers: np.ndarray, random: np.random.Generator) -> Examples:
        lengths = self._draw_lengths(numbers, random)
        by_length = np.argsort(-lengths, kind="stable")
        lengths, (direction, row) = lengths[by_length], self._pairs[numbers[by_length]].T
        (source_side, target_side), (source, target) = self._sides[direction].T, self._languages[direction].T
        text, eos = self._text, self._model.vocabulary.eos
        references = pack(text.sides, target_side, row, target, eos)
        reference_lengths = references.sizes - 2
        padded = np.full((len(row), int(reference_lengths.max())), eos, np.int64)
        padded[np.arange(padded.shape[1]) < reference_lengths[:, None]] = references.tokens[references.inner]
        sources = pack(text.sides, source_side, row, source, eos)
        return Examples(self._model.pack_targets(sources, lengths, target), padded, reference_lengths)

    def reward(self, name: str) -> Reward:
        config = self._model.config
        return make_reward(name, self._model.vocabulary, config.languages, config.text)

    def model_on(self, device: torch.device) -> TranslationModel:
        if self._model.device != device:
            self._model.to(device=device, dtype=inference_dtype(device))
        return self._model

    def bind(self, order: Order) -> list[Order]:
        return [order.bind(self._model, direction) for direction in self.tasks]

    def evaluate(self, order: Order, task: str) -> ValidationResult:
        return self._validation[task].evaluate(self._model, order, task)

    def estimate_seconds(self, order: Order) -> float:
        direction = self.validated[0]
        return self._validation[direction].estimate_seconds(self._model, order, direction)

    def save(self, policy: PolicyNetwork, folder: Path, **record: Any) -> None:
        save_order(policy, folder, self._model, self.tasks, **record)

    def fingerprint(self) -> dict[str, object]:
        return {
            "vocabulary": self._model.vocabulary.fingerprint,
            "pairs": len(self._pairs),
            "directions": list(self.tasks),
        }

    def forward_flops(self, tokens: float, last: float, predicted: float) -> float:
        return self._model.forward_flops(tokens, last, predicted)


def _with_directions(stores: Stores, model: TranslationModel, directions: Sequence[str]) -> Stores:
    """The stores that have one of the directions; an `InputError` for a direction that no store has."""
    for direction in directions:
        for language in model.languages(direction):
            if language not in stores.languages:
                raise unknown("language of the store", language, stores.languages)
    used = {stores.choose_directions([direction])[direction] for direction in directions}
    return Stores(store for number, store in enumerate(stores) if number in used)


def _training_text(stores: Stores, split: str) -> ParallelText:
    """The splits to learn from: the named ones, or for `auto` each store's `order`, else its `train`."""
    splits = []
    for store in stores:
        names = split if split != "auto" else "order" if "order" in store else "train"
        splits.append(join([store.split(name.strip()) for name in names.split(",")]))
    text = ParallelText(stores, tuple(splits))
    text.check_directions()
    return text

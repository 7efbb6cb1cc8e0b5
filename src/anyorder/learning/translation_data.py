"""Translation pairs to learn an order from. Everything about languages, directions and vocabularies is here."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from anyorder.data.packing import pack
from anyorder.data.store import join
from anyorder.data.stores import Data, ParallelText, Stores, open_stores
from anyorder.decoding.lengths import make_length, table_lengths
from anyorder.device import inference_dtype
from anyorder.errors import InputError, unknown
from anyorder.learning.config import RLConfig
from anyorder.learning.data import Examples, LearningData
from anyorder.learning.rewards import Reward, make_reward
from anyorder.models.native.length import LengthTable
from anyorder.models.native.translation_model import TranslationModel
from anyorder.training.batches import weights_by_corpus
from anyorder.training.validation import describe_splits, stored_validations, validation_splits


class TranslationData(LearningData):
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
    model: TranslationModel

    def __init__(self, data: Data, model: TranslationModel, directions: Sequence[str], rl: RLConfig):
        stores = open_stores(data)
        if model.vocabulary.fingerprint != stores.vocabulary.fingerprint:
            where = ", ".join(str(store.path) for store in stores)
            raise InputError(f"wrong vocabulary: {where} was not prepared with this model's tokenizer.json")
        if rl.max_length > model.max_length:
            room = model.max_length
            raise InputError(f"{rl.max_length}: the model has room for {room} subwords", "max_length", RLConfig)
        self.tasks = self.model_tasks = list(dict.fromkeys(directions))
        self.model = model.eval().requires_grad_(False)
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
        self.validations = stored_validations(
            stores, splits, self.tasks, model, rl.validation_sentences, rl.validation_length
        )

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
            tried = table_lengths(self.model, lengths.tolist(), task, count)
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
        text, eos = self._text, self.model.vocabulary.eos
        references = pack(text.sides, target_side, row, target, eos)
        reference_lengths = references.sizes - 2
        padded = np.full((len(row), int(reference_lengths.max())), eos, np.int64)
        padded[np.arange(padded.shape[1]) < reference_lengths[:, None]] = references.tokens[references.inner]
        sources = pack(text.sides, source_side, row, source, eos)
        return Examples(self.model.pack_targets(sources, lengths, target), padded, reference_lengths)

    def reward(self, name: str) -> Reward:
        config = self.model.config
        return make_reward(name, self.model.vocabulary, config.languages, config.text)

    def move(self, device: torch.device) -> None:
        if self.model.device != device:
            self.model.to(device=device, dtype=inference_dtype(device))

    def fingerprint(self) -> dict[str, object]:
        return {
            "vocabulary": self.model.vocabulary.fingerprint,
            "pairs": len(self._pairs),
            "directions": list(self.tasks),
        }

    def forward_flops(self, tokens: float, last: float, predicted: float) -> float:
        return self.model.forward_flops(tokens, last, predicted)


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

"""Translation pairs to learn an order from. Everything about languages, directions and vocabularies is here."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anyorder.data.packing import pack
from anyorder.data.store import Split, Store, join
from anyorder.data.stores import Data, ParallelText, Stores, open_stores
from anyorder.decoding.config import make_length, table_lengths
from anyorder.decoding.state import DecodeBatch
from anyorder.errors import InputError, unknown
from anyorder.learning.config import RLConfig
from anyorder.learning.objective import LearningData
from anyorder.learning.rewards import Reward, make_reward
from anyorder.learning.rollout import OrderBatch
from anyorder.models.native.length import LengthTable
from anyorder.models.native.translation_model import TranslationModel
from anyorder.training.batches import weights_by_corpus
from anyorder.training.validation import describe_splits, stored_validations, validation_splits


class TranslationData(LearningData):
    """Pairs of one or several stores, prepared with the model's tokenizer. Only stores with a direction are opened.

    rl: which pairs to learn from and to validate on; all sizes must be set.
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
        self.model = self.network = model.eval().requires_grad_(False)
        self._languages = np.array([model.config.direction(direction) for direction in self.tasks])
        """(directions, 2) indices of the source and target language."""
        stores = _with_directions(stores, model, self.tasks)
        splits = validation_splits(stores, rl.validation_split)
        self.rl = replace(rl.with_reward("bleu"), validation_split=describe_splits(stores, splits))
        """The config with `auto` resolved for the reward and the validation split."""
        self._text = text = _training_text(stores, rl.split)
        store_of = np.array([stores.directions[direction] for direction in self.tasks])
        sides, pairs, candidates = [], [], []
        for number, (direction, store) in enumerate(zip(self.tasks, store_of, strict=True)):
            sides.append([text.side(store, language) for language in direction.split("-")])
            source, target = (text.sides[side].lengths for side in sides[-1])
            rows = self._eligible_rows(source, target, *text.parts[store])
            pairs.append(np.stack([np.full_like(rows, number), rows], 1))
            candidates.append(self._candidate_lengths(source[rows], target[rows], direction))
        self._sides = np.array(sides)
        """(directions, 2) indices of the source and target sides of the text."""
        self._pairs = np.concatenate(pairs)
        """(pairs, 2): direction and sentence indices."""
        self._candidates = np.concatenate(candidates)
        """(pairs, N) the target lengths to learn each pair with; 0 behind them if they are fewer than N."""
        for store, split in text.parts:
            store.check_ids(split, len(model.vocabulary))
        direction, row = self._pairs.T
        corpus = text.corpus[text.first_pair[store_of[direction]] + row]
        self.weights = weights_by_corpus(text.corpora, corpus, text.by_corpus(rl.weights))
        assert rl.validation_sentences is not None
        self.validations = stored_validations(
            stores, splits, self.tasks, model, rl.validation_sentences, rl.validation_length
        )

    def __len__(self) -> int:
        return len(self._pairs)

    def _eligible_rows(self, source: np.ndarray, target: np.ndarray, store: Store, split: Split) -> np.ndarray:
        """The pairs within the length limits."""
        low, high = self.rl.min_length, self.rl.max_length
        rows = np.flatnonzero((np.minimum(source, target) >= low) & (np.maximum(source, target) <= high))
        if not len(rows):
            window = f"{low} to {high} subwords on both sides"
            raise InputError(f"{store.path}: no pair of the split '{split.name}' has {window}")
        return rows

    def _candidate_lengths(self, source: np.ndarray, target: np.ndarray, direction: str) -> np.ndarray:
        """(pairs, N) the target lengths to learn pairs of these lengths with."""
        rule = make_length(self.rl.length)
        if rule.kind == "gold":
            return target[:, None]
        count = min(rule.count, LengthTable.KEEP)
        lengths, index = np.unique(source, return_inverse=True)
        tried = table_lengths(self.model, lengths.tolist(), direction, count)
        return np.array([known + [0] * (count - len(known)) for known in tried])[index]

    def batch(self, numbers: np.ndarray, keys: np.ndarray, copies: int, random: np.random.Generator) -> OrderBatch:
        candidates = self._candidates[numbers]
        drawn = (random.random(len(numbers)) * (candidates > 0).sum(1)).astype(np.int64)
        lengths = candidates[np.arange(len(numbers)), drawn]
        by_length = np.argsort(-lengths, kind="stable")
        lengths, (direction, row) = lengths[by_length], self._pairs[numbers[by_length]].T
        (source_side, target_side), (source, target) = self._sides[direction].T, self._languages[direction].T
        text, eos = self._text, self.model.vocabulary.eos
        references = pack(text.sides, target_side, row, target, eos)
        reference_lengths = references.sizes - 2
        padded = np.full((len(row), int(reference_lengths.max())), eos, np.int64)
        padded[np.arange(padded.shape[1]) < reference_lengths[:, None]] = references.tokens[references.inner]
        canvases = self.model.pack_targets(pack(text.sides, source_side, row, source, eos), lengths, target)
        return OrderBatch(DecodeBatch(canvases, keys, copies), padded, reference_lengths)

    def reward(self, name: str) -> Reward:
        config = self.model.config
        return make_reward(name, self.model.vocabulary, config.languages, config.text)

    def fingerprint(self) -> dict[str, object]:
        vocabulary = self.model.vocabulary.fingerprint
        return {"vocabulary": vocabulary, "pairs": len(self), "directions": list(self.tasks)}

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

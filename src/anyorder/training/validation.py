"""Validation: some sentences of a split, translated with gold lengths and scored. Knows nothing about objectives.

Every direction is validated on its own store, with the BLEU that evaluations use for its target language.

The split `selection` is only for this: a score that selects a checkpoint should not be reported as a result. If there
is one, the dev split is not used.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyorder.data.store import Store
from anyorder.data.stores import Stores
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.sentence import Sentence
from anyorder.errors import InputError, unknown
from anyorder.evaluation.bleu import corpus_bleu
from anyorder.evaluation.scorers import MosesScorer, SacreBLEUScorer, Scorer, default_tokenizer
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order
from anyorder.translator import Translator

SAMPLE = 8
"""Sentences to translate to estimate the time of a validation."""


SPLITS = ("selection", "dev")
"""Where the sentences come from if no split is named: the first that the store has."""


def validation_splits(stores: Stores, name: str) -> list[str]:
    """The split of each store to validate on.

    It is the named one, or for `auto` the first of `SPLITS` that the store has; `none` if it has none.
    """
    if name == "auto":
        return [next((split for split in SPLITS if split in store), "none") for store in stores]
    for store in stores:
        if name != "none" and name not in store:
            raise unknown("split", name, store.split_names)
    return [name] * len(stores)


def describe_splits(stores: Stores, splits: Sequence[str]) -> str:
    """One name if all stores have the same, else one for each store: `de-en=selection,ro-en=dev`."""
    if len(set(splits)) == 1:
        return splits[0]
    return ",".join(f"{'-'.join(store.languages)}={split}" for store, split in zip(stores, splits, strict=True))


@dataclass(frozen=True)
class ValidationResult:
    """The validation result of an order."""

    score: float
    """BLEU with `default_tokenizer` for translation, else accuracy in percent."""
    steps: list[np.ndarray]
    """(length,) the step, from 1, at which each position was filled; one array per sentence."""


def validation_sets(
    stores: Stores, splits: Sequence[str], directions: Sequence[str], sentences: int, max_length: int, room: int
) -> dict[str, "ValidationSet"]:
    """For every direction whose store has a split to validate on, the sentences of that split.

    Args:
        stores: The stores that have the directions.
        splits: The split of each store.
        directions: The directions, such as `de-en`.
        sentences: See `ValidationSet`.
        max_length: See `ValidationSet`.
        room: See `ValidationSet`.
    """
    by_store = {
        number: ValidationSet(store, split, sentences, max_length, room)
        for number, (store, split) in enumerate(zip(stores, splits, strict=True))
        if split in store
    }
    store_of = stores.directions
    sets = {direction: by_store[store_of[direction]] for direction in directions if store_of[direction] in by_store}
    for direction, validation in sets.items():
        validation.check(*direction.split("-"))
    return sets


class ValidationSet:
    """The first sentences of a store's split that are short enough on both sides.

    Args:
        store: The store.
        split: The name of its split.
        sentences: Maximum number of sentences per direction.
        max_length: Maximum number of subwords on both sides; 0 for the model's maximum.
        room: The model's maximum number of subwords.
    """

    def __init__(self, store: Store, split: str, sentences: int, max_length: int, room: int):
        self._path = store.path
        self._split = store.split(split)
        if not self._split.parallel:
            raise InputError(f"{store.path}: the split '{split}' is not parallel")
        self._sentences = sentences
        self._max_length = min(max_length or room, room)

    def rows(self, source: str, target: str) -> np.ndarray:
        """(N,) indices of the sentences for this language pair."""
        longer = np.maximum(*(self._split.sides[language].lengths for language in (source, target)))
        return np.flatnonzero(longer <= self._max_length)[: self._sentences]

    def check(self, source: str, target: str) -> None:
        """Raise an `InputError` if there are no such sentences."""
        if len(self.rows(source, target)) == 0:
            raise InputError(
                f"{self._path}: no pair of the split '{self._split.name}' has at most {self._max_length} subwords "
                "on both sides; raise validation_length"
            )

    def evaluate(self, model: TranslationModel, order: Order, direction: str) -> ValidationResult:
        """Translate the sentences in this order, one position per step."""
        return self._evaluate(model, order, direction, self.rows(*model.languages(direction)))

    def estimate_seconds(self, model: TranslationModel, order: Order, direction: str) -> float:
        """About how long `evaluate` will take, from the time of a few sentences."""
        source, target = model.languages(direction)
        rows = self.rows(source, target)
        sample = rows[:: max(1, len(rows) // SAMPLE)][:SAMPLE]
        start = time.monotonic()
        self._evaluate(model, order, direction, sample)
        lengths = self._split.sides[target].lengths.astype(np.float64)
        return (time.monotonic() - start) * float((lengths[rows] ** 2).sum() / (lengths[sample] ** 2).sum())

    def _evaluate(self, model: TranslationModel, order: Order, direction: str, rows: np.ndarray) -> ValidationResult:
        source, target = (self._split.sides[language] for language in model.languages(direction))
        words = model.vocabulary.words
        sentences = (
            Sentence(" ".join(words(source[i])), np.asarray(source[i], np.int64), int(target.lengths[i])) for i in rows
        )
        config = DecodingConfig(order=order, schedule="one", length="gold")
        trajectories = list(Translator(model).decode(sentences, direction, config))
        scorer, references = _references(model, direction, [target[i] for i in rows])
        score = corpus_bleu(scorer.hypotheses(trajectories), references, scorer.metric())
        return ValidationResult(score, [np.array(trajectory.steps) for trajectory in trajectories])


def _references(model: TranslationModel, direction: str, ids: Sequence[np.ndarray]) -> tuple[Scorer, list[str]]:
    """The scorer for a direction, and the references as its metric expects them."""
    tokenizer = default_tokenizer(model.languages(direction)[1])
    if tokenizer != "moses":
        return SacreBLEUScorer(tokenizer), [model.to_text(one, direction) for one in ids]
    return MosesScorer(list), [" ".join(model.vocabulary.words(one)) for one in ids]

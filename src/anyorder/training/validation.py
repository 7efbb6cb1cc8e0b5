"""Judging by the dev split: some of its sentences translated with gold lengths, and scored."""

import numpy as np

from anyorder.data.store import Store
from anyorder.decoding.distributed import decode_distributed
from anyorder.decoding.engine import Hypothesis, Request
from anyorder.decoding.schedules import Fixed
from anyorder.errors import InputError
from anyorder.evaluation.bleu import corpus_bleu
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order


class Dev:
    """The sentences of a store's dev split that have at most so many subwords on both sides; the first so many."""

    def __init__(self, store: Store, sentences: int, length: int, room: int):
        """length: 0 takes any; room: what the model has room for."""
        self._path = store.path
        self._split = store.split("dev")
        self._sentences = sentences
        self._limit = min(length or room, room)

    def rows(self, source: str, target: str) -> np.ndarray:
        longer = np.maximum(*(self._split.sides[language].lengths for language in (source, target)))
        return np.flatnonzero(longer <= self._limit)[: self._sentences]

    def check(self, source: str, target: str, option: str) -> None:
        """An `InputError` if there are none."""
        if len(self.rows(source, target)) == 0:
            raise InputError(
                f"{self._path}: no pair of the split 'dev' has at most {self._limit} subwords on both sides; "
                f"raise {option}"
            )

    def translate(
        self, model: TranslationModel, order: Order, source: str, target: str
    ) -> tuple[float, list[Hypothesis]]:
        """BLEU, and what was written."""
        given, wanted = self._split.sides[source], self._split.sides[target]
        rows, direction, words = self.rows(source, target), f"{source}-{target}", model.vocabulary.words
        requests = [Request(np.asarray(given[i], np.int64), int(wanted.lengths[i])) for i in rows]
        filled = decode_distributed(model, requests, direction, order.bind(model, direction), Fixed(1))
        made = [" ".join(words(one.ids)) for one in filled]
        return corpus_bleu(made, [" ".join(words(wanted[i])) for i in rows]), filled

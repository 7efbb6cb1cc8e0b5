"""The pairs that masked translation learns from, and the directions in which each is used.

Knows nothing about masks or losses.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from anyorder.data.packing import PackedBatch, pack
from anyorder.data.store import ParallelText, Stores
from anyorder.errors import InputError, unknown
from anyorder.models.native.translation_model import TranslationModel
from anyorder.training.batches import weights_by_corpus


class TranslationPairs:
    """The `train` splits of stores of two languages each.

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

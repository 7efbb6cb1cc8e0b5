"""Several prepared stores as one: the language pairs of a multilingual model. Knows nothing of models or training."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from anyorder.data.packing import starts_of
from anyorder.data.store import Split, Store
from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError, unknown

Value = TypeVar("Value")


class Stores(tuple[Store, ...]):
    """Stores that share one vocabulary and its text rules."""

    __slots__ = ()

    @property
    def vocabulary(self) -> Vocabulary:
        return self[0].vocabulary

    @property
    def text(self) -> TextConfig:
        return self[0].text

    @property
    def languages(self) -> tuple[str, ...]:
        """Of all stores, in order of first appearance."""
        return tuple(dict.fromkeys(language for store in self for language in store.languages))

    @property
    def directions(self) -> dict[str, int]:
        """Every direction, such as `de-en`, and the index of the store that holds it."""
        found: dict[str, int] = {}
        for number, store in enumerate(self):
            for direction in (f"{a}-{b}" for a in store.languages for b in store.languages if a != b):
                if direction in found:
                    raise InputError(
                        f"{self[found[direction]].path} and {store.path} both hold {direction}: "
                        "prepare one store with the text of both"
                    )
                found[direction] = number
        return found

    def choose_directions(self, names: Sequence[str]) -> dict[str, int]:
        """These directions in a fixed order, each with the index of its store; all if none are named."""
        known = self.directions
        for name in names:
            if name not in known:
                raise unknown("direction", name, known)
        return {name: number for name, number in known.items() if not names or name in names}


Data = str | Path | Store | Sequence[str | Path | Store]
"""What a user may pass as data: one or more stores, open or not."""


def open_stores(data: Data) -> Stores:
    """Open stores; `InputError` unless they share one vocabulary and its text rules."""
    if isinstance(data, Stores):
        return data
    given = [data] if isinstance(data, str | Path | Store) else data
    stores = Stores(one if isinstance(one, Store) else Store(one) for one in given)
    if not stores:
        raise InputError("names no store", "data")
    first = stores[0]
    for store in stores[1:]:
        if store.vocabulary.fingerprint != first.vocabulary.fingerprint:
            raise InputError(
                f"{store.path} has another vocabulary than {first.path}: prepare both with the same tokenizer"
            )
        if store.text != first.text:
            raise InputError(f"{store.path} has other text rules than {first.path}: {store.text}, not {first.text}")
    return stores


class ParallelText:
    """A parallel split of every store, end to end: pair i is sentence `row[i]` of all sides of store `store[i]`."""

    def __init__(self, stores: Stores, splits: Sequence[Split]):
        self.stores, self.splits = stores, splits
        self.parts = list(zip(stores, splits, strict=True))
        """Each store and its split."""
        for store, split in self.parts:
            if not split.parallel:
                raise InputError(f"{store.path}: the split '{split.name}' is not parallel")
        self.first_pair = starts_of(np.array([len(split) for split in splits]))
        """(stores,) the index of each store's first pair."""
        self.first_side = starts_of(np.array([len(store.languages) for store in stores]))
        """(stores,) the index of each store's first side."""
        self.sides = [split.sides[language] for store, split in self.parts for language in store.languages]
        """The languages of the first store, then those of the second, and so on."""
        self.languages = [language for store in stores for language in store.languages]
        """The language of each side."""
        self._short_names = [name for split in splits for name in split.corpora]
        self._full_names = [
            f"{'-'.join(store.languages)}/{name}" for store, split in self.parts for name in split.corpora
        ]
        self.corpora = self._short_names if len(stores) == 1 else self._full_names
        """Names of the corpora, `STORE/CORPUS` if there are several stores; `corpus` indexes them."""

    def __len__(self) -> int:
        return sum(map(len, self.splits))

    @cached_property
    def store(self) -> np.ndarray:
        """(pairs,) the index of each pair's store."""
        return np.repeat(np.arange(len(self.splits)), [len(split) for split in self.splits])

    @cached_property
    def row(self) -> np.ndarray:
        """(pairs,) the index of each pair in its store."""
        return np.concatenate([np.arange(len(split)) for split in self.splits])

    @cached_property
    def corpus(self) -> np.ndarray:
        """(pairs,) the index of each pair's corpus."""
        firsts = starts_of(np.array([len(split.corpora) for split in self.splits]))
        parts = zip(self.splits, firsts, strict=True)
        return np.concatenate([np.asarray(split.corpus, np.int64) + first for split, first in parts])

    def check_directions(self) -> None:
        """Raise an `InputError` for a corpus that is for one direction only."""
        for store, split in self.parts:
            for corpus, language in split.only_into.items():
                raise InputError(
                    f"{store.path}: the corpus '{corpus}' can only be used for translation into {language}"
                )

    def side(self, store: int, language: str) -> int:
        """The index of a language's side in a store."""
        languages = self.stores[store].languages
        if language not in languages:
            raise unknown("language of the store", language, languages)
        return int(self.first_side[store]) + languages.index(language)

    def by_corpus(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Values that a user gave by corpus name, keyed by the names in `corpora`.

        `CORPUS` means the corpus of that name in every store that has one. `STORE/CORPUS`, with a store's languages
        such as `ro-en`, means that of one store, and takes precedence over the plain name.
        """
        for name in values:
            if name not in self._short_names and name not in self._full_names:
                raise unknown("corpus", name, self.corpora)
        names = list(zip(self.corpora, self._full_names, self._short_names, strict=True))
        found = {name: values[short] for name, _, short in names if short in values}
        return found | {name: values[full] for name, full, _ in names if full in values}

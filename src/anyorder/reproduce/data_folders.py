"""The data of tables: stores to learn from, and test sets from text files or from the splits of stores.

Text files keep the references as they were published. A store holds only ids, so its references are the words that the
ids spell. Knows nothing about orders or tables.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import cast

from anyorder.data.corpus import read_parallel
from anyorder.data.store import MANIFEST, Store
from anyorder.decoder import Decoder
from anyorder.errors import InputError
from anyorder.evaluation.test_set import TestSet, read_test_set, stored_test_set
from anyorder.models.native.translation_model import TranslationModel
from anyorder.tasks.translation import Sentence

ENDINGS = ("", ".xz", ".gz")


@dataclass(frozen=True)
class SplitSet:
    """The test set of a split in one direction, or its first sentences."""

    direction: str
    split: str
    test_set: TestSet

    @property
    def sentences(self) -> Sequence[Sentence]:
        """The examples, which are sentences because the task is translation."""
        return cast(Sequence[Sentence], self.test_set.examples)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the sentences and their references."""
        digest = hashlib.sha256(self.direction.encode())
        for sentence, reference in zip(self.sentences, self.test_set.references[0], strict=True):
            digest.update(f"{sentence.text}\n{reference}\n".encode())
            digest.update(sentence.ids.astype("<i8").tobytes())
        return digest.hexdigest()[:8]


class DataFolders:
    """The folders that hold data: prepared stores, and folders of text files (`dev.de`, `dev.en.xz`, ...).

    A folder of text files may also hold one folder per language pair, such as `de-en`.
    """

    def __init__(self, folders: Sequence[Path]):
        self.stores: list[Store] = []
        self._text: list[Path] = []
        self._sets: dict[tuple[str, str, int | None], SplitSet] = {}
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"{folder}: no such folder", "data")
            if (folder / MANIFEST).is_file():
                self.stores.append(Store(folder))
            else:
                self._text.append(folder)

    def store(self, direction: str, model: TranslationModel) -> Store:
        """The store to learn a direction from: one with its languages and the model's vocabulary."""
        held = [store for store in self.stores if set(direction.split("-")) <= set(store.languages)]
        if not held:
            raise InputError(f"has no prepared store for {direction}: 'anyorder prepare' makes one", "data")
        fitting = (store for store in held if store.vocabulary.fingerprint == model.vocabulary.fingerprint)
        return _with_vocabulary(next(fitting, held[0]), model)

    def split_set(self, decoder: Decoder, split: str, count: int | None = None) -> SplitSet:
        """A split in the decoder's direction, or its first sentences.

        `SPLIT-SOURCETARGET`, such as `dev-enzh`, takes precedence over `SPLIT`, and text files over stores.
        """
        key = decoder.task.name, split, count
        if key not in self._sets:
            self._sets[key] = SplitSet(decoder.task.name, split, self._read(decoder, split, count))
        return self._sets[key]

    def _read(self, decoder: Decoder, split: str, count: int | None) -> TestSet:
        direction = decoder.task.name
        source, target = decoder.model.languages(direction)
        found = self.find(direction, split)
        if found is None:
            raise InputError(f"has no {split} set for {direction} ({split}.{source} and {split}.{target})", "data")
        if isinstance(found, tuple):
            store, name = found
            pairs = _with_vocabulary(store, decoder.model).split(name)
            return stored_test_set(decoder, pairs, range(len(pairs))[:count])
        lines = list(islice(read_parallel(found, "replace"), count))
        if not lines:
            raise InputError(f"{found[0]}: is empty")
        sources, references = zip(*lines, strict=True)
        return read_test_set(decoder, sources, references, names=[str(file) for file in found])

    def find(self, direction: str, split: str) -> list[Path] | tuple[Store, str] | None:
        """Where a test set comes from: two files, or the split of a store; None if there is no such set."""
        source, _, target = direction.partition("-")
        names = (f"{split}-{source}{target}", split)
        for name, text in product(names, self._text):
            for folder in (text / f"{source}-{target}", text / f"{target}-{source}", text):
                files = [file for code in (source, target) if (file := _find_file(folder, f"{name}.{code}"))]
                if len(files) == 2:
                    return files
        for name, store in product(names, self.stores):
            if {source, target} <= set(store.languages) and name in store:
                return store, name
        return None


def _with_vocabulary(store: Store, model: TranslationModel) -> Store:
    """The store, which must have been prepared with the model's vocabulary."""
    if store.vocabulary.fingerprint != model.vocabulary.fingerprint:
        raise InputError(f"{store.path}: was not prepared with the vocabulary of {model.name or 'the model'}")
    return store


def _find_file(folder: Path, name: str) -> Path | None:
    return next((folder / f"{name}{ending}" for ending in ENDINGS if (folder / f"{name}{ending}").is_file()), None)

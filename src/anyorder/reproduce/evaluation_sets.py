"""Test sets: sentences to translate and their references, from text files or from the splits of prepared stores.

Text files keep the references as they were published. A store holds only ids, so its references are the words that the
ids spell. Knows nothing about orders or tables.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from anyorder.data.corpus import read_parallel
from anyorder.data.lines import clean_line
from anyorder.data.store import MANIFEST, Store
from anyorder.data.text import Text
from anyorder.decoding.sentence import Sentence, encode_sentences
from anyorder.errors import InputError
from anyorder.evaluation.scorers import Scorer, default_tokenizer, make_scorer
from anyorder.models.translation import TranslationModel

ENDINGS = ("", ".xz", ".gz")


@dataclass(frozen=True)
class EvaluationSet:
    """One split in one direction, encoded for one model."""

    direction: str
    split: str
    sentences: list[Sentence]
    """With the lengths of their references."""
    references: list[str]
    """Plain text."""
    words: dict[str, str]
    """The words of each reference, separated by spaces."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the sentences and their references."""
        digest = hashlib.sha256(self.direction.encode())
        for sentence, reference in zip(self.sentences, self.references, strict=True):
            digest.update(f"{sentence.text}\n{reference}\n".encode())
            digest.update(sentence.ids.astype("<i8").tobytes())
        return digest.hexdigest()[:8]

    def within(self, max_length: int | None) -> list[int]:
        """The indices of the pairs with at least one and at most `max_length` subwords on both sides."""
        found = []
        for number, sentence in enumerate(self.sentences):
            longer = max(len(sentence.ids), sentence.reference_length or 0)
            if len(sentence.ids) and sentence.reference_length and (max_length is None or longer <= max_length):
                found.append(number)
        if not found:
            limit = "text" if max_length is None else f"at most {max_length} subwords"
            raise InputError(f"the {self.split} set of {self.direction}: no pair has {limit} on both sides")
        return found

    def scorer(self) -> Scorer:
        """The BLEU that evaluations use for the target language."""
        return make_scorer(default_tokenizer(self.direction.partition("-")[2]), self.words)

    def first(self, count: int | None) -> "EvaluationSet":
        """The first `count` sentences."""
        return replace(self, sentences=self.sentences[:count], references=self.references[:count])


class DataFolders:
    """The folders that hold data: prepared stores, and folders of text files (`dev.de`, `dev.en.xz`, ...).

    A folder of text files may also hold one folder per language pair, such as `de-en`.
    """

    def __init__(self, folders: Sequence[Path]):
        self.stores: list[Store] = []
        self._text: list[Path] = []
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"{folder}: no such folder", "data")
            if (folder / MANIFEST).is_file():
                self.stores.append(Store(folder))
            else:
                self._text.append(folder)

    def store(self, direction: str, model: TranslationModel) -> Store:
        """The store to learn a direction from: one with its languages and the model's vocabulary."""
        languages = set(direction.split("-"))
        held = [store for store in self.stores if languages <= set(store.languages)]
        for store in held:
            if store.vocabulary.fingerprint == model.vocabulary.fingerprint:
                return store
        if held:
            raise InputError(f"{held[0].path}: was not prepared with the vocabulary of {model.name or 'the model'}")
        raise InputError(f"has no prepared store for {direction}: 'anyorder prepare' makes one", "data")

    def evaluation_set(self, direction: str, split: str, model: TranslationModel) -> EvaluationSet:
        """A split in one direction. `SPLIT-SOURCETARGET`, such as `dev-enzh`, takes precedence over `SPLIT`.

        Text files take precedence over stores.
        """
        source, target = model.languages(direction)
        names = (f"{split}-{source}{target}", split)
        for name in names:
            for folder in self._text_folders(source, target):
                files = [_find(folder, f"{name}.{language}") for language in (source, target)]
                if files[0] and files[1]:
                    return _from_text(model, direction, split, [files[0], files[1]])
        for name in names:
            for store in self.stores:
                if {source, target} <= set(store.languages) and name in store:
                    return _from_store(model, direction, split, store, name)
        raise InputError(f"has no {split} set for {direction} ({split}.{source} and {split}.{target})", "data")

    def has(self, direction: str, split: str) -> bool:
        """Whether there is such a test set."""
        source, _, target = direction.partition("-")
        names = (f"{split}-{source}{target}", split)
        return any(
            _find(folder, f"{name}.{source}") and _find(folder, f"{name}.{target}")
            for name in names
            for folder in self._text_folders(source, target)
        ) or any({source, target} <= set(store.languages) and name in store for name in names for store in self.stores)

    def _text_folders(self, source: str, target: str) -> Iterable[Path]:
        for folder in self._text:
            yield from (folder / f"{source}-{target}", folder / f"{target}-{source}", folder)


def _find(folder: Path, name: str) -> Path | None:
    return next((folder / f"{name}{ending}" for ending in ENDINGS if (folder / f"{name}{ending}").is_file()), None)


def _from_text(model: TranslationModel, direction: str, split: str, files: Sequence[Path]) -> EvaluationSet:
    lines = list(read_parallel(files, "replace"))
    if not lines:
        raise InputError(f"{files[0]}: is empty")
    sources = [source for source, _ in lines]
    references = [clean_line(reference, "reference")[0] for _, reference in lines]
    target = model.languages(direction)[1]
    words = model.words(references, target)
    lengths = [len(ids) for ids in model.vocabulary.encode(words)]
    sentences = encode_sentences(model, sources, direction, lengths)
    return EvaluationSet(direction, split, sentences, references, dict(zip(references, words, strict=True)))


def _from_store(model: TranslationModel, direction: str, split: str, store: Store, name: str) -> EvaluationSet:
    if store.vocabulary.fingerprint != model.vocabulary.fingerprint:
        raise InputError(f"{store.path}: was not prepared with the vocabulary of {model.name or 'the model'}")
    source, target = (store.split(name).sides[language] for language in model.languages(direction))
    spell = model.vocabulary.words
    text = Text(model.languages(direction)[1], model.config.text)
    sentences: list[Sentence] = []
    references: list[str] = []
    words: dict[str, str] = {}
    for i in range(len(source)):
        ids = np.asarray(source[i], np.int64)
        line, length = " ".join(spell(ids)), int(target.lengths[i])
        fits = len(ids) <= model.max_length
        sentences += [Sentence(line, ids, length)] if fits else encode_sentences(model, [line], direction, [length])
        reference = spell(np.asarray(target[i], np.int64))
        references.append(text.sentence(reference))
        words[references[-1]] = " ".join(reference)
    return EvaluationSet(direction, split, sentences, references, words)

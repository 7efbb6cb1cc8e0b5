"""Prepared stores: token ids on disk, memory-mapped. `prepare` writes them and every training run reads them.

manifest.json             languages, text rules, splits, where every line went
tokenizer.json            the vocabulary
SPLIT.LANGUAGE.ids.bin    all sentences of one side end to end (uint16 or uint32), without delimiters
SPLIT.LANGUAGE.ends.npy   where each sentence ends (int64)
SPLIT.corpus.npy          which corpus each line came from (uint8)
checksums.json            of all these files

A file is compared with its checksum and fully validated when it is opened, so that damage is caught right away.
Knows nothing of models or training.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from anyorder.data.packing import Side, starts_of
from anyorder.data.text import TextConfig, check_language
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError, unknown
from anyorder.files import read_whole, verify, write_json
from anyorder.records import Record, read_record

MANIFEST = "manifest.json"
MAX_CORPORA = 256
"""Maximum number in one split: a uint8 tells them apart."""
MAX_VOCABULARY = 1 << 32
"""Ids have at most 32 bits."""
FORMAT = 1


@dataclass(frozen=True)
class Split:
    """Sentences by language. The sides of a parallel split are aligned; those of a monolingual one need not be."""

    name: str
    sides: dict[str, Side]
    corpora: tuple[str, ...]
    """Names of the corpora; `corpus` indexes them."""
    corpus: np.ndarray | None
    """(sentences,) uint8; None for monolingual splits."""
    only_into: Mapping[str, str] = field(default_factory=dict)
    """Corpora of which only one side is real text, and the only language into which they are translated."""

    def __len__(self) -> int:
        return len(next(iter(self.sides.values())))

    @property
    def parallel(self) -> bool:
        return self.corpus is not None


def join(splits: Sequence[Split]) -> Split:
    """Parallel splits of one store, end to end."""
    if any(not split.parallel for split in splits):
        raise InputError(f"the split '{next(split.name for split in splits if not split.parallel)}' is not parallel")
    if len(splits) == 1:
        return splits[0]
    corpora = tuple(dict.fromkeys(name for split in splits for name in split.corpora))
    sides = {}
    for language in splits[0].sides:
        parts = [split.sides[language] for split in splits]
        offsets = starts_of(np.array([len(part.ids) for part in parts]))
        ends = [part.ends + offset for part, offset in zip(parts, offsets, strict=True)]
        sides[language] = Side(np.concatenate([part.ids for part in parts]), np.concatenate(ends))
    corpus = [np.array([corpora.index(name) for name in split.corpora])[split.corpus] for split in splits]
    only_into = {name: language for split in splits for name, language in split.only_into.items()}
    return Split(",".join(split.name for split in splits), sides, corpora, np.concatenate(corpus), only_into)


class Store:
    """An open store. Opening reads only the manifest; ids are mapped into memory when a split is opened."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if not (self.path / MANIFEST).is_file():
            raise InputError(f"{self.path}: not a prepared store (no {MANIFEST}); 'anyorder prepare' makes one")
        manifest = read_whole(self.path, _read_manifest)
        self.manifest: dict[str, Any] = manifest.values
        self.languages = _languages(manifest)
        self.text = _text_config(manifest.record("text"))
        self._dtype = np.dtype(manifest.take("dtype", Literal["uint16", "uint32"]))
        self._vocab_size = manifest.record("vocabulary").integer("size", at_least=1, at_most=MAX_VOCABULARY)
        self._fingerprint = manifest.record("vocabulary").text("fingerprint")
        splits = manifest.record("splits")
        self._splits = {name: _SplitRecord.read(splits, name, self.languages) for name in splits}
        self._opened: dict[str, Split] = {}
        for name in ("lines", "inputs"):
            manifest.record(name, default={})

    @cached_property
    def vocabulary(self) -> Vocabulary:
        vocabulary = Vocabulary.load(self.path, self._vocab_size)
        if vocabulary.fingerprint != self._fingerprint:
            raise InputError(
                f"{self.path}: wrong vocabulary: tokenizer.json is {vocabulary.fingerprint}, "
                f"the store was prepared with {self._fingerprint}"
            )
        if len(vocabulary) != self._vocab_size:
            raise InputError(f"{self.path / MANIFEST}: vocabulary.size: {self._vocab_size}, expected {len(vocabulary)}")
        return vocabulary

    @property
    def split_names(self) -> list[str]:
        return list(self._splits)

    def __contains__(self, name: str) -> bool:
        return name in self._splits

    def split(self, name: str) -> Split:
        """Open a split. The first time, all its files are read; an `InputError` names a damaged one."""
        if name not in self._splits:
            raise unknown("split", name, self._splits)
        if name not in self._opened:
            self._opened[name] = read_whole(self.path, lambda folder: self._open_split(name))
        return self._opened[name]

    def files(self, split: str) -> list[str]:
        """The names of a split's files."""
        record = self._splits[split]
        names = [name(split, language) for language in record.languages for name in (ids_name, ends_name)]
        return [*names, corpus_name(split)] if record.parallel else names

    def _open_split(self, name: str) -> Split:
        record = self._splits[name]
        sides = {language: self._side(name, language) for language in record.languages}
        corpus = self._corpus(name, record) if record.parallel else None
        split = Split(name, sides, record.corpora, corpus, record.only_into)
        if split.corpus is not None:
            for language, side in sides.items():
                if len(side) != len(split.corpus):
                    file = self.path / ends_name(name, language)
                    raise _damaged(file, f"it has {len(side):,} sentences, {corpus_name(name)} {len(split.corpus):,}")
        self.check_ids(split, self._vocab_size)
        return split

    def _side(self, split: str, language: str) -> Side:
        ends_file = self.path / ends_name(split, language)
        ends = self._array(ends_file, np.dtype(np.int64))
        if len(ends) and (ends[0] <= 0 or (ends[1:] <= ends[:-1]).any()):
            raise _damaged(ends_file, "each sentence must end behind the one before")
        ids_file, tokens = self.path / ids_name(split, language), int(ends[-1]) if len(ends) else 0
        if not ids_file.is_file() or ids_file.stat().st_size != tokens * self._dtype.itemsize:
            raise _damaged(ids_file, f"expected {tokens * self._dtype.itemsize:,} bytes")
        verify(self.path, ids_file.name)
        return Side(np.memmap(ids_file, self._dtype, mode="r") if tokens else np.zeros(0, self._dtype), ends)

    def _corpus(self, split: str, record: "_SplitRecord") -> np.ndarray:
        file = self.path / corpus_name(split)
        corpus = self._array(file, np.dtype(np.uint8))
        if len(corpus) == 0 or (record.pairs is not None and len(corpus) != record.pairs):
            raise _damaged(file, f"it has {len(corpus):,} lines, {MANIFEST} {record.pairs or 'at least one'}")
        if int(corpus.max()) >= len(record.corpora):
            raise _damaged(file, f"corpus {corpus.max()} is not one of {len(record.corpora)}")
        return corpus

    def check_ids(self, split: Split, vocab_size: int) -> None:
        """Raise `InputError` for ids outside a vocabulary of this size. Reads all ids."""
        for language, side in split.sides.items():
            largest = int(side.ids.max(initial=0))
            if largest >= vocab_size:
                file = self.path / ids_name(split.name, language)
                raise _damaged(file, f"the id {largest} is not one of the vocabulary's {vocab_size}")

    def _array(self, file: Path, dtype: np.dtype) -> np.ndarray:
        """A memory-mapped 1-D array; a header that promises more than the file holds is rejected."""
        if not file.is_file():
            raise _damaged(file, "no such file")
        verify(self.path, file.name)
        try:
            with file.open("rb") as stream:
                np.lib.format.read_magic(stream)
                shape, _, found = np.lib.format.read_array_header_1_0(stream)
            # Before it is mapped: NumPy divides by the size of an item, and ends the process if it is zero.
            is_right = found == dtype and len(shape) == 1 and shape[0] >= 0
            with np.errstate(over="ignore"):
                array = np.lib.format.open_memmap(file, mode="r") if is_right else None
        except Exception as error:  # numpy raises all kinds of errors for a damaged header
            raise _damaged(file, str(error).splitlines()[0] if str(error) else type(error).__name__) from None
        if array is None:
            raise _damaged(file, f"{found} of shape {shape}, expected a row of {dtype}")
        return array


def _read_manifest(folder: Path) -> Record:
    verify(folder, MANIFEST)
    manifest = read_record(folder / MANIFEST)
    if manifest.integer("format") != FORMAT:
        raise manifest.error("format", f"{manifest.integer('format')}, expected {FORMAT}; prepare the store again")
    return manifest


def _languages(manifest: Record) -> tuple[str, ...]:
    codes = manifest.texts("languages")
    if not codes or len(set(codes)) != len(codes):
        raise manifest.error("languages", f"{codes}, expected different languages")
    for code in codes:
        try:
            check_language(code)
        except InputError as error:
            raise manifest.error("languages", str(error)) from None
    return tuple(codes)


def _text_config(record: Record) -> TextConfig:
    if "normalise" in record:  # version 0.1
        record.values["normalize"] = record.values.pop("normalise")
    return record.config(TextConfig)


class _SplitRecord(msgspec.Struct):
    """A split's entry in the manifest."""

    parallel: bool
    languages: tuple[str, ...]
    corpora: tuple[str, ...]
    pairs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    only_into: dict[str, str] = {}

    @classmethod
    def read(cls, splits: Record, name: str, known: tuple[str, ...]) -> "_SplitRecord":
        """The record of that name, for a store of the `known` languages."""
        if not is_split_name(name):
            raise splits.error(name, "cannot be the name of a split")
        split, record = splits.take(name, cls), splits.record(name)
        languages = set(split.languages)
        fits = len(languages) == len(split.languages) and (languages == set(known) if split.parallel else languages)
        if not fits or not languages <= set(known):
            raise record.error("languages", f"{list(split.languages)}, expected those of the store, {list(known)}")
        if split.parallel and not 1 <= len(split.corpora) <= MAX_CORPORA:
            raise record.error("corpora", f"{len(split.corpora)} names, expected 1 to {MAX_CORPORA}")
        for corpus, language in split.only_into.items():
            if corpus not in split.corpora or language not in languages:
                message = f"'{language}', expected a corpus of the split and one of its languages"
                raise record.error(f"only_into.{corpus}", message)
        return split


def _damaged(file: Path, reason: str) -> InputError:
    return InputError(f"{file}: the store is damaged ({reason})")


def is_split_name(name: str) -> bool:
    """Whether it can be part of a file name."""
    return re.fullmatch(r"[\w-]{1,100}", name) is not None


def write_manifest(folder: Path, languages: tuple[str, ...], text: TextConfig, dtype: np.dtype, **rest: Any) -> None:
    manifest = {"format": FORMAT, "languages": languages, "text": asdict(text), "dtype": dtype.name, **rest}
    write_json(folder / MANIFEST, manifest)


def write_side(folder: Path, split: str, language: str, ids: Iterable[np.ndarray], lengths: np.ndarray) -> None:
    """Write one side of a split: the ids of all sentences end to end, in blocks of the store's type; lengths: (N,)"""
    with (folder / ids_name(split, language)).open("wb") as output:
        for block in ids:
            output.write(block.tobytes())
    _save(folder / ends_name(split, language), np.cumsum(lengths, dtype=np.int64))


def write_corpus(folder: Path, split: str, corpus: np.ndarray) -> None:
    """Write which corpus each pair of a split came from: (pairs,)"""
    _save(folder / corpus_name(split), corpus.astype(np.uint8))


def _save(file: Path, array: np.ndarray) -> None:
    """Unlike `np.save` to a file, this passes on the system's full-disk error."""
    content = BytesIO()
    np.save(content, array)
    file.write_bytes(content.getbuffer())


def ids_name(split: str, language: str) -> str:
    return f"{split}.{language}.ids.bin"


def ends_name(split: str, language: str) -> str:
    return f"{split}.{language}.ends.npy"


def corpus_name(split: str) -> str:
    return f"{split}.corpus.npy"


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

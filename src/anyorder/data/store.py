"""A prepared store: token ids on disk, memory-mapped. `prepare` writes it and every training run reads it.

manifest.json             languages, text rules, splits, where every line went
tokenizer.json            the vocabulary
SPLIT.LANGUAGE.ids.bin    all sentences of one side end to end (uint16 or uint32), without delimiters
SPLIT.LANGUAGE.ends.npy   where each sentence ends (int64)
SPLIT.corpus.npy          which corpus each line came from (uint8)

Knows nothing of models or training.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anyorder.data.packing import Side, starts_of
from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError, unknown
from anyorder.files import read_json, write_json

MANIFEST = "manifest.json"
FORMAT = 1
DTYPES: dict[str, np.dtype] = {"uint16": np.dtype(np.uint16), "uint32": np.dtype(np.uint32)}


@dataclass(frozen=True)
class Split:
    """Sentences by language. The sides of a parallel split are aligned; those of a monolingual one need not be."""

    name: str
    sides: dict[str, Side]
    corpora: tuple[str, ...]
    """Names of the corpora; `corpus` indexes them."""
    corpus: np.ndarray | None
    """(sentences,) uint8; None for monolingual splits."""

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
    return Split(",".join(split.name for split in splits), sides, corpora, np.concatenate(corpus))


class Store:
    """An open store. Opening reads only the manifest; ids are mapped into memory when a split is opened."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        file = self.path / MANIFEST
        if not file.is_file():
            raise InputError(f"{self.path}: not a prepared store (no {MANIFEST}); 'anyorder prepare' makes one")
        self.manifest: dict[str, Any] = read_json(file)
        try:
            self.languages: tuple[str, ...] = tuple(self.manifest["languages"])
            self.text = TextConfig.from_json(self.manifest["text"])
            self._splits: dict[str, Any] = self.manifest["splits"]
            self._fingerprint: str = self.manifest["vocabulary"]["fingerprint"]
            self._dtype: np.dtype = DTYPES[self.manifest["dtype"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{file}: damaged manifest ({error})") from None
        if self.manifest.get("format") != FORMAT:
            raise InputError(f"{file}: format {self.manifest.get('format')}, expected {FORMAT}; prepare it again")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        vocabulary = Vocabulary.load(self.path)
        if vocabulary.fingerprint != self._fingerprint:
            raise InputError(
                f"{self.path}: wrong vocabulary: tokenizer.json is {vocabulary.fingerprint}, "
                f"the store was prepared with {self._fingerprint}"
            )
        return vocabulary

    def __contains__(self, name: str) -> bool:
        return name in self._splits

    def split(self, name: str) -> Split:
        if name not in self._splits:
            raise unknown("split", name, self._splits)
        record = self._splits[name]
        dtype = self._dtype
        sides = {}
        for language in record["languages"]:
            ids_file = self.path / ids_name(name, language)
            ends = self._array(ends_name(name, language))
            tokens = int(ends[-1]) if len(ends) else 0
            if not ids_file.exists() or ids_file.stat().st_size != tokens * dtype.itemsize:
                raise InputError(f"{ids_file}: expected {tokens * dtype.itemsize} bytes; the store is damaged")
            ids = np.memmap(ids_file, dtype, mode="r") if tokens else np.zeros(0, dtype)
            sides[language] = Side(ids, ends)
        corpus = self._array(corpus_name(name)) if record["parallel"] else None
        return Split(name, sides, tuple(record["corpora"]), corpus)

    def check_ids(self, split: Split, vocab_size: int) -> None:
        """An `InputError` if an id is outside a vocabulary of this size. Reads all ids."""
        for language, side in split.sides.items():
            largest = int(side.ids.max(initial=0))
            if largest >= vocab_size:
                file = self.path / ids_name(split.name, language)
                raise InputError(
                    f"{file}: the id {largest} is not one of the vocabulary's {vocab_size}; the store is damaged"
                )

    def _array(self, name: str) -> np.ndarray:
        try:
            return np.load(self.path / name, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{self.path / name}: the store is damaged ({error})") from None


def write_manifest(folder: Path, languages: tuple[str, ...], text: TextConfig, dtype: np.dtype, **rest: Any) -> None:
    manifest = {"format": FORMAT, "languages": languages, "text": asdict(text), "dtype": dtype.name, **rest}
    write_json(folder / MANIFEST, manifest)


def ids_name(split: str, language: str) -> str:
    return f"{split}.{language}.ids.bin"


def ends_name(split: str, language: str) -> str:
    return f"{split}.{language}.ends.npy"


def corpus_name(split: str) -> str:
    return f"{split}.corpus.npy"

"""Aligned text files to a prepared store: read, clean, tokenize, learn or load a vocabulary, encode, filter, write.

Two passes over the text, each spread over all cores; the words between them lie in a spool folder beside the store.
Everything is written into a temporary folder that takes the store's name only when it is complete.
"""

import hashlib
import os
import re
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from anyorder import progress
from anyorder.data import store
from anyorder.data.corpus import read_lines, read_parallel
from anyorder.data.packing import ranges
from anyorder.data.text import Text, TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError, check_number, unknown

CHUNK = 2048
MONOLINGUAL = "mono"
In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class Corpus:
    """Parallel files, one for each language in the store's order, or a single file of one language."""

    name: str
    files: tuple[Path, ...]
    labels: Path | None = None
    """A file that names the corpus of each line; it then replaces `name`."""


@dataclass(frozen=True)
class FilterConfig:
    """Which training pairs are kept; lengths are in subwords, inclusive. Other splits lose only empty lines."""

    min_length: int = 1
    """Shortest sentence, either side."""
    max_length: int = 100
    """Longest sentence, either side."""
    max_ratio: float = 0.0
    """Longest side over shortest side; 0 keeps every ratio."""

    def check(self) -> None:
        check_number("--filters.min_length", self.min_length, at_least=0)
        check_number("--filters.max_length", self.max_length, at_least=max(1, self.min_length))
        check_number("--filters.max_ratio", self.max_ratio, at_least=0)
        if 0 < self.max_ratio < 1:
            raise InputError(f"--filters.max-ratio {self.max_ratio}: expected 0 or a number of at least 1")

    def reasons(self, lengths: np.ndarray) -> np.ndarray:
        """Why each pair goes, as an index into `REASONS` (0: it stays). lengths: (pairs, languages)."""
        shortest, longest = lengths.min(1), lengths.max(1)
        why = np.zeros(len(lengths), np.int8)
        if self.max_ratio > 0:
            why[longest > self.max_ratio * shortest] = REASONS.index("ratio")
        why[longest > self.max_length] = REASONS.index("too long")
        why[shortest < self.min_length] = REASONS.index("too short")
        why[shortest == 0] = REASONS.index("empty")
        return why


REASONS = ("kept", "empty", "duplicate", "in another split", "too short", "too long", "ratio")
_ONLY_EMPTY = FilterConfig(max_length=np.iinfo(np.int64).max)


@dataclass
class FilterReport:
    """Where every line went: `lines[split, corpus][reason]`, and `moved[split]` for pairs held out of training."""

    lines: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    moved: Counter[str] = field(default_factory=Counter)

    def note(self, split: str, corpus: str, reason: str, count: int = 1) -> None:
        self.lines.setdefault((split, corpus), Counter())[reason] += count

    def kept(self, split: str) -> int:
        return sum(counts["kept"] for (name, _), counts in self.lines.items() if name == split)

    def as_json(self) -> dict[str, dict[str, dict[str, int]]]:
        told: dict[str, dict[str, dict[str, int]]] = {}
        for (split, corpus), counts in self.lines.items():
            told.setdefault(split, {})[corpus] = {reason: counts[reason] for reason in REASONS if counts[reason]}
        return told


def prepare(
    languages: tuple[str, ...],
    splits: dict[str, list[Corpus]],
    out: Path,
    *,
    mono: Sequence[Corpus] = (),
    vocabulary: Vocabulary | int = 16_000,
    rules: TextConfig | None = None,
    filters: FilterConfig | None = None,
    hold_out: dict[str, dict[str, int]] | None = None,
    workers: int | None = None,
) -> FilterReport:
    """Write a store at `out` and return the account of every line.

    `vocabulary` is one to reuse or the size of one to learn on the training and monolingual text. `hold_out` maps the
    name of a new split to how many of the last pairs of which corpora move there from training. The workers import the
    caller's main module, so a script that calls this needs the usual `if __name__ == "__main__":`.
    """
    rules = rules or TextConfig()
    filters = filters or FilterConfig()
    filters.check()
    check_number("--workers", workers, at_least=1)
    workers = workers or os.cpu_count() or 1
    _check_names(splits, hold_out or {})
    if not splits and not mono:
        raise InputError("nothing to prepare: name at least one parallel or monolingual corpus")
    account = FilterReport()
    with _fresh_folder(out) as folder, _pool(workers) as pool:
        spool = folder / "spool"
        spool.mkdir()
        seen: set[bytes] = set()
        texts: dict[str, _Words] = {}
        # Evaluation sets first: a training pair that stands in one of them is dropped.
        for name in sorted(splits, key=lambda split: split == "train"):
            texts[name] = _tokenize(pool, workers, spool, name, languages, splits[name], rules, seen, account)
        for corpus, language in _monolingual(mono, languages):
            name = f"{MONOLINGUAL}.{language}"
            if name in texts:
                raise InputError(f"two monolingual corpora for '{language}': join their files into one")
            texts[name] = _tokenize(pool, workers, spool, name, (language,), [corpus], rules, set(), account)
        for name, words in texts.items():
            if words.lines == 0:
                raise InputError(f"the split '{name}' is empty: its files hold no usable line")

        if not isinstance(vocabulary, Vocabulary):
            learn_from = [words for name, words in texts.items() if name == "train" or _is_monolingual(name)]
            counts = sum((words.counts for words in learn_from or texts.values()), Counter())
            with progress.bar(f"learning a vocabulary of {vocabulary:,} from {len(counts):,} words"):
                vocabulary = Vocabulary.learn(counts, vocabulary)
        vocabulary.save(folder)

        dtype = np.dtype(np.uint16 if len(vocabulary) <= 1 << 16 else np.uint32)
        about: dict[str, dict[str, Any]] = {}
        for name, words in texts.items():
            encoded = _encode(pool, workers, folder, words, dtype)
            monolingual = _is_monolingual(name)
            why = (filters if name == "train" or monolingual else _ONLY_EMPTY).reasons(encoded.lengths)
            for index, corpus_name in enumerate(words.corpora):
                for reason, count in enumerate(np.bincount(why[words.corpus == index], minlength=len(REASONS))):
                    if count:
                        account.note(name, corpus_name, REASONS[reason], int(count))
            rows = np.flatnonzero(why == 0)
            if monolingual:
                about.setdefault(MONOLINGUAL, {"parallel": False, "languages": [], "corpora": []})
                about[MONOLINGUAL]["languages"].append(words.languages[0])
                _write(folder, MONOLINGUAL, encoded, words, rows, parallel=False)
                continue
            destinations = {name: rows}
            if name == "train" and hold_out:
                destinations = _hold_out(hold_out, words, rows)
            for split, chosen in destinations.items():
                if split != name:
                    account.moved[split] += len(chosen)
                if len(chosen) == 0:
                    where = account.as_json()[name]
                    raise InputError(f"the split '{split}' is empty: every pair was dropped ({where})")
                about[split] = {
                    "parallel": True,
                    "languages": list(languages),
                    "corpora": list(words.corpora),
                    "pairs": len(chosen),
                }
                _write(folder, split, encoded, words, chosen, parallel=True)
        shutil.rmtree(spool)
        inputs = {
            file.name: _sha256(file)
            for corpus in chain(*splits.values(), mono)
            for file in (*corpus.files, *([corpus.labels] if corpus.labels else []))
        }
        store.write_manifest(
            folder,
            languages,
            rules,
            dtype,
            vocabulary={"size": len(vocabulary), "fingerprint": vocabulary.fingerprint},
            splits=about,
            lines=account.as_json(),
            inputs=inputs,
        )
    return account


def _check_names(splits: Iterable[str], hold_out: Iterable[str]) -> None:
    """Every split has a name of its own, which can be part of a file's name."""
    names = [*splits, *hold_out]
    for name in names:
        if not re.fullmatch(r"[\w-]+", name) or name == MONOLINGUAL:
            raise InputError(f"'{name}' cannot be the name of a split: expected letters, digits, - and _")
        if names.count(name) > 1:
            raise InputError(f"split '{name}' is named twice")
    if hold_out and "train" not in names:
        raise InputError("--hold-out takes pairs from training: give --train")


def _is_monolingual(name: str) -> bool:
    return name.startswith(f"{MONOLINGUAL}.")


def parse_corpora(spec: str, languages: Sequence[str]) -> list[Corpus]:
    """`[NAME=]PATTERN[@LABELS]`, several separated by commas; `%` in a pattern stands for the language.

    >>> parse_corpora("news=n.%.xz", ["de", "en"])[0].files
    (PosixPath('n.de.xz'), PosixPath('n.en.xz'))
    """
    corpora = []
    for entry in filter(None, (part.strip() for part in spec.split(","))):
        pattern, _, labels = entry.partition("@")
        name, equals, rest = pattern.partition("=")
        pattern = rest if equals else pattern
        if "%" not in pattern:
            raise InputError(f"'{entry}': a corpus is written with % for the language, such as data/train.%.xz")
        name = name if equals else Path(pattern).name.split(".%")[0]
        files = tuple(Path(pattern.replace("%", language)) for language in languages)
        corpora.append(Corpus(name, files, Path(labels) if labels else None))
    return corpora


@dataclass
class _Words:
    """A split between the two passes: its words in spool files, the corpus of each line, how often each word occurs."""

    languages: tuple[str, ...]
    files: list[Path]
    corpora: tuple[str, ...]
    corpus: np.ndarray
    counts: Counter[str]

    @property
    def lines(self) -> int:
        return len(self.corpus)


@dataclass
class _Encoded:
    """A split after the second pass, unfiltered."""

    ids: list[np.ndarray]
    """Per language: (tokens,), memory-mapped."""
    lengths: np.ndarray
    """(lines, languages)"""


def _tokenize(
    pool: Executor,
    workers: int,
    spool: Path,
    split: str,
    languages: tuple[str, ...],
    corpora: list[Corpus],
    rules: TextConfig,
    seen: set[bytes],
    account: FilterReport,
) -> _Words:
    names: dict[str, int] = {}
    corpus_of: list[int] = []
    counts: Counter[str] = Counter()
    files = [spool / f"{split}.{language}" for language in languages]

    def rows() -> Iterator[tuple[str, ...]]:
        own: set[bytes] = set()
        for corpus in corpora:
            for name, lines in _read(corpus, len(languages)):
                index = names.setdefault(name, len(names))
                if not all(line and not line.isspace() for line in lines):
                    account.note(split, name, "empty")
                    continue
                if split == "train" or len(languages) == 1:
                    digest = _digest(lines)
                    if digest in seen or digest in own:
                        account.note(split, name, "in another split" if digest in seen else "duplicate")
                        continue
                    own.add(digest)
                else:
                    seen.add(_digest(lines))
                corpus_of.append(index)
                yield lines
        if len(names) > 256:
            raise InputError(f"the split '{split}' names {len(names)} corpora; at most 256 can be told apart")

    work = partial(_words_of, languages, rules)
    with progress.bar(f"tokenising {split}", unit="lines") as bar:
        outputs = [file.open("w", encoding="utf-8", newline="\n") for file in files]
        try:
            for columns, chunk_counts, size in _ordered_map(pool, workers, work, _chunks(rows())):
                for output, column in zip(outputs, columns, strict=True):
                    output.write(column)
                counts.update(chunk_counts)
                bar.advance(size)
        finally:
            for output in outputs:
                output.close()
    return _Words(languages, files, tuple(names), np.array(corpus_of, np.uint8), counts)


def _encode(pool: Executor, workers: int, folder: Path, words: _Words, dtype: np.dtype) -> _Encoded:
    ids: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    for file in words.files:
        raw = file.with_name(file.name + ".ids")
        pieces = []
        with progress.bar(f"encoding {file.name}", words.lines, "lines") as bar, raw.open("wb") as output:
            work = partial(_ids_of, folder, dtype)
            for chunk_ids, chunk_lengths in _ordered_map(pool, workers, work, _chunks(read_lines(file))):
                output.write(chunk_ids.tobytes())
                pieces.append(chunk_lengths)
                bar.advance(len(chunk_lengths))
        lengths.append(np.concatenate(pieces))
        ids.append(np.memmap(raw, dtype, mode="r") if raw.stat().st_size else np.zeros(0, dtype))
    return _Encoded(ids, np.stack(lengths, axis=1))


def _write(folder: Path, split: str, encoded: _Encoded, words: _Words, rows: np.ndarray, parallel: bool) -> None:
    for side, language in enumerate(words.languages):
        lengths = encoded.lengths[:, side]
        starts = np.cumsum(lengths) - lengths
        with (folder / store.ids_name(split, language)).open("wb") as output:
            for block in np.array_split(rows, max(1, len(rows) // 100_000)):
                output.write(encoded.ids[side][ranges(starts[block], lengths[block])].tobytes())
        np.save(folder / store.ends_name(split, language), np.cumsum(lengths[rows], dtype=np.int64))
    if parallel:
        np.save(folder / store.corpus_name(split), words.corpus[rows])


def _hold_out(wanted: dict[str, dict[str, int]], words: _Words, rows: np.ndarray) -> dict[str, np.ndarray]:
    taken: dict[str, list[np.ndarray]] = {}
    free = np.ones(len(rows), bool)
    for split, amounts in wanted.items():
        for name, amount in amounts.items():
            if name not in words.corpora:
                raise unknown("corpus", name, words.corpora)
            candidates = np.flatnonzero(free & (words.corpus[rows] == words.corpora.index(name)))
            if len(candidates) < amount:
                raise InputError(f"cannot hold out {amount} pairs of '{name}': it has {len(candidates)}")
            chosen = candidates[len(candidates) - amount :]
            free[chosen] = False
            taken.setdefault(split, []).append(rows[chosen])
    return {"train": rows[free], **{split: np.concatenate(parts) for split, parts in taken.items()}}


def _read(corpus: Corpus, languages: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each line with the name of its corpus."""
    if corpus.labels is None:
        for lines in read_parallel(corpus.files):
            yield corpus.name, lines
    else:
        for row in read_parallel((*corpus.files, corpus.labels)):
            yield row[languages], row[:languages]


def _monolingual(mono: Sequence[Corpus], languages: tuple[str, ...]) -> Iterator[tuple[Corpus, str]]:
    for corpus in mono:
        if corpus.labels:
            raise InputError(f"{corpus.labels}: labels go with parallel corpora only")
        for file, language in zip(corpus.files, languages, strict=True):
            if file.exists():
                yield Corpus(corpus.name, (file,)), language
        if not any(file.exists() for file in corpus.files):
            raise InputError(f"{corpus.files[0]}: no such file, nor one for another language")


def _words_of(
    languages: tuple[str, ...], rules: TextConfig, rows: list[tuple[str, ...]]
) -> tuple[list[str], Counter[str], int]:
    """First pass, in a worker: the words of each language, a line each, and their counts."""
    columns = []
    counts: Counter[str] = Counter()
    for language, column in zip(languages, zip(*rows, strict=True), strict=True):
        text = _text(language, rules)
        lines = [text.words(line) for line in column]
        joined = "\n".join(lines) + "\n"
        counts.update(joined.split())
        columns.append(joined)
    return columns, counts, len(rows)


def _ids_of(folder: Path, dtype: np.dtype, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Second pass, in a worker: ids end to end and the length of each line."""
    encoded = _vocabulary(folder).encode(lines)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return np.fromiter(chain.from_iterable(encoded), dtype, int(lengths.sum())), lengths


@cache
def _text(language: str, rules: TextConfig) -> Text:
    return Text(language, rules)


@cache
def _vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary.load(folder)


def _ordered_map(pool: Executor, workers: int, work: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """`map` over the pool, in order, with only a few items under way: memory stays flat however long the corpus."""
    pending: deque[Future[Out]] = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) >= 4 * workers:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _chunks(items: Iterable[In]) -> Iterator[list[In]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _pool(workers: int) -> ProcessPoolExecutor:
    # The pool is the parallelism; threads of the tokenizer inside each worker would fight it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


@contextmanager
def _fresh_folder(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` if the block succeeds and vanishes if it does not."""
    if out.exists():
        raise InputError(f"{out}: already exists; remove it or choose another place for the store")
    folder = out.with_name(f"{out.name}.partial-{os.getpid()}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None
    try:
        yield folder
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _digest(lines: tuple[str, ...]) -> bytes:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=12).digest()


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

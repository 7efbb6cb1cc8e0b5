"""Turn text files into a prepared store: tokenize, learn or load a vocabulary, encode, filter, write.

There are two passes over the text, each spread over all cores; between them, the words are kept in a spool folder in
the unfinished store. The store gets its name only when it is complete. Nothing here knows about models or training.
"""

import hashlib
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from anyorder import progress
from anyorder.cluster import Cluster
from anyorder.data import store
from anyorder.data.corpus import Corpus, read_lines, split_by_language
from anyorder.data.packing import Side
from anyorder.data.text import Text, TextConfig
from anyorder.data.vocabulary import Vocabulary, balance_languages
from anyorder.data.workers import MAX_WORKERS, Workers, blocks
from anyorder.errors import InputError, check_number, unknown
from anyorder.files import atomic_folder, sha256

MONOLINGUAL = "mono"
MAX_VOCABULARY = 10_000_000
"""Maximum size of a learned vocabulary."""
BLOCK = 2048
"""Lines that a process works on at a time."""
REASONS = ("kept", "empty", "duplicate", "in another split", "too short", "too long", "ratio")


@dataclass(frozen=True)
class FilterConfig:
    """Which training pairs to keep; lengths are in subwords, inclusive. Other splits lose only empty lines."""

    min_length: int = 1
    """Minimum length of either side, in subwords."""
    max_length: int = 100
    """Maximum length of either side, in subwords."""
    max_ratio: float = 0.0
    """Maximum length ratio (longer side / shorter side); 0 for no limit."""

    def __post_init__(self) -> None:
        check_number("min_length", self.min_length, at_least=0, config=FilterConfig)
        check_number("max_length", self.max_length, at_least=max(1, self.min_length), config=FilterConfig)
        check_number("max_ratio", self.max_ratio, at_least=0, config=FilterConfig)
        if 0 < self.max_ratio < 1:
            raise InputError(f"{self.max_ratio}: expected 0 or a number of at least 1", "max_ratio", FilterConfig)

    def reasons(self, lengths: np.ndarray) -> np.ndarray:
        """Why each pair is dropped, as an index into `REASONS` (0: it is kept). lengths: (pairs, languages)."""
        shorter, longer = lengths.min(1), lengths.max(1)
        reasons = np.zeros(len(lengths), np.int8)
        if self.max_ratio > 0:
            reasons[longer > self.max_ratio * shorter] = REASONS.index("ratio")
        reasons[longer > self.max_length] = REASONS.index("too long")
        reasons[shorter < self.min_length] = REASONS.index("too short")
        reasons[shorter == 0] = REASONS.index("empty")
        return reasons


ONLY_EMPTY = FilterConfig(max_length=np.iinfo(np.int64).max)
"""Drops pairs with an empty side and nothing else."""


@dataclass
class FilterReport:
    """Where every line went: `lines[split, corpus][reason]`, and `held_out[split]` for pairs taken out of training."""

    lines: defaultdict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    held_out: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """Lines by split, corpus and reason."""
        record: dict[str, dict[str, dict[str, int]]] = {}
        for (split, corpus), counts in self.lines.items():
            record.setdefault(split, {})[corpus] = {reason: counts[reason] for reason in REASONS if counts[reason]}
        return record


def prepare(
    languages: Sequence[str],
    splits: Mapping[str, Sequence[Corpus]],
    out: Path,
    *,
    mono: Sequence[Corpus] = (),
    vocabulary: Vocabulary | int = 16_000,
    vocabulary_alpha: float = 1.0,
    text: TextConfig | None = None,
    filters: FilterConfig | None = None,
    hold_out: Mapping[str, Mapping[str, int]] | None = None,
    workers: int | None = None,
    cluster: Cluster | None = None,
) -> FilterReport:
    """Write a store and return the report of where every line went.

    The worker processes import the caller's main module, so a script that calls this needs the usual
    `if __name__ == "__main__":` guard.

    Args:
        languages: Codes of the languages, such as `("de", "en")`.
        splits: Parallel corpora of each split, such as `train` and `dev`.
        out: The folder to write; it must not exist.
        mono: Monolingual corpora for pretraining.
        vocabulary: A vocabulary to reuse, or the size of one to learn from the training and monolingual text.
        vocabulary_alpha: Below 1, languages with less text get more weight when it is learned; see `balance_languages`.
        hold_out: New splits made of the last pairs of training corpora: `{"order": {"news": 5000}}`.
        workers: Number of processes; one per core if None.
        cluster: Use the cores of these machines instead. They must see the folder of `out`, too.
    """
    languages, text, filters = tuple(languages), text or TextConfig(), filters or FilterConfig()
    hold_out = hold_out or {}
    check_number("workers", workers, at_least=1, at_most=MAX_WORKERS)
    if workers is not None and cluster is not None:
        raise InputError("are of one machine; a cluster knows its own", "workers")
    if isinstance(vocabulary, int):
        check_number("vocabulary", vocabulary, at_least=1, at_most=MAX_VOCABULARY)
    check_number("vocabulary_alpha", vocabulary_alpha, at_least=0, at_most=1)
    _check_split_names(splits, hold_out)
    if not splits and not mono:
        raise InputError("nothing to prepare: name at least one parallel or monolingual corpus")
    monolingual = split_by_language(mono, languages)
    report = FilterReport()
    processes = Workers(workers or os.cpu_count() or 1) if cluster is None else nullcontext(cluster)
    with atomic_folder(out, replace=False) as folder, processes as pool:
        spool = folder / "spool"
        spool.mkdir()
        tokenized: dict[str, _TokenizedSplit] = {}
        evaluation: EvaluationLines = defaultdict(set)
        # Evaluation sets come first: training pairs and monolingual sentences that occur in them are dropped.
        texts = [(name, languages, splits[name]) for name in sorted(splits, key=_is_training)]
        texts += [(f"{MONOLINGUAL}.{language}", (language,), corpora) for language, corpora in monolingual.items()]
        for name, spoken, corpora in texts:
            lines = UsableLines(name, spoken, corpora, report, evaluation)
            tokenized[name] = _tokenize(pool, spool, lines, text)
        for name, words in tokenized.items():
            if len(words.corpus) == 0:
                raise InputError(f"the split '{name}' is empty: its files hold no usable line")

        if not isinstance(vocabulary, Vocabulary):
            vocabulary = _learn_vocabulary(tokenized, vocabulary, vocabulary_alpha)
        vocabulary.save(folder)

        dtype = np.dtype(np.uint16 if len(vocabulary) <= 1 << 16 else np.uint32)
        written: dict[str, dict[str, Any]] = {}
        for name, words in tokenized.items():
            sides = _encode(pool, folder, len(vocabulary), words, dtype)
            kept = _filter(name, words, sides, filters, report)
            if _is_monolingual(name):
                written.setdefault(MONOLINGUAL, {"parallel": False, "languages": [], "corpora": []})
                written[MONOLINGUAL]["languages"].extend(sides)
                _write(folder, MONOLINGUAL, sides, kept)
                continue
            for split, pairs in _hold_out(hold_out if name == "train" else {}, name, words, kept).items():
                if split != name:
                    report.held_out[split] += len(pairs)
                if len(pairs) == 0:
                    raise InputError(f"the split '{split}' is empty: every pair was dropped ({report.as_json()[name]})")
                written[split] = {
                    "parallel": True,
                    "languages": list(languages),
                    "corpora": list(words.corpora),
                    "pairs": len(pairs),
                }
                _write(folder, split, sides, pairs)
                store.write_corpus(folder, split, words.corpus[pairs])
        shutil.rmtree(spool)
        inputs = [file for corpus in chain(*splits.values(), *monolingual.values()) for file in corpus.inputs]
        store.write_manifest(
            folder,
            languages,
            text,
            dtype,
            vocabulary={"size": len(vocabulary), "fingerprint": vocabulary.fingerprint},
            splits=written,
            lines=report.as_json(),
            inputs={file.name: sha256(file) for file in inputs},
        )
    report.lines.default_factory = None  # reading a name that is not there is an error from now on
    return report


def _check_split_names(splits: Iterable[str], hold_out: Iterable[str]) -> None:
    """Split names must be unique and usable as part of a file name."""
    names = [*splits, *hold_out]
    for name in names:
        if not store.is_split_name(name) or name == MONOLINGUAL:
            raise InputError(f"'{name}' cannot be the name of a split: expected letters, digits, - and _")
        if names.count(name) > 1:
            raise InputError(f"split '{name}' is named twice")
    if hold_out and "train" not in names:
        raise InputError("takes pairs from the split 'train', which is not given", "hold_out")


def _is_monolingual(name: str) -> bool:
    return name.startswith(f"{MONOLINGUAL}.")


def _is_training(name: str) -> bool:
    return name == "train" or _is_monolingual(name)


EvaluationLines = defaultdict[tuple[str, ...], set[bytes]]
"""Digests of the evaluation splits by languages: whole pairs, and the sentences of each language."""


def _digest(lines: Sequence[str]) -> bytes:
    # 96 bits: among a billion lines, the chance that any two share a digest is below 1e-11. A set of strings is larger.
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=12).digest()


@dataclass
class UsableLines:
    """The usable lines of a split: empty ones are counted and skipped.

    So are duplicates and lines that occur in an evaluation split, unless this is an evaluation split itself: its lines
    are added to `evaluation`, which all splits share.
    """

    split: str
    languages: tuple[str, ...]
    inputs: Sequence[Corpus]
    report: FilterReport
    evaluation: EvaluationLines
    corpora: dict[str, int] = field(default_factory=dict)
    """The index of each corpus by name, collected while the lines are read."""
    corpus_of: list[int] = field(default_factory=list)
    """The index of each line's corpus, collected likewise."""

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        seen: set[bytes] = set()
        for corpus in self.inputs:
            for name, lines in corpus.lines():
                index = self.corpora.setdefault(name, len(self.corpora))
                reason = self._reason_to_drop(lines, seen)
                if reason:
                    self.report.lines[self.split, name][reason] += 1
                    continue
                self.corpus_of.append(index)
                yield lines
        count, most = len(self.corpora), store.MAX_CORPORA
        if count > most:
            raise InputError(f"the split '{self.split}' names {count} corpora; at most {most} can be told apart")

    def _reason_to_drop(self, lines: tuple[str, ...], seen: set[bytes]) -> str | None:
        if not all(line and not line.isspace() for line in lines):
            return "empty"
        if not _is_training(self.split):
            self.evaluation[self.languages].add(_digest(lines))
            for line, language in zip(lines, self.languages, strict=True):
                self.evaluation[language,].add(_digest((line,)))
            return None
        digest = _digest(lines)
        if digest in self.evaluation[self.languages]:
            return "in another split"
        if digest in seen:
            return "duplicate"
        seen.add(digest)
        return None


@dataclass
class _TokenizedSplit:
    """A split after the first pass: its words in spool files, their counts, and the corpus of each line."""

    files: dict[str, Path]
    """By language."""
    counts: dict[str, Counter[str]]
    """By language."""
    corpora: tuple[str, ...]
    corpus: np.ndarray
    """(lines,) uint8"""


def _tokenize(pool: Workers | Cluster, spool: Path, lines: UsableLines, text: TextConfig) -> _TokenizedSplit:
    """The first pass."""
    counts: dict[str, Counter[str]] = {language: Counter() for language in lines.languages}
    files = {language: spool / f"{lines.split}.{language}" for language in lines.languages}
    work = partial(_words_of, lines.languages, text)
    with progress.bar(f"tokenizing {lines.split}", unit="lines") as bar, ExitStack() as opened:
        outputs = [opened.enter_context(file.open("w", encoding="utf-8", newline="\n")) for file in files.values()]
        for columns, chunk_counts, size in pool.map(work, blocks(lines, BLOCK)):
            for output, column in zip(outputs, columns, strict=True):
                output.write(column)
            for total, column_counts in zip(counts.values(), chunk_counts, strict=True):
                total.update(column_counts)
            bar.advance(size)
    return _TokenizedSplit(files, counts, tuple(lines.corpora), np.array(lines.corpus_of, np.uint8))


def _learn_vocabulary(tokenized: Mapping[str, _TokenizedSplit], size: int, alpha: float) -> Vocabulary:
    """From training and monolingual text, or from everything if there is neither."""
    training = [words for name, words in tokenized.items() if _is_training(name)]
    by_language: dict[str, Counter[str]] = {}
    for words in training or tokenized.values():
        for language, language_counts in words.counts.items():
            by_language.setdefault(language, Counter()).update(language_counts)
    counts = balance_languages(by_language, alpha)
    with progress.bar(f"learning a vocabulary of {size:,} from {len(counts):,} words"):
        return Vocabulary.learn(counts, size)


def _encode(
    pool: Workers | Cluster, folder: Path, vocab_size: int, words: _TokenizedSplit, dtype: np.dtype
) -> dict[str, Side]:
    """The second pass: all lines by language, not filtered yet, their ids memory-mapped."""
    sides, work = {}, partial(_ids_of, folder.absolute(), vocab_size, dtype)
    for language, file in words.files.items():
        ids_file = file.with_name(file.name + ".ids")
        lengths = []
        with progress.bar(f"encoding {file.name}", len(words.corpus), "lines") as bar, ids_file.open("wb") as output:
            for chunk_ids, chunk_lengths in pool.map(work, blocks(read_lines(file), BLOCK)):
                output.write(chunk_ids.tobytes())
                lengths.append(chunk_lengths)
                bar.advance(len(chunk_lengths))
        ids = np.memmap(ids_file, dtype, mode="r") if ids_file.stat().st_size else np.zeros(0, dtype)
        sides[language] = Side(ids, np.cumsum(np.concatenate(lengths)))
    return sides


def _filter(
    name: str, words: _TokenizedSplit, sides: Mapping[str, Side], filters: FilterConfig, report: FilterReport
) -> np.ndarray:
    """Indices of the lines to keep; the report counts every line."""
    lengths = np.stack([side.lengths for side in sides.values()], axis=1)
    reasons = (filters if _is_training(name) else ONLY_EMPTY).reasons(lengths)
    for index, corpus in enumerate(words.corpora):
        for reason, lines in enumerate(np.bincount(reasons[words.corpus == index], minlength=len(REASONS))):
            if lines:
                report.lines[name, corpus][REASONS[reason]] += int(lines)
    return np.flatnonzero(reasons == 0)


def _hold_out(
    hold_out: Mapping[str, Mapping[str, int]], name: str, words: _TokenizedSplit, kept: np.ndarray
) -> dict[str, np.ndarray]:
    """The lines of each new split, and what remains of `name`: indices into the tokenized lines."""
    held_out: dict[str, list[np.ndarray]] = {}
    remains = np.ones(len(kept), bool)
    for split, amounts in hold_out.items():
        for corpus, amount in amounts.items():
            if corpus not in words.corpora:
                raise unknown("corpus", corpus, words.corpora)
            candidates = np.flatnonzero(remains & (words.corpus[kept] == words.corpora.index(corpus)))
            if len(candidates) < amount:
                raise InputError(f"cannot hold out {amount} pairs of '{corpus}': it has {len(candidates)}")
            last = candidates[len(candidates) - amount :]
            remains[last] = False
            held_out.setdefault(split, []).append(kept[last])
    return {name: kept[remains], **{split: np.concatenate(parts) for split, parts in held_out.items()}}


def _write(folder: Path, split: str, sides: Mapping[str, Side], lines: np.ndarray) -> None:
    """Write the sides of a split that consists of these lines."""
    for language, side in sides.items():
        store.write_side(folder, split, language, side.blocks(lines), side.lengths[lines])


def _words_of(
    languages: tuple[str, ...], config: TextConfig, rows: list[tuple[str, ...]]
) -> tuple[list[str], list[Counter[str]], int]:
    """First pass, in a worker: the words of each language, one line per row, and their counts."""
    columns, counts = [], []
    for language, column in zip(languages, zip(*rows, strict=True), strict=True):
        text = _text_of(language, config)
        joined = "\n".join(text.words(line) for line in column) + "\n"
        counts.append(Counter(joined.split()))
        columns.append(joined)
    return columns, counts, len(rows)


def _ids_of(folder: Path, vocab_size: int, dtype: np.dtype, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Second pass, in a worker: (tokens,) the ids of all lines end to end, and (lines,) the length of each."""
    encoded = _vocabulary_in(folder, vocab_size).encode(lines)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return np.fromiter(chain.from_iterable(encoded), dtype, int(lengths.sum())), lengths


# Each worker makes these once.
_text_of = cache(Text)
_vocabulary_in = cache(Vocabulary.load)

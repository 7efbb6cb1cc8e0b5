"""Which lines of a corpus are kept, and the report of where every line went. Knows nothing of words, ids or stores."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from anyorder.data.corpus import Corpus
from anyorder.errors import InputError, check_number

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

    lines: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    held_out: Counter[str] = field(default_factory=Counter)

    def count(self, split: str, corpus: str, reason: str, lines: int = 1) -> None:
        self.lines.setdefault((split, corpus), Counter())[reason] += lines

    def as_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """Lines by split, corpus and reason."""
        record: dict[str, dict[str, dict[str, int]]] = {}
        for (split, corpus), counts in self.lines.items():
            record.setdefault(split, {})[corpus] = {reason: counts[reason] for reason in REASONS if counts[reason]}
        return record


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
    is_evaluation: bool
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
                    self.report.count(self.split, name, reason)
                    continue
                self.corpus_of.append(index)
                yield lines
        if len(self.corpora) > 256:
            raise InputError(
                f"the split '{self.split}' names {len(self.corpora)} corpora; at most 256 can be told apart"
            )

    def _reason_to_drop(self, lines: tuple[str, ...], seen: set[bytes]) -> str | None:
        if not all(line and not line.isspace() for line in lines):
            return "empty"
        if self.is_evaluation:
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

"""Sentences packed end to end into one row, `</s>` on both sides of each, no padding. numpy, no Python loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyorder.data.ragged import ranges, starts_of
from anyorder.data.store import Side


@dataclass(frozen=True)
class Row:
    """Segments end to end. Positions start at 0 in every segment."""

    tokens: np.ndarray
    """(tokens,) int64"""
    positions: np.ndarray
    languages: np.ndarray
    sizes: np.ndarray
    """(segments,) delimiters included."""

    @property
    def inner(self) -> np.ndarray:
        """Where the words are: every place but the delimiters."""
        return ranges(starts_of(self.sizes) + 1, self.sizes - 2)

    def repeated(self, copies: int) -> "Row":
        """Every segment so many times, its copies side by side."""
        sizes = np.repeat(self.sizes, copies)
        take = ranges(np.repeat(starts_of(self.sizes), copies), sizes)
        return Row(self.tokens[take], self.positions[take], self.languages[take], sizes)


def pack(sides: Sequence[Side], side: np.ndarray, sentence: np.ndarray, languages: np.ndarray, eos: int) -> Row:
    """Segment i is `</s> words </s>` of sentence `sentence[i]` of `sides[side[i]]`, in language `languages[i]`."""
    lengths = np.empty(len(side), np.int64)
    chosen = [np.flatnonzero(side == number) for number in range(len(sides))]
    for one, segments in zip(sides, chosen, strict=True):
        lengths[segments] = one.lengths[sentence[segments]]
    sizes = lengths + 2
    begins = starts_of(sizes)
    tokens = np.full(int(sizes.sum()), eos, np.int64)
    for one, segments in zip(sides, chosen, strict=True):
        size = lengths[segments]
        tokens[ranges(begins[segments] + 1, size)] = one.ids[ranges(one.starts[sentence[segments]], size)]
    return Row(tokens, ranges(np.zeros_like(sizes), sizes), np.repeat(languages, sizes), sizes)


def pack_sentences(sentences: Sequence[Sequence[int] | np.ndarray], languages: np.ndarray, eos: int) -> Row:
    """The same for sentences that are not in a store."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    ids = np.concatenate([np.asarray(sentence, np.int64) for sentence in sentences])
    count = len(sentences)
    return pack([Side(ids, np.cumsum(lengths))], np.zeros(count, np.int64), np.arange(count), languages, eos)

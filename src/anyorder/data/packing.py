"""Sentences packed end to end into one row, each between two `</s>`, no padding. NumPy, no Python loop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Side:
    """One language of a split: `ids[ends[i-1]:ends[i]]` is sentence i."""

    ids: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> np.ndarray:
        return self.ids[self.starts[i] : self.ends[i]]

    @cached_property
    def starts(self) -> np.ndarray:
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])

    @cached_property
    def lengths(self) -> np.ndarray:
        return self.ends - self.starts

    def take(self, rows: np.ndarray) -> "Side":
        """These sentences, in this order."""
        return Side(np.concatenate(list(self.blocks(rows))), np.cumsum(self.lengths[rows]))

    def blocks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """The ids of these sentences end to end, in blocks: indexing all at once would take far more memory."""
        for block in np.array_split(rows, max(1, len(rows) // 100_000)):
            yield self.ids[ranges(self.starts[block], self.lengths[block])]


@dataclass(frozen=True)
class PackedBatch:
    """Segments end to end. Positions start at 0 in every segment."""

    tokens: np.ndarray
    """(tokens,) int64"""
    positions: np.ndarray
    languages: np.ndarray
    sizes: np.ndarray
    """(segments,) length of each, delimiters included."""

    @property
    def inner(self) -> np.ndarray:
        """Indices of all tokens except the delimiters."""
        return ranges(starts_of(self.sizes) + 1, self.sizes - 2)

    @property
    def starts(self) -> np.ndarray:
        """(segments,) where each segment begins."""
        return starts_of(self.sizes)

    def take(self, segments: np.ndarray) -> "PackedBatch":
        """A selection of the segments, by index; indices may repeat."""
        sizes = self.sizes[segments]
        rows = ranges(self.starts[segments], sizes)
        return PackedBatch(self.tokens[rows], self.positions[rows], self.languages[rows], sizes)


def pack(sides: Sequence[Side], side: np.ndarray, sentence: np.ndarray, languages: np.ndarray, eos: int) -> PackedBatch:
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
    return PackedBatch(tokens, ranges(np.zeros_like(sizes), sizes), np.repeat(languages, sizes), sizes)


def pack_sentences(sentences: Sequence[Sequence[int] | np.ndarray], languages: np.ndarray, eos: int) -> PackedBatch:
    """The same for sentences that are not in a store."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return pack_ids(np.concatenate([np.asarray(sentence, np.int64) for sentence in sentences]), lengths, languages, eos)


def pack_ids(ids: np.ndarray, lengths: np.ndarray, languages: np.ndarray, eos: int) -> PackedBatch:
    """The same for sentences of these lengths that are end to end in `ids`."""
    count = len(lengths)
    return pack([Side(ids, np.cumsum(lengths))], np.zeros(count, np.int64), np.arange(count), languages, eos)


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The ranges `starts[i] .. starts[i] + lengths[i]` end to end.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Where each segment begins if segments of these lengths are concatenated."""
    return np.cumsum(lengths) - lengths


def same_shapes(*sizes: np.ndarray) -> Iterator[tuple[list[int], np.ndarray]]:
    """Every combination of sizes that occurs, ascending, with the indices of the segments that have it.

    sizes: (segments,) each
    """
    shapes, shape_of = np.unique(np.stack(sizes), axis=1, return_inverse=True)
    for number, shape in enumerate(shapes.T.tolist()):
        yield shape, np.flatnonzero(shape_of.reshape(-1) == number)


def padded_rows(starts: np.ndarray, lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(segments, width): the rows of each segment, its first row repeated as padding, and which of them are real."""
    column = np.arange(width)
    real = column < lengths[:, None]
    return starts[:, None] + np.where(real, column, 0), real


def round_up(lengths: np.ndarray, step: int) -> np.ndarray:
    """The next multiples of `step`."""
    return -(-lengths // step) * step

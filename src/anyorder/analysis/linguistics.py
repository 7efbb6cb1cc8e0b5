"""What the order has to do with the language: parts of words, parts of speech, constituents, frequency, repetitions.

A `Text` is what one system wrote, all sentences end to end as one row of tokens; `Ranks` says when each of these was
filled, for the orders as they were and for any number of shuffled ones at once (leading axis K). Every measure gives
what to sum over sentences: (K, sentences) numerators and (sentences,) denominators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import numpy as np

from anyorder.analysis.order_metrics import Array
from anyorder.data.subwords import join_subwords

Span = tuple[int, int]
"""First place and the one behind the last."""
Sum = tuple[Array, Array]
"""(K, sentences) numerators and (sentences,) denominators."""

FUNCTION = frozenset({"ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ"})
"""Universal tags of function words."""
CONTENT = frozenset({"ADJ", "ADV", "INTJ", "NOUN", "NUM", "PROPN", "VERB"})
"""Universal tags of content words. Punctuation and symbols are neither."""


# Words.


@cache
def is_punctuation(token: str) -> bool:
    """Neither letter nor digit in it."""
    return not any(character.isalnum() for character in token)


@dataclass(frozen=True)
class Annotation:
    """What a parser says of one sentence."""

    tags: list[str] | None
    """Part of speech of each word."""
    spans: list[Span] | None
    """Constituents, in tokens: of at least two words, and not the whole sentence."""


class Text:
    """The tokens of all sentences end to end, and their structure."""

    def __init__(self, sentences: Sequence[Sequence[str]], annotations: Sequence[Annotation] | None = None):
        self.sentences = sentences
        self.lengths = np.array([len(one) for one in sentences], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])[:-1]
        self.owner = np.repeat(np.arange(len(sentences)), self.lengths)
        """(tokens,) the sentence each is in."""
        joined = [join_subwords(one) for one in sentences]
        self.words = [words for words, _ in joined]
        self.word_numbers = [numbers for _, numbers in joined]
        self.ends_in_punctuation = np.array([bool(one) and is_punctuation(one[-1]) for one in sentences], bool)
        self.annotations = annotations

    @cached_property
    def suffixes(self) -> Array:
        """Tokens that continue a word and have a neighbour on both sides."""
        return np.array(
            [
                start + i
                for start, numbers in zip(self.starts.tolist(), self.word_numbers, strict=True)
                for i in range(1, len(numbers) - 1)
                if numbers[i] == numbers[i - 1]
            ],
            np.int64,
        )

    @cached_property
    def tags(self) -> Array | None:
        """(tokens,) each with the tag of its word; empty where a sentence has none."""
        if self.annotations is None or all(one.tags is None for one in self.annotations):
            return None
        tags: list[str] = []
        for one, numbers in zip(self.annotations, self.word_numbers, strict=True):
            tags += [one.tags[number] if one.tags else "" for number in numbers]
        return np.array(tags, np.str_)

    @cached_property
    def spans(self) -> tuple[Array, Array, Array] | None:
        """First token, token behind the last, and sentence of every constituent."""
        if self.annotations is None or all(one.spans is None for one in self.annotations):
            return None
        rows = [
            (start + first, start + behind, number)
            for number, (one, start) in enumerate(zip(self.annotations, self.starts.tolist(), strict=True))
            for first, behind in one.spans or ()
        ]
        first, behind, owner = np.array(rows, np.int64).reshape(-1, 3).T
        return first, behind, owner

    def frequencies(self, counts: Mapping[str, int]) -> Array:
        """(tokens,) logarithm of how often each token occurs."""
        return np.array([np.log(counts[token]) for one in self.sentences for token in one], np.float64)


@dataclass(frozen=True)
class Ranks:
    """When every token was filled: (K, tokens) each, see `shape.ranks`."""

    earlier: Array
    until: Array
    relative: Array


# Measures.


def suffixes_last(text: Text, ranks: Ranks) -> tuple[Sum, Sum]:
    """Suffixes filled later than both neighbours: sentences that have such a one, of those that have a suffix at all
    (the paper's figure); and such suffixes, of all of them.

    A suffix is a token that continues a word: the one before it ends in `@@`. It needs a neighbour on both sides.
    """
    at, count = text.suffixes, len(text.sentences)
    own = ranks.earlier[:, at]
    late = (own > ranks.earlier[:, at - 1]) & (own > ranks.earlier[:, at + 1])
    return _any_and_all(late, text.owner[at], count)


def constituents_at_once(text: Text, ranks: Ranks) -> tuple[Sum, Sum] | None:
    """Constituents finished in consecutive steps: sentences that have such a one, of those that have a constituent; and
    such constituents, of all of them.

    Strictly so: from its first step to its last, nothing outside the constituent is filled. (The paper's annotators
    also counted what was completed in consecutive steps around an inner constituent that had been there before.)
    """
    if text.spans is None:
        return None
    first, behind, owner = text.spans
    length = behind - first
    starts, ends = (
        _over_spans(ranks.earlier, first, behind, np.minimum),
        _over_spans(ranks.until, first, behind, np.maximum),
    )
    return _any_and_all(ends - starts == length, owner, len(text.sentences))


def _over_spans(values: Array, first: Array, behind: Array, best: np.ufunc) -> Array:
    """(K, spans) least or greatest value of each span; spans overlap."""
    found = np.empty((len(values), len(first)), values.dtype)
    for length in np.unique(behind - first):
        own = np.flatnonzero(behind - first == length)
        extreme = values[:, first[own]]
        for i in range(1, length):
            extreme = best(extreme, values[:, first[own] + i])
        found[:, own] = extreme
    return found


def _any_and_all(found: Array, owner: Array, count: int) -> tuple[Sum, Sum]:
    """Items found, by sentence: whether there is one, and how many. `owner` ascends."""
    many = sum_by(found, owner, count)
    items = np.bincount(owner, minlength=count)
    return ((many > 0).astype(np.float64), (items > 0).astype(np.float64)), (many, items.astype(np.float64))


def steps_by_tag(text: Text, ranks: Ranks) -> dict[str, Sum]:
    """Relative step of the tokens of each part of speech, most frequent first, and of function and content words."""
    if text.tags is None:
        return {}
    names, counts = np.unique(text.tags, return_counts=True)
    of = {str(name): text.tags == name for name in names[np.argsort(-counts, kind="stable")] if name}
    of["function"] = np.isin(text.tags, sorted(FUNCTION))
    of["content"] = np.isin(text.tags, sorted(CONTENT))
    return {name: _relative(text, ranks, np.flatnonzero(own)) for name, own in of.items()}


def _relative(text: Text, ranks: Ranks, at: Array) -> Sum:
    owner, count = text.owner[at], len(text.sentences)
    return sum_by(ranks.relative[:, at], owner, count), np.bincount(owner, minlength=count).astype(np.float64)


def frequency_moments(text: Text, ranks: Ranks, frequencies: Array) -> Array:
    """(K, sentences, 6): count and sums of x, y, xx, yy, xy for x the log frequency and y the relative step.

    Both less about their means, which changes no correlation and keeps the sums small.
    """
    count, y = len(text.sentences), ranks.relative - 0.5
    x = frequencies[None] - (frequencies.mean() if len(frequencies) else 0)
    one = np.ones_like(x)
    fixed = [np.broadcast_to(sum_by(value, text.owner, count), (len(y), count)) for value in (one, x, x * x)]
    own = [sum_by(value, text.owner, count) for value in (y, y * y, x * y)]
    return np.stack([fixed[0], fixed[1], own[0], fixed[2], own[1], own[2]], -1)


def correlation(moments: Array) -> Array:
    """Pearson's, from (..., 6) moments; NaN where one of the two does not vary."""
    n, x, y, xx, yy, xy = np.moveaxis(moments, -1, 0)
    spread = np.maximum(n * xx - x * x, 0) * np.maximum(n * yy - y * y, 0)
    enough = spread > 1e-9 * np.maximum(n, 1) ** 2
    return np.divide(n * xy - x * y, np.sqrt(spread), out=np.full(np.shape(n), np.nan), where=enough)


def repetitions(words: Sequence[Sequence[str]]) -> tuple[Array, Array]:
    """By sentence: pairs of neighbours that are the same word ("gas gas"), and pairs of neighbours at all.

    Upper and lower case are the same; punctuation is no word, and what stands around it are no neighbours.
    """
    found, pairs = [], []
    for sentence in words:
        plain = [word.lower() for word in sentence]
        both = [(a, b) for a, b in pairwise(plain) if not (is_punctuation(a) or is_punctuation(b))]
        pairs.append(len(both))
        found.append(sum(a == b for a, b in both))
    return np.array(found, np.float64), np.array(pairs, np.float64)


def shuffled_repetitions(words: Sequence[Sequence[str]], draws: int, random: np.random.Generator) -> Array:
    """(draws, sentences): expected pairs of the same word if the words of each sentence other than its punctuation
    stood in random places, as many pairs of neighbours as there are. What the words alone make likely.
    """
    numbers = {word: i for i, word in enumerate({word.lower() for one in words for word in one})}
    _, pairs = repetitions(words)
    kept = [np.array([numbers[word.lower()] for word in one if not is_punctuation(word)], np.int64) for one in words]
    found = np.zeros((draws, len(words)))
    for length in {len(one) for one in kept} - {0, 1}:
        rows = [row for row, one in enumerate(kept) if len(one) == length]
        several = np.tile(np.stack([kept[row] for row in rows]), (draws, 1, 1))
        several = random.permuted(several, axis=-1)
        found[:, rows] = (several[..., 1:] == several[..., :-1]).mean(-1) * pairs[rows]
    return found


def sum_by(values: Array, owner: Array, count: int) -> Array:
    """(K, items) to (K, count) sums of the items of each owner; owners ascend."""
    sums = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    borders = np.searchsorted(owner, np.arange(count + 1))
    return np.diff(sums[:, borders], axis=1)

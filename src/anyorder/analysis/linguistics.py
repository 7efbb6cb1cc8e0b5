"""How the order relates to the language: subwords, parts of speech, constituents, frequency, repetitions.

A `Text` is what one system wrote, all sentences concatenated. When each token was filled is given as (K, tokens), for
the actual orders or for any number of shuffled ones at once; `earlier`, `until` and `relative` are those of
`order_metrics.RankedOrders`. Every measure returns what to sum over sentences. Knows nothing about parsers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import numpy as np

from anyorder.analysis.order_metrics import Array, divide
from anyorder.analysis.results import Statistic
from anyorder.data.vocabulary import join_subwords

Span = tuple[int, int]
"""The first index, and the one after the last."""

FUNCTION = frozenset({"ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ"})
"""Universal tags of function words."""
CONTENT = frozenset({"ADJ", "ADV", "INTJ", "NOUN", "NUM", "PROPN", "VERB"})
"""Universal tags of content words. Punctuation and symbols are neither."""
TAG = "tag "
"""Prefix of the metrics by part of speech: the relative step of its words."""


@cache
def is_punctuation(token: str) -> bool:
    """Whether a token has neither letters nor digits."""
    return not any(character.isalnum() for character in token)


@dataclass(frozen=True)
class Annotation:
    """What is known of one sentence."""

    tags: list[str] | None = None
    """The part of speech of each word."""
    spans: list[Span] | None = None
    """Constituents, in tokens: of at least two words, and not the whole sentence."""


class Text:
    """The tokens of all sentences, concatenated, and their structure."""

    def __init__(self, sentences: Sequence[Sequence[str]], annotations: Sequence[Annotation] | None = None):
        self.sentences = sentences
        self.lengths = np.array([len(tokens) for tokens in sentences], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])[:-1]
        self.owner = np.repeat(np.arange(len(sentences)), self.lengths)
        """(tokens,) the index of each token's sentence."""
        joined = [join_subwords(tokens) for tokens in sentences]
        self.words = [words for words, _ in joined]
        self.word_of = [word_of for _, word_of in joined]
        """By sentence: the index of each token's word."""
        self.ends_in_punctuation = np.array([bool(tokens) and is_punctuation(tokens[-1]) for tokens in sentences], bool)
        self.annotations = annotations or [Annotation()] * len(sentences)

    @cached_property
    def suffixes(self) -> Array:
        """(suffixes,) the indices of tokens that continue a word and have a neighbor on both sides."""
        word = np.array([word for word_of in self.word_of for word in word_of], np.int64)
        return 1 + np.flatnonzero((word[1:-1] == word[:-2]) & (self.owner[2:] == self.owner[:-2]))

    @cached_property
    def tags(self) -> Array | None:
        """(tokens,) the tag of each token's word; empty where a sentence has none."""
        if all(annotation.tags is None for annotation in self.annotations):
            return None
        tags: list[str] = []
        for annotation, word_of in zip(self.annotations, self.word_of, strict=True):
            tags += [annotation.tags[word] if annotation.tags else "" for word in word_of]
        return np.array(tags, np.str_)

    @cached_property
    def spans(self) -> tuple[Array, Array, Array] | None:
        """(spans,) the first token, the one after the last, and the sentence of every constituent."""
        if all(annotation.spans is None for annotation in self.annotations):
            return None
        rows = [
            (start + first, start + end, sentence)
            for sentence, (annotation, start) in enumerate(zip(self.annotations, self.starts.tolist(), strict=True))
            for first, end in annotation.spans or ()
        ]
        first, end, owner = np.array(rows, np.int64).reshape(-1, 3).T
        return first, end, owner

    def frequencies(self, counts: Mapping[str, int]) -> Array:
        """(tokens,) the logarithm of how often each token occurs."""
        return np.array([np.log(counts[token]) for tokens in self.sentences for token in tokens], np.float64)


def suffixes_last(text: Text, earlier: Array) -> dict[str, Statistic]:
    """Suffixes filled later than both neighbors: the share of sentences with such a suffix among those that have any
    (the paper's figure), and the share of such suffixes among all.

    A suffix is a token that continues a word: the one before it ends in `@@`. It needs a neighbor on both sides.
    """
    at = text.suffixes
    late = earlier[:, at] > np.maximum(earlier[:, at - 1], earlier[:, at + 1])
    of_sentences, of_suffixes = _any_and_all(late, text.owner[at], len(text.sentences))
    return {"suffix last share": of_sentences, "suffixes last": of_suffixes}


def constituents_at_once(text: Text, earlier: Array, until: Array) -> dict[str, Statistic]:
    """Constituents filled in consecutive steps: the share of sentences with such a constituent among those that have
    any, and the share of such constituents among all.

    This is strict: from its first step to its last, nothing outside the constituent is filled. (The paper's annotators
    also counted constituents completed in consecutive steps around an inner one that was filled before.)
    """
    if text.spans is None:
        return {}
    first, end, owner = text.spans
    filled_meanwhile = np.empty((len(until), len(first)), until.dtype)
    for length in np.unique(end - first):  # spans of one length together; they may overlap
        spans = np.flatnonzero(end - first == length)
        tokens = first[spans, None] + np.arange(length)
        filled_meanwhile[:, spans] = until[:, tokens].max(-1) - earlier[:, tokens].min(-1)
    of_sentences, of_all = _any_and_all(filled_meanwhile == end - first, owner, len(text.sentences))
    return {"constituent sentence share": of_sentences, "constituent share": of_all}


def _any_and_all(found: Array, owner: Array, count: int) -> tuple[Statistic, Statistic]:
    """By sentence: whether any of its items was found, and how many were. `owner` ascends."""
    found_items = sum_by(found, owner, count)
    items = np.bincount(owner, minlength=count)
    any_found = Statistic.ratio((found_items > 0).astype(np.float64), (items > 0).astype(np.float64))
    return any_found, Statistic.ratio(found_items, items.astype(np.float64))


def steps_by_tag(text: Text, relative: Array) -> dict[str, Statistic]:
    """Relative step of the tokens of each part of speech, most frequent first, and of function and content words."""
    if text.tags is None:
        return {}
    names, counts = np.unique(text.tags, return_counts=True)
    chosen = {TAG + str(name): text.tags == name for name in names[np.argsort(-counts, kind="stable")] if name}
    chosen["function word step"] = np.isin(text.tags, sorted(FUNCTION))
    chosen["content word step"] = np.isin(text.tags, sorted(CONTENT))
    count = len(text.sentences)
    statistics = {}
    for metric, tokens in chosen.items():
        at = np.flatnonzero(tokens)
        owner = text.owner[at]
        items = np.bincount(owner, minlength=count).astype(np.float64)
        statistics[metric] = Statistic.ratio(sum_by(relative[:, at], owner, count), items)
    return statistics


def frequency_moments(text: Text, relative: Array, frequencies: Array) -> Array:
    """(K, sentences, 6): count and sums of x, y, xx, yy, xy for x the log frequency and y the relative step.

    Both are centered, which changes no correlation and keeps the sums small.
    """
    x, y = frequencies[None] - frequencies.mean(), relative - 0.5
    sums = [sum_by(values, text.owner, len(text.sentences)) for values in (np.ones_like(x), x, y, x * x, y * y, x * y)]
    return np.stack(np.broadcast_arrays(*sums), -1)


def correlation(moments: Array) -> Array:
    """(...) Pearson's correlation, from (..., 6) moments; NaN where one of the two does not vary."""
    n, x, y, xx, yy, xy = np.moveaxis(moments, -1, 0)
    spread = np.maximum(n * xx - x * x, 0) * np.maximum(n * yy - y * y, 0)
    enough = spread > 1e-9 * np.maximum(n, 1) ** 2
    return np.where(enough, divide(n * xy - x * y, np.sqrt(spread)), np.nan)


def repetitions(words: Sequence[Sequence[str]]) -> tuple[Array, Array]:
    """(sentences,) each: pairs of neighbors that are the same word ("gas gas"), and all pairs of neighbors.

    Case is ignored; punctuation is not a word, and the words around it are not neighbors.
    """
    repeated, pairs = [], []
    for sentence in words:
        lowercased = [word.lower() for word in sentence]
        neighbors = [(a, b) for a, b in pairwise(lowercased) if not (is_punctuation(a) or is_punctuation(b))]
        pairs.append(len(neighbors))
        repeated.append(sum(a == b for a, b in neighbors))
    return np.array(repeated, np.float64), np.array(pairs, np.float64)


def shuffled_repetitions(words: Sequence[Sequence[str]], null_samples: int, random: np.random.Generator) -> Array:
    """(null_samples, sentences): repeated neighbors that are expected from the choice of words alone.

    The words of each sentence, without punctuation, are shuffled; its number of neighbor pairs stays the same.
    """
    ids = {word: i for i, word in enumerate({word.lower() for sentence in words for word in sentence})}
    _, pairs = repetitions(words)
    kept = [
        np.array([ids[word.lower()] for word in sentence if not is_punctuation(word)], np.int64) for sentence in words
    ]
    repeated = np.zeros((null_samples, len(words)))
    for length in {len(sentence) for sentence in kept} - {0, 1}:
        rows = [row for row, sentence in enumerate(kept) if len(sentence) == length]
        shuffled = np.tile(np.stack([kept[row] for row in rows]), (null_samples, 1, 1))
        shuffled = random.permuted(shuffled, axis=-1)
        repeated[:, rows] = (shuffled[..., 1:] == shuffled[..., :-1]).mean(-1) * pairs[rows]
    return repeated


def sum_by(values: Array, owner: Array, count: int) -> Array:
    """(K, items) to (K, count): the sum of the items of each owner; `owner` ascends."""
    sums = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    borders = np.searchsorted(owner, np.arange(count + 1))
    return np.diff(sums[:, borders], axis=1)

"""Rewards for learning an order: how good finished sentences are, and what each step contributed.

The built-in rewards score all sentences, finished and partial, in one batch on the device; the host never waits for
it. A user's reward is a plain function of texts::

    @register_reward("short")
    def short(hypotheses: list[str], references: list[str]) -> list[float]:
        return [-float(len(hypothesis)) for hypothesis in hypotheses]

Nothing here knows about policies, returns or the loss.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from anyorder.data.text import Text, TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError, unknown
from anyorder.registry import register

HOLE = -1
"""Marks the unfilled positions of a partial sentence: it matches no token and spells nothing."""
ELEMENTS = 2**22
"""About this many tokens or characters are scored at once."""


@dataclass(frozen=True)
class Outcome:
    """N finished targets and their references."""

    ids: Tensor
    """(N, T) int64; values after the end of a sentence are arbitrary."""
    lengths: Tensor
    """(N,) int64"""
    references: Tensor
    """(N, R) int64; values after the end are arbitrary."""
    reference_lengths: Tensor
    """(N,) int64"""
    steps: Tensor
    """(N, T) int: the step, from 1, at which each position was filled."""
    logprobs: Tensor
    """(N, T) float: the model's log-probability of each token when it was filled."""
    languages: Tensor
    """(N,) int64: the index of the target language."""

    @property
    def inside(self) -> Tensor:
        """(N, T) bool: true where a position belongs to the sentence."""
        return length_mask(self.lengths, self.ids.shape[1])

    @property
    def to_fill(self) -> Tensor:
        """(N, T) bool: true where a position was filled, not given with the canvas."""
        return self.inside & (self.steps > 0)

    @property
    def last_steps(self) -> Tensor:
        """(N,) int: the step at which the last position was filled."""
        return self.steps.masked_fill(~self.inside, 0).amax(1)

    def after(self, steps: Tensor) -> "Outcome":
        """The partial sentences after each of these steps, (S,): N * S of them, grouped by sentence."""
        unfilled = (self.steps.unsqueeze(1) > steps.unsqueeze(1)).flatten(0, 1)
        copies = Outcome(*(getattr(self, field.name).repeat_interleave(len(steps), 0) for field in fields(self)))
        ids, logprobs = copies.ids.masked_fill(unfilled, HOLE), copies.logprobs.masked_fill(unfilled, 0)
        return replace(copies, ids=ids, logprobs=logprobs)


class Reward(ABC):
    """A score of sentences, as tensors."""

    @classmethod
    def create(cls, vocabulary: Vocabulary) -> "Reward":
        """The reward for sentences of this vocabulary, which the class takes as an argument if it needs it."""
        constructor: Callable[..., Reward] = cls
        return constructor(vocabulary) if "vocabulary" in signature(cls).parameters else constructor()

    @abstractmethod
    def final(self, outcome: Outcome) -> Tensor:
        """(N,) float32: how good the finished sentences are."""

    def each_step(self, outcome: Outcome) -> Tensor:
        """(N, T) float32: how much step t (column t - 1) changed the score; 0 after the last step.

        The score of a partial sentence is that of the sentence with `HOLE` in its unfilled positions, so a row adds up
        to the final score minus that of a sentence of holes.
        """
        count, width = outcome.ids.shape
        steps = torch.arange(width + 1, device=outcome.ids.device)
        chunk = max(1, ELEMENTS // max(1, outcome.ids.numel() + outcome.references.numel()))
        scores = [self.final(outcome.after(some)).view(count, len(some)) for some in steps.split(chunk)]
        return torch.cat(scores, 1).diff(dim=1).masked_fill(steps[1:] > outcome.last_steps[:, None], 0)


TextReward = Callable[[list[str], list[str]], Sequence[float]]
"""A user's reward: from hypotheses and references, as texts, to a score for each."""
REWARDS: dict[str, type[Reward] | TextReward] = {}
"""All rewards by name."""
Registered = TypeVar("Registered", bound=type[Reward] | TextReward)


def register_reward(name: str) -> Callable[[Registered], Registered]:
    """Decorator that registers a reward under this name: a function of texts, or a subclass of `Reward`."""
    return register("a reward", name, REWARDS)


def check_reward(name: str) -> None:
    """Raise an `InputError` if there is no such reward."""
    if name not in REWARDS:
        raise unknown("reward", name, REWARDS)


def make_reward(
    name: str, vocabulary: Vocabulary, languages: Sequence[str] = (), text: TextConfig | None = None
) -> Reward:
    """The reward of that name. The list of languages and their text rules are for rewards that score texts."""
    check_reward(name)
    reward = REWARDS[name]
    if isinstance(reward, type):
        assert issubclass(reward, Reward)
        return reward.create(vocabulary)
    texts = [Text(language, text) for language in languages]
    return ScoredTexts(name, reward, lambda ids, language: texts[language].sentence(vocabulary.words(ids[ids != HOLE])))


class ScoredTexts(Reward):
    """A user's function of texts. It runs on the host, once per batch."""

    def __init__(self, name: str, function: TextReward, spell: Callable[[np.ndarray, int], str]):
        """spell: the text of a sentence, from its ids, (length,) with `HOLE` where unfilled, and its language index."""
        self._name, self._function, self._spell = name, function, spell

    def final(self, outcome: Outcome) -> Tensor:
        hypotheses = self._texts(outcome.ids, outcome.lengths, outcome.languages)
        references = self._texts(outcome.references, outcome.reference_lengths, outcome.languages)
        scores = self._scores(hypotheses, references)
        if len(scores) != len(hypotheses):
            raise self._error(f"gave {len(scores)} scores for {len(hypotheses)} sentences")
        for hypothesis, score in zip(hypotheses, scores, strict=True):
            if not math.isfinite(score):
                raise self._error(f"gave {score} for '{hypothesis}'")
        return torch.tensor(scores, dtype=torch.float32, device=outcome.ids.device)

    def _texts(self, ids: Tensor, lengths: Tensor, languages: Tensor) -> list[str]:
        rows = zip(ids.cpu().numpy(), lengths.tolist(), languages.tolist(), strict=True)
        return [self._spell(row[:length], language) for row, length, language in rows]

    def _scores(self, hypotheses: list[str], references: list[str]) -> list[float]:
        try:
            signature(self._function).bind(hypotheses, references)
        except TypeError as error:
            raise self._error(f"cannot be called with hypotheses and references ({error})") from None
        except ValueError:  # a builtin without a signature
            pass
        scores = self._function(hypotheses, references)
        try:
            return [float(score) for score in scores]
        except (TypeError, ValueError):
            found = repr(scores)
            shown = found if len(found) <= 60 else f"{found[:60]}..."
            raise self._error(f"returned {shown}, expected a list with a number for each text") from None

    def _error(self, message: str) -> InputError:
        return InputError(f"reward '{self._name}': {message}")


@register_reward("bleu")
class Bleu(Reward):
    """Sentence BLEU-4 of the subwords, 0 to 1, smoothed as sacreBLEU does by default.

    The k-th n-gram order without a match counts as 1 / 2^k matches; orders longer than the sentence are left out.
    """

    def final(self, outcome: Outcome) -> Tensor:
        matches = ngram_matches(outcome.ids, outcome.lengths, outcome.references, outcome.reference_lengths, 4)
        totals = ngram_totals(outcome.lengths, 4)
        missed = (matches == 0) & (totals > 0)
        precision = torch.exp2(-missed.cumsum(1)).where(missed, matches) / totals.clamp(min=1)
        mean = precision.log().masked_fill(totals == 0, 0).sum(1) / outcome.lengths.clamp(1, 4)
        return (mean + _log_brevity(outcome)).exp().masked_fill(matches[:, 0] == 0, 0)


@register_reward("bleu-add-one")
class AddOneBleu(Reward):
    """Sentence BLEU-4 of the subwords, 0 to 1: one is added to the matches and to the n-grams of every order.

    So even a sentence without any match earns a little. The paper's code smooths in this way, but see `PaperBleu`.
    """

    def final(self, outcome: Outcome) -> Tensor:
        matches = ngram_matches(outcome.ids, outcome.lengths, outcome.references, outcome.reference_lengths, 4)
        return _add_one(matches, ngram_totals(outcome.lengths, 4), outcome)


def _add_one(matches: Tensor, totals: Tensor, outcome: Outcome) -> Tensor:
    """(N,) BLEU of these n-gram counts, (N, 4), after adding one to each."""
    precision = (matches + 1) / (totals + 1)
    return (precision.log().mean(1) + _log_brevity(outcome)).exp()


def _log_brevity(outcome: Outcome) -> Tensor:
    """(N,) the logarithm of BLEU's brevity penalty."""
    return (1 - outcome.reference_lengths / outcome.lengths.clamp(min=1)).clamp(max=0)


@register_reward("bleu-paper")
class PaperBleu(Reward):
    """Sentence BLEU-4 as the paper's public code computes it, 0 to 1: on lower-cased subwords, smoothed by adding one.

    Unlike `bleu-add-one` it is 0 if no subword matches, and an n-gram order that the sentence is too short for counts
    as one n-gram without a match: (0 + 1) / (1 + 1).
    """

    def __init__(self, vocabulary: Vocabulary):
        lower = [piece.lower() for piece in vocabulary.pieces(range(len(vocabulary)))]
        first = {piece: i for i, piece in reversed(list(enumerate(lower)))}
        self.lower = torch.tensor([first[piece] for piece in lower])
        """(vocab_size,) int64: the first subword that differs only in case."""

    def final(self, outcome: Outcome) -> Tensor:
        ids, references = self._lower(outcome.ids), self._lower(outcome.references)
        matches = ngram_matches(ids, outcome.lengths, references, outcome.reference_lengths, 4)
        smoothed = _add_one(matches, ngram_totals(outcome.lengths, 4).clamp(min=1), outcome)
        return smoothed.masked_fill(matches[:, 0] == 0, 0)

    def _lower(self, ids: Tensor) -> Tensor:
        self.lower = self.lower.to(ids.device)
        return self.lower[ids.clamp(0, len(self.lower) - 1)].where(ids != HOLE, HOLE)


@register_reward("corpus-bleu")
class CorpusBleu(Reward):
    """A sentence's contribution to the corpus BLEU of the batch, on words: the score that evaluations print, 0 to 1.

    Sentence BLEU gives five words the same weight as thirty, and smooths counts that the corpus score does not. This
    reward is the corpus score's first-order change: with m and t a sentence's matches and n-grams, M and T the batch's
    means, BLEU * (1 + mean of (m/M - t/T) over the four orders + the sentence's share of the brevity penalty). Its
    mean over the batch is the batch's BLEU. Words are equal if their subwords are.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.ends = torch.tensor([vocabulary.ends_word(i) for i in range(len(vocabulary))])
        """(vocab_size,) bool: the subword is the last of its word."""

    def final(self, outcome: Outcome) -> Tensor:
        self.ends = self.ends.to(outcome.ids.device)
        words, lengths = self.words(outcome.ids, outcome.lengths)
        references, reference_lengths = self.words(outcome.references, outcome.reference_lengths)
        matches = ngram_matches(words, lengths, references, reference_lengths, 4).double()
        totals = ngram_totals(lengths, 4).double()
        mean_matches, mean_totals = matches.mean(0), totals.mean(0)
        # An n-gram order without a match in the batch makes the score zero; a millionth of a match keeps it defined.
        log_bleu = (mean_matches.clamp(min=1e-6) / mean_totals.clamp(min=1e-6)).log().mean()
        mean_length, mean_reference = lengths.double().mean(), reference_lengths.double().mean()
        too_short = mean_length < mean_reference
        log_bleu = log_bleu + (1 - mean_reference / mean_length).clamp(max=0)
        share = (matches / mean_matches.clamp(min=1e-6) - totals / mean_totals.clamp(min=1e-6)).mean(1)
        share = share + too_short * mean_reference / mean_length * (lengths / mean_length - 1)
        return (log_bleu.exp() * (1 + share)).float()

    def words(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """A number for every word, the same for equal words, without gaps; and the word counts: (N, T), (N,)."""
        column = torch.arange(ids.shape[1], device=ids.device)
        inside = column < lengths.unsqueeze(1)
        ends = (self.ends[ids.clamp(min=0)] | (column == lengths.unsqueeze(1) - 1)) & inside
        begins = ends.roll(1, 1)
        begins[:, 0] = True
        place = column - torch.where(begins, column, 0).cummax(1).values
        # A word is a polynomial with an odd base, modulo 2^64. Its tokens' terms are added up at the word's number.
        powers = torch.full_like(column, _BASE).cumprod(0)
        terms = ((ids + 1) * powers[place]).masked_fill(~inside, 0)
        return torch.zeros_like(ids).scatter_add_(1, ends.cumsum(1) - ends.long(), terms), ends.sum(1)


_BASE = 6364136223846793005


@register_reward("chrf")
class ChrF(Reward):
    """Sentence chrF2 of the text that the ids spell, 0 to 1: n-grams of up to six characters, spaces left out."""

    def __init__(self, vocabulary: Vocabulary):
        spelled = ["".join(vocabulary.words([i])) for i in range(len(vocabulary))]
        spelled.append("")  # index -1, a hole, finds this last row
        longest = max(map(len, spelled))
        self.characters = torch.tensor([[*map(ord, piece), *[-1] * (longest - len(piece))] for piece in spelled])
        """(vocab_size + 1, longest) int64: the characters of each subword, then -1."""

    def final(self, outcome: Outcome) -> Tensor:
        self.characters = self.characters.to(outcome.ids.device)
        ids = outcome.ids.masked_fill(~outcome.inside, HOLE)
        inside = length_mask(outcome.reference_lengths, outcome.references.shape[1])
        references = outcome.references.masked_fill(~inside, HOLE)
        chunk = max(1, ELEMENTS // ((ids.shape[1] + references.shape[1]) * self.characters.shape[1]))
        pairs = zip(ids.split(chunk), references.split(chunk), strict=True)
        return torch.cat([self._score(*pair) for pair in pairs])

    def _score(self, ids: Tensor, references: Tensor) -> Tensor:
        """(N, T) and (N, R), padded with holes, to (N,)."""
        text, length = self._spell(ids)
        reference, reference_length = self._spell(references)
        matches = ngram_matches(text, length, reference, reference_length, 6)
        totals, reference_totals = ngram_totals(length, 6), ngram_totals(reference_length, 6)
        orders = torch.minimum(length, reference_length).clamp(1, 6)
        precision = (matches / totals.clamp(min=1)).sum(1) / orders
        recall = (matches / reference_totals.clamp(min=1)).sum(1) / orders
        return (5 * precision * recall / (4 * precision + recall)).masked_fill(matches[:, 0] == 0, 0)

    def _spell(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The characters of every sentence without gaps, arbitrary after the end, (N, C); and their number, (N,)."""
        spread = self.characters[ids].flatten(1)
        return _without_gaps(spread, spread >= 0)


def _without_gaps(values: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """The present values of every row moved to its start, arbitrary after them, (N, L); and their number, (N,)."""
    width = values.shape[1]
    column = (present.cumsum(1) - 1).masked_fill(~present, width)  # gaps go into an extra column
    return values.new_zeros(len(values), width + 1).scatter_(1, column, values)[:, :-1], present.sum(1)


@register_reward("edit-distance")
class EditDistance(Reward):
    """Minus the Levenshtein distance in subwords; each step is worth the edits it saves (Mansimov et al. 2019)."""

    def final(self, outcome: Outcome) -> Tensor:
        columns = torch.arange(outcome.references.shape[1] + 1, device=outcome.ids.device)
        row = columns.expand(len(outcome.ids), -1)
        for i, (ids, inside) in enumerate(zip(outcome.ids.unbind(1), outcome.inside.unbind(1), strict=True), start=1):
            replaced = row[:, :-1] + (ids.unsqueeze(1) != outcome.references)
            best = torch.minimum(row[:, 1:] + 1, replaced)
            best = torch.cat([torch.full_like(row[:, :1], i), best], 1)
            inserted = (best - columns).cummin(1).values + columns  # any number of the reference's tokens missing
            row = inserted.where(inside.unsqueeze(1), row)
        return -row.gather(1, outcome.reference_lengths.unsqueeze(1)).squeeze(1).float()


@register_reward("likelihood")
class Likelihood(Reward):
    """The geometric mean of the probabilities that the model gave to its own tokens."""

    def final(self, outcome: Outcome) -> Tensor:
        to_fill = outcome.to_fill
        total = outcome.logprobs.float().masked_fill(~to_fill, 0).sum(1)
        return (total / to_fill.sum(1).clamp(min=1)).exp()


@register_reward("accuracy")
class Accuracy(Reward):
    """The share of filled positions that match the reference; each step earns what it adds to that."""

    def final(self, outcome: Outcome) -> Tensor:
        to_fill = outcome.to_fill
        return (_equal(outcome) & to_fill).sum(1) / to_fill.sum(1).clamp(min=1)


@register_reward("exact-match")
class ExactMatch(Reward):
    """1 if every position holds the reference's token, else 0."""

    def final(self, outcome: Outcome) -> Tensor:
        same_length = outcome.lengths == outcome.reference_lengths
        return ((_equal(outcome) | ~outcome.inside).all(1) & same_length).float()


def _equal(outcome: Outcome) -> Tensor:
    """(N, T) bool: the position holds the reference's token."""
    width = min(outcome.ids.shape[1], outcome.references.shape[1])
    equal = torch.zeros_like(outcome.ids, dtype=torch.bool)
    equal[:, :width] = outcome.ids[:, :width] == outcome.references[:, :width]
    return equal & length_mask(outcome.reference_lengths, outcome.ids.shape[1])


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """(N, width) bool: true in the first `lengths`, (N,), columns of each row."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


# N-grams of padded sentences. Their tokens are plain integers, which may be subwords, words or characters.


def ngram_totals(lengths: Tensor, max_order: int) -> Tensor:
    """How many n-grams of 1, 2, ..., `max_order` tokens a sentence has: (N,) to (N, max_order)."""
    return (lengths.unsqueeze(1) - torch.arange(max_order, device=lengths.device)).clamp(min=0)


def ngram_matches(
    ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor, max_order: int
) -> Tensor:
    """How many n-grams of 1, 2, ..., `max_order` tokens two sentences share, repeats included.

    (N, T), (N,), (N, R), (N,) to (N, max_order) int64. Equal n-grams in a pair of sentences get the same
    number, which is computed from that of the first n - 1 tokens and that of the last token.
    """
    both = torch.cat([ids, references], 1)
    width, size = ids.shape[1], both.shape[1]
    token = gram = dense_ranks(both)
    matches = []
    for n in range(max_order):
        if n:
            gram = dense_ranks(gram * size + token.roll(-n, 1))
        counts = count_values(gram[:, :width], lengths - n, size)
        reference_counts = count_values(gram[:, width:], reference_lengths - n, size)
        matches.append(torch.minimum(counts, reference_counts).sum(1))
    return torch.stack(matches, 1)


def dense_ranks(keys: Tensor) -> Tensor:
    """Ranks 0, 1, 2, ... of integers within their row; equal integers have equal ranks: (N, L) to (N, L)."""
    ordered, index = keys.sort(1)
    ranks = (ordered != ordered.roll(1, 1)).cumsum(1)
    return torch.empty_like(ranks).scatter_(1, index, ranks - ranks[:, :1])


def count_values(values: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Count each of 0, ..., `size` - 1 in the first `lengths`, (N,), columns of each row: (N, L) to (N, size)."""
    inside = length_mask(lengths, values.shape[1]).int()
    return inside.new_zeros(len(values), size).scatter_add_(1, values, inside)

"""Rewards for learning an order: how good finished sentences are, and what every step did for that.

All sentences, and all partial sentences, are scored side by side where their tensors are; the host waits for nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import unknown

HOLE = -1
"""Stands where a partial sentence is not filled yet: it matches no token and spells nothing."""
ELEMENTS = 2**22
"""About so many tokens, or characters, are looked at in one go."""


@dataclass(frozen=True)
class Outcome:
    """N finished targets beside their references."""

    ids: Tensor
    """(N, T) int64, anything behind a sentence's end."""
    lengths: Tensor
    """(N,) int64"""
    references: Tensor
    """(N, R) int64, anything behind the end."""
    reference_lengths: Tensor
    """(N,) int64"""
    steps: Tensor
    """(N, T) int: the step, from 1, at which each position was filled."""
    logprobs: Tensor
    """(N, T) float: the model's log-probability of each token when it was filled."""

    @property
    def own(self) -> Tensor:
        """(N, T) bool: true where a position belongs to the sentence."""
        return first(self.lengths, self.ids.shape[1])

    def after(self, steps: Tensor) -> "Outcome":
        """The partial sentences after each of these steps, (S,): N * S of them, those of one sentence in a row."""
        unfilled = self.steps.unsqueeze(1) > steps.unsqueeze(1)
        return Outcome(
            ids=self.ids.unsqueeze(1).masked_fill(unfilled, HOLE).flatten(0, 1),
            lengths=self.lengths.repeat_interleave(len(steps)),
            references=self.references.repeat_interleave(len(steps), 0),
            reference_lengths=self.reference_lengths.repeat_interleave(len(steps)),
            steps=self.steps.repeat_interleave(len(steps), 0),
            logprobs=self.logprobs.unsqueeze(1).masked_fill(unfilled, 0).flatten(0, 1),
        )


class Reward(ABC):
    """One way to say how good a sentence is."""

    name: ClassVar[str]

    @abstractmethod
    def final(self, outcome: Outcome) -> Tensor:
        """(N,) float32: how good the finished sentences are."""

    def each_step(self, outcome: Outcome) -> Tensor:
        """(N, T) float32: what step t (column t - 1) changed in the score; 0 behind the last step.

        The score of a partial sentence is that of the sentence with `HOLE` in its unfilled positions, so a row adds up
        to the final score less that of a sentence of holes.
        """
        count, width = outcome.ids.shape
        steps = torch.arange(width + 1, device=outcome.ids.device)
        at_once = max(1, ELEMENTS // max(1, outcome.ids.numel() + outcome.references.numel()))
        parts = [self.final(outcome.after(some)).view(count, len(some)) for some in steps.split(at_once)]
        last = outcome.steps.masked_fill(~outcome.own, 0).amax(1, keepdim=True)
        return torch.cat(parts, 1).diff(dim=1).masked_fill(steps[1:] > last, 0)


class Bleu(Reward):
    """Sentence BLEU-4 of the subwords, 0 to 1, smoothed as sacreBLEU does by default.

    The k-th order without a match counts as 1 / 2^k matches; orders longer than the sentence are left out.
    """

    name = "bleu"

    def final(self, outcome: Outcome) -> Tensor:
        matches = common(outcome.ids, outcome.lengths, outcome.references, outcome.reference_lengths, 4)
        total = ngrams(outcome.lengths, 4)
        missed = (matches == 0) & (total > 0)
        precision = torch.exp2(-missed.cumsum(1)).where(missed, matches) / total.clamp(min=1)
        mean = precision.log().masked_fill(total == 0, 0).sum(1) / outcome.lengths.clamp(1, 4)
        brevity = (1 - outcome.reference_lengths / outcome.lengths.clamp(min=1)).clamp(max=0)
        return (mean + brevity).exp().masked_fill(matches[:, 0] == 0, 0)


class CorpusBleu(Reward):
    """What a sentence does for the BLEU of the whole batch, in words: the score that evaluations print, 0 to 1.

    Sentence BLEU weighs a sentence of five words like one of thirty, and what it smooths away the corpus score counts.
    This reward is the corpus score's first-order change: with m and t a sentence's matches and n-grams, M and T the
    batch's means, BLEU * (1 + mean of (m/M - t/T) over the four orders + what the sentence does for brevity). Its mean
    over the batch is the batch's BLEU. Words are equal if their subwords are.
    """

    name = "corpus-bleu"

    def __init__(self, vocabulary: Vocabulary):
        self.ends = torch.tensor([vocabulary.ends_word(i) for i in range(len(vocabulary))])
        """(tokens,) bool: the subword is the last of its word."""

    def final(self, outcome: Outcome) -> Tensor:
        self.ends = self.ends.to(outcome.ids.device)
        words, lengths = self.words(outcome.ids, outcome.lengths)
        references, reference_lengths = self.words(outcome.references, outcome.reference_lengths)
        matches = common(words, lengths, references, reference_lengths, 4).double()
        total = ngrams(lengths, 4).double()
        mean_matches, mean_total = matches.mean(0), total.mean(0)
        # An order without a match in the whole batch makes the score nought; a millionth of a match keeps it defined.
        log_bleu = (mean_matches.clamp(min=1e-6) / mean_total.clamp(min=1e-6)).log().mean()
        own, other = lengths.double().mean(), reference_lengths.double().mean()
        short = own < other
        log_bleu = log_bleu + (1 - other / own).clamp(max=0)
        share = (matches / mean_matches.clamp(min=1e-6) - total / mean_total.clamp(min=1e-6)).mean(1)
        share = share + short * other / own * (lengths / own - 1)
        return (log_bleu.exp() * (1 + share)).float()

    def words(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """A number for every word, equal for equal words, without gaps; and how many there are: (N, T), (N,)."""
        width = ids.shape[1]
        last = torch.arange(width, device=ids.device) == lengths.unsqueeze(1) - 1
        ends = (self.ends[ids.clamp(min=0)] | last) & first(lengths, width)
        # Polynomials in an odd number, modulo 2^64: those of a word are the difference of two prefixes, shifted back.
        powers, inverse = (_powers(base, width, ids.device) for base in (_BASE, _INVERSE))
        prefix = ((ids + 1) * powers).cumsum(1)
        before = torch.where(ends, torch.arange(width, device=ids.device), -1).cummax(1).values
        starts = torch.cat([torch.zeros_like(before[:, :1]), before[:, :-1] + 1], 1)
        until = torch.cat([torch.zeros_like(prefix[:, :1]), prefix], 1).gather(1, starts)
        hashed = (prefix - until) * inverse[starts]
        to = (ends.cumsum(1) - 1).masked_fill(~ends, width)
        return ids.new_zeros(len(ids), width + 1).scatter_(1, to, hashed)[:, :-1], ends.sum(1)


_BASE = 6364136223846793005
_INVERSE = -4568919932995229531  # _BASE * _INVERSE = 1 modulo 2^64


def _powers(base: int, count: int, device: torch.device) -> Tensor:
    """1, base, base^2, ... modulo 2^64: (count,) int64."""
    one = torch.ones(1, dtype=torch.int64, device=device)
    return torch.cat([one, one.new_full((count - 1,), base)]).cumprod(0)


class ChrF(Reward):
    """Sentence chrF2 of the text that the ids spell, 0 to 1: n-grams of up to six characters, spaces left out."""

    name = "chrf"

    def __init__(self, vocabulary: Vocabulary):
        spelled = ["".join(vocabulary.words([i])) for i in range(len(vocabulary))]
        spelled.append("")  # the last row is what index -1, a hole, finds
        longest = max(map(len, spelled))
        self.characters = torch.tensor([[*map(ord, piece), *[-1] * (longest - len(piece))] for piece in spelled])
        """(tokens + 1, longest) int64: the characters of each subword, then -1."""

    def final(self, outcome: Outcome) -> Tensor:
        self.characters = self.characters.to(outcome.ids.device)
        ids = outcome.ids.masked_fill(~outcome.own, HOLE)
        own = first(outcome.reference_lengths, outcome.references.shape[1])
        references = outcome.references.masked_fill(~own, HOLE)
        at_once = max(1, ELEMENTS // ((ids.shape[1] + references.shape[1]) * self.characters.shape[1]))
        pairs = zip(ids.split(at_once), references.split(at_once), strict=True)
        return torch.cat([self._score(*pair) for pair in pairs])

    def _score(self, ids: Tensor, references: Tensor) -> Tensor:
        """(N, T) and (N, R) with holes behind the ends, to (N,)."""
        text, length = self._spell(ids)
        reference, reference_length = self._spell(references)
        matches = common(text, length, reference, reference_length, 6)
        total, reference_total = ngrams(length, 6), ngrams(reference_length, 6)
        orders = torch.minimum(length, reference_length).clamp(1, 6)
        precision = (matches / total.clamp(min=1)).sum(1) / orders
        recall = (matches / reference_total.clamp(min=1)).sum(1) / orders
        return (5 * precision * recall / (4 * precision + recall)).masked_fill(matches[:, 0] == 0, 0)

    def _spell(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The characters of every sentence without gaps, anything behind the end, (N, C); and how many, (N,)."""
        spread = self.characters[ids].flatten(1)
        there = spread >= 0
        to = (there.cumsum(1) - 1).masked_fill(~there, spread.shape[1])  # gaps go into a column more
        gapless = spread.new_zeros(len(ids), spread.shape[1] + 1).scatter_(1, to, spread)
        return gapless[:, :-1], there.sum(1)


class EditDistance(Reward):
    """Minus the Levenshtein distance in subwords; each step is worth the edits it saves (Mansimov et al. 2019)."""

    name = "edit-distance"

    def final(self, outcome: Outcome) -> Tensor:
        columns = torch.arange(outcome.references.shape[1] + 1, device=outcome.ids.device)
        row = columns.expand(len(outcome.ids), -1)
        for i, (ids, own) in enumerate(zip(outcome.ids.unbind(1), outcome.own.unbind(1), strict=True), start=1):
            replaced = row[:, :-1] + (ids.unsqueeze(1) != outcome.references)
            best = torch.minimum(row[:, 1:] + 1, replaced)
            best = torch.cat([torch.full_like(row[:, :1], i), best], 1)
            inserted = (best - columns).cummin(1).values + columns  # any number of the reference's tokens missing
            row = inserted.where(own.unsqueeze(1), row)
        return -row.gather(1, outcome.reference_lengths.unsqueeze(1)).squeeze(1).float()


class Likelihood(Reward):
    """The geometric mean of the probabilities that the model gave to its own tokens."""

    name = "likelihood"

    def final(self, outcome: Outcome) -> Tensor:
        total = outcome.logprobs.float().masked_fill(~outcome.own, 0).sum(1)
        return (total / outcome.lengths.clamp(min=1)).exp()


REWARDS: dict[str, Callable[[Vocabulary], Reward]] = {
    Bleu.name: lambda _: Bleu(),
    CorpusBleu.name: CorpusBleu,
    ChrF.name: ChrF,
    EditDistance.name: lambda _: EditDistance(),
    Likelihood.name: lambda _: Likelihood(),
}


def make_reward(name: str, vocabulary: Vocabulary) -> Reward:
    """The reward of that name."""
    if name not in REWARDS:
        raise unknown("reward", name, REWARDS)
    return REWARDS[name](vocabulary)


def first(counts: Tensor, width: int) -> Tensor:
    """(N, width) bool: true in the first `counts`, (N,), columns of each row."""
    return torch.arange(width, device=counts.device) < counts.unsqueeze(1)


def ngrams(lengths: Tensor, longest: int) -> Tensor:
    """How many n-grams of 1, 2, ..., `longest` tokens a sentence has: (N,) to (N, longest)."""
    return (lengths.unsqueeze(1) - torch.arange(longest, device=lengths.device)).clamp(min=0)


def common(ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor, longest: int) -> Tensor:
    """How many n-grams of 1, 2, ..., `longest` tokens both sentences have, repeats counted as often as both have them.

    (N, T), (N,), (N, R), (N,) to (N, longest) int64. An n-gram gets a number that it shares with its equals in the
    same pair of sentences; it is made from the number of its first n - 1 tokens and that of its last.
    """
    both = torch.cat([ids, references], 1)
    width, size = ids.shape[1], both.shape[1]
    token = gram = number(both)
    found = []
    for n in range(longest):
        if n:
            gram = number(gram * size + token.roll(-n, 1))
        here = count(gram[:, :width], lengths - n, size)
        there = count(gram[:, width:], reference_lengths - n, size)
        found.append(torch.minimum(here, there).sum(1))
    return torch.stack(found, 1)


def number(keys: Tensor) -> Tensor:
    """(N, L) of any integers to 0, 1, 2, ... in the order of their sizes within the row, equals alike."""
    ordered, where = keys.sort(1)
    ranks = (ordered != ordered.roll(1, 1)).cumsum(1)
    return torch.empty_like(ranks).scatter_(1, where, ranks - ranks[:, :1])


def count(numbers: Tensor, counts: Tensor, size: int) -> Tensor:
    """How often each of 0, ..., `size` - 1 is among the first `counts`, (N,), of each row: (N, L) to (N, size)."""
    own = first(counts, numbers.shape[1]).int()
    return own.new_zeros(len(numbers), size).scatter_add_(1, numbers, own)

"""Schedules that look at the predictions: a step fills as many positions as the model is confident about."""

from copy import copy

import numpy as np
import torch
from torch import Tensor

from anyorder.decoding.schedules.base import AdaptiveSchedule, register_schedule
from anyorder.errors import InputError, check_number
from anyorder.models.base import log_total, row_sums
from anyorder.orders.base import State
from anyorder.orders.confidence import entropy


@register_schedule("threshold")
class Threshold(AdaptiveSchedule):
    """All positions whose best token has at least this probability; if there are none, the top-ranked one."""

    is_local = True

    def __init__(self, probability: float = 0.9):
        check_probability(probability)
        self.probability = probability

    def accept(self, state: State, scores: Tensor) -> Tensor:
        return best_logprobs(state) >= float(np.log(self.probability))


@register_schedule("factor")
class Factor(AdaptiveSchedule):
    """The longest prefix of the ranking in which the best token at rank r has probability 1 - f/(r + 1) or more."""

    is_local = True

    def __init__(self, factor: float = 1.0):
        check_number("factor", factor, above=0)
        self.factor = factor

    def accept(self, state: State, scores: Tensor) -> Tensor:
        ranking, rank = ranked(scores)
        probabilities = best_logprobs(state).exp().gather(1, ranking)
        enough = probabilities >= 1 - self.factor / (rank + 1)
        return ranked_prefix(enough, ranking)


@register_schedule("entropy-bound")
class EntropyBound(AdaptiveSchedule):
    """The longest prefix of the ranking whose entropies, except the largest, sum to at most this bound, in nats."""

    is_local = True

    def __init__(self, bound: float = 0.1):
        check_number("bound", bound, at_least=0)
        self.bound = bound

    def accept(self, state: State, scores: Tensor) -> Tensor:
        assert state.logits is not None
        ranking, _ = ranked(scores)
        entropies = state.spread(entropy(state.logits)).gather(1, ranking)
        entropies = entropies.where(scores.gather(1, ranking) > -torch.inf, torch.inf)
        joint = entropies.cumsum(1) - entropies.cummax(1).values
        enough = (joint <= self.bound) & (entropies < torch.inf)
        return ranked_prefix(enough, ranking)


@register_schedule("klass")
class Klass(AdaptiveSchedule):
    """Where the best token is more probable than P and the KL divergence between steps was below D twice in a row."""

    def __init__(self, probability: float = 0.9, divergence: float = 0.01):
        check_probability(probability)
        check_number("divergence", divergence, above=0)
        self.probability = probability
        self.divergence = divergence
        self._before: tuple[Tensor, Tensor, Tensor] | None = None
        """Of the step before: (M, vocab_size) log-probabilities; (B, T) the row of each position in them, -1 if it had
        none; (B, T) for how many steps the prediction has changed by less than the bound."""

    def start(self) -> "Klass":
        fresh = copy(self)
        fresh._before = None
        return fresh

    def keep(self, canvases: Tensor) -> None:
        if self._before is not None:
            logprobs, row, stable = self._before
            self._before = logprobs, row[canvases], stable[canvases]

    def accept(self, state: State, scores: Tensor) -> Tensor:
        stable = self._update(state)
        return (best_logprobs(state) > float(np.log(self.probability))) & (stable >= 2)

    def _update(self, state: State) -> Tensor:
        """Count how many steps each position has been stable; remember this step."""
        assert state.logits is not None
        assert state.where is not None
        now, where = state.logits.log_softmax(-1), state.where
        stable = torch.zeros(state.masked.shape, dtype=torch.int64, device=now.device)
        if self._before is not None:
            before, rows, counts = self._before
            row = rows.flatten()[where]
            divergence = row_sums(now.exp() * (now - before[row.clamp(min=0)]))
            is_stable = (row >= 0) & (divergence < self.divergence)
            stable.view(-1).index_copy_(0, where, torch.where(is_stable, counts.flatten()[where] + 1, 0))
        rows = torch.full_like(stable, -1)
        rows.view(-1).index_copy_(0, where, torch.arange(len(where), device=now.device))
        self._before = now, rows, stable
        return stable


def best_logprobs(state: State) -> Tensor:
    """(B, T) the log-probability of the best token that may be filled in; -inf where nothing is masked."""
    assert state.logits is not None
    return state.spread(state.allowed.restrict(state.logits).amax(-1) - log_total(state.logits))


def ranked(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) positions from the highest score to the lowest, ties from the left, and (T,) their ranks from 1."""
    ranking = scores.sort(dim=1, descending=True, stable=True).indices
    return ranking, torch.arange(1, scores.shape[1] + 1, device=scores.device)


def ranked_prefix(enough: Tensor, ranking: Tensor) -> Tensor:
    """(B, T) bool, by position: the longest prefix of each ranking that is enough. enough: (B, T) bool, by rank."""
    return torch.zeros_like(enough).scatter_(1, ranking, enough.long().cumprod(1).bool())


def check_probability(probability: float) -> None:
    """An `InputError` unless it is in (0, 1]."""
    if not 0 < probability <= 1:
        raise InputError(f"{probability:g} is not a probability above 0")

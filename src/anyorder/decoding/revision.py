"""Revision: which filled positions are masked again after a step. There is none by default.

Without revision, a trajectory is a permutation; with revision, the trajectory keeps every write. A canvas is *complete*
when nothing in it is masked. A complete canvas is finished when the revision masks none of it again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anyorder.decoding.sampling import remasking_noise
from anyorder.errors import InputError, check_number
from anyorder.registry import Named, check_count, from_name, is_number, register, split_names

MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class RevisionState:
    """What a revision may look at after a step: B sequences, padded to T positions."""

    step: int
    """The step just made, from 1."""
    lengths: Tensor
    """(B,) int64"""
    filled: Tensor
    """(B, T) bool: true where a position was filled and may be masked again. Given positions never are."""
    tokens: Tensor
    """(B, T) int64: the current tokens."""
    logprobs: Tensor
    """(B, T) float: the model's log-probability of each token when it was written."""
    steps: Tensor
    """(B, T) int: the step of the last write."""
    masked: Tensor
    """(B, T) bool: true where a position is masked."""
    keys: Tensor
    """(B,) int64: identifies the sentence and the seed, for random revisions."""
    times_written: Tensor
    """(B, T) int64: how often each position was written."""
    changed: Tensor
    """(B, T) bool: true where the last write changed the token."""
    times_complete: Tensor
    """(B,) int64: the number of steps, including this one, after which nothing was masked."""
    current_logprobs: Tensor | None = None
    """(B, T) float: the log-probability of each token in this step's forward pass, for revisions that need it."""

    @property
    def complete(self) -> Tensor:
        """(B,) bool: nothing is masked."""
        return ~self.masked.any(1)

    @property
    def total(self) -> Tensor:
        """(B,) int64: positions that are filled or masked."""
        return (self.filled | self.masked).sum(1)


class Revision(Named, ABC):
    """One way to decide what is masked again."""

    hides_tokens: bool = True
    """Whether the model sees the mask at positions masked again; if not, it sees the old token until overwritten."""
    needs_current_logprobs: bool = False
    """Whether it needs the current step's log-probabilities of tokens that are already filled."""
    usual_schedule: str = "one"
    """The schedule published with it, for users who choose none."""

    @abstractmethod
    def last_step(self, length: int) -> int:
        """The last step after which any of a canvas's `length` positions may be masked again."""

    @abstractmethod
    def remask(self, state: RevisionState) -> Tensor:
        """(B, T) bool: the filled positions to mask again."""


class NoRevision(Revision):
    """What is filled stays."""

    name = "none"

    def last_step(self, length: int) -> int:
        return 0

    def remask(self, state: RevisionState) -> Tensor:
        raise AssertionError("never asked")


REVISIONS: dict[str, type[Revision]] = {"none": NoRevision}


def register_revision(name: str) -> Callable[[type[Revision]], type[Revision]]:
    """Class decorator: register the revision under this name."""
    return register("a revision", name, REVISIONS)


def make_revision(name: str | Revision) -> Revision:
    """The revision of that name: `none`, `mask-predict:10`, `gibbs`, `refine`, `p2`, `remdm`."""
    if isinstance(name, Revision):
        return name
    return from_name("revision", name, REVISIONS)


def split_revisions(names: str) -> list[str]:
    """A comma-separated list in which a revision's own options may contain commas.

    >>> split_revisions("none,remdm:10,0.1,gibbs")
    ['none', 'remdm:10,0.1', 'gibbs']
    """
    found = split_names(names, is_number)
    if not found:
        raise InputError("is empty: name a revision", "revision")
    return found


class Iterated(Revision):
    """A revision with several iterations. An iteration ends whenever the canvas is complete."""

    usual_schedule = "steps:1"

    def __init__(self, iterations: int = 10):
        check_count("number of iterations", iterations, at_most=MAX_ITERATIONS)
        self.iterations = iterations

    def last_step(self, length: int) -> int:
        return length * (self.iterations + 1)  # a step fills at least one position


@register_revision("mask-predict")
class MaskPredict(Iterated):
    """After iteration t < T, the n (1 - t/T) of n tokens, at least one, with the lowest probability when written."""

    fewest = 1

    def remask(self, state: RevisionState) -> Tensor:
        later = (self.iterations - state.times_complete).clamp(min=0)
        counts = (state.total * later // self.iterations).clamp(min=self.fewest)
        return lowest(self.confidence(state), state.filled, counts * (state.complete & (later > 0)))

    def confidence(self, state: RevisionState) -> Tensor:
        """(B, T) float: the lowest are masked again."""
        return state.logprobs


@register_revision("p2")
class PathPlanning(MaskPredict):
    """Like mask-predict, but older tokens are scored by the current forward pass, their log-probability times eta."""

    fewest = 0  # as published: it ends sooner if n < T
    needs_current_logprobs = True

    def __init__(self, iterations: int = 10, eta: float = 1.0):
        super().__init__(iterations)
        check_number("eta", eta, at_least=0)
        self.eta = eta

    def confidence(self, state: RevisionState) -> Tensor:
        assert state.current_logprobs is not None
        return torch.where(state.steps == state.step, state.logprobs, self.eta * state.current_logprobs)


@register_revision("refine")
class Refine(Iterated):
    """All tokens, though the model still sees them while predicting again; until nothing changes, at most T times."""

    hides_tokens = False

    def remask(self, state: RevisionState) -> Tensor:
        goes_on = state.complete & state.changed.any(1) & (state.times_complete <= self.iterations)
        return state.filled & goes_on[:, None]


@register_revision("gibbs")
class Gibbs(Iterated):
    """Once the canvas is complete, one token at a time, in the order they were filled; N passes over all tokens."""

    usual_schedule = "one"

    def __init__(self, passes: int = 1):
        check_count("number of passes", passes, at_most=MAX_ITERATIONS)
        super().__init__(passes)

    def remask(self, state: RevisionState) -> Tensor:
        goes_on = state.complete & (state.times_complete <= state.total * self.iterations)
        return lowest(state.steps, state.filled, goes_on.long())


@register_revision("remdm")
class ReMDM(Revision):
    """After step t of T, tokens of earlier steps at random, with probability min(eta, (1 - (t + 1)/T) / (t/T))."""

    def __init__(self, iterations: int = 10, eta: float = 0.1):
        check_count("number of iterations", iterations, at_most=MAX_ITERATIONS)
        check_number("eta", eta, at_least=0, at_most=1)
        self.iterations, self.eta = iterations, eta
        self.usual_schedule = f"linear:{iterations}"

    def last_step(self, length: int) -> int:
        return self.iterations - 2  # one step later the bound on the probability is 0

    def remask(self, state: RevisionState) -> Tensor:
        earlier = state.filled & (state.steps < state.step)
        bound = min(1.0, (self.iterations - state.step - 1) / state.step)
        probability = self.probability(state, earlier, bound)
        return earlier & (remasking_noise(state.keys, state.step, earlier.shape[1]) < probability)

    def probability(self, state: RevisionState, earlier: Tensor, bound: float) -> Tensor | float:
        """(B, T) or scalar, of being masked again. bound: the largest that keeps the model's marginals."""
        return min(self.eta, bound)


@register_revision("remdm-rescale")
class RescaledReMDM(ReMDM):
    """Like remdm, with probability eta (1 - (t + 1)/T) / (t/T)."""

    def probability(self, state: RevisionState, earlier: Tensor, bound: float) -> Tensor | float:
        return self.eta * bound


@register_revision("remdm-conf")
class ConfidentReMDM(ReMDM):
    """Like remdm, with probability (1 - (t + 1)/T) / (t/T) times the softmax of -p, p the probability when written."""

    def __init__(self, iterations: int = 10):
        super().__init__(iterations)

    def probability(self, state: RevisionState, earlier: Tensor, bound: float) -> Tensor | float:
        # In double precision, so that the padded width of the batch cannot affect the result.
        confidence = state.logprobs.double().exp().masked_fill(~earlier, torch.inf)
        return bound * (-confidence).softmax(1).nan_to_num()  # NaN where nothing was filled before


def lowest(scores: Tensor, among: Tensor, counts: Tensor) -> Tensor:
    """(B, T) bool: the `counts[i]` positions of sequence i with the lowest scores, ties from the left.

    among: (B, T) bool: the positions to choose from.
    """
    ranking = scores.float().masked_fill(~among, torch.inf).sort(dim=1, stable=True).indices
    chosen = torch.arange(scores.shape[1], device=scores.device) < counts[:, None]
    return torch.zeros_like(among).scatter_(1, ranking, chosen) & among

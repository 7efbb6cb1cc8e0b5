"""Schedules: how many of the ranked positions a step fills. They never score or fill positions.

A `FixedSchedule` depends on the step and on how many positions are left, so the host knows it in advance and
never waits for the device. An `AdaptiveSchedule` looks at the model's predictions: a step fills as many positions as
the model is confident about. With `Blocks`, either applies within one block after the other. Schedules are looked up by
name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

from anyorder.errors import InputError, check_number
from anyorder.models.base import row_sums
from anyorder.orders.base import Order, State
from anyorder.orders.heuristics import entropy, grid_levels
from anyorder.orders.learned import LearnedOrder
from anyorder.registry import Named, check_count, from_name, is_count, is_number, register, split_names


class Schedule(Named):
    """One way to decide how many positions a step fills."""

    needs_logits: bool = False
    """Whether it looks at predictions, whatever the order does."""

    def narrow(self, state: State, scores: Tensor) -> Tensor:
        """(B, T) the order's scores, -inf at positions that may not be filled now; at least one per sequence may.

        scores: (B, T), -inf where nothing is masked.
        """
        return scores

    def bind(self, order: Order) -> tuple[Order, "Schedule"]:
        """This order and this schedule as they decode together."""
        return order, self

    def reach(self, remaining: np.ndarray, total: np.ndarray, state: State) -> np.ndarray | None:
        """(B,) how many masked positions, from the left, `narrow` leaves in each sequence; None for all.

        Called only if filled positions are never masked again. remaining, total: see `FixedSchedule.counts`.
        """
        return None

    def start(self) -> Self:
        """The schedule for one batch of canvases. A schedule that remembers earlier steps returns a fresh copy."""
        return self

    def keep(self, canvases: Tensor) -> None:
        """Keep only these canvases, by index; a schedule that remembers earlier steps forgets the rest."""


class FixedSchedule(Schedule, ABC):
    """Known in advance."""

    @abstractmethod
    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        """(B,) positions to fill now. The engine clips it to [1, remaining].

        Args:
            remaining: (B,) positions still masked.
            total: (B,) positions that were initially masked.
            step: From 1.
        """

    def steps(self, total: int) -> int:
        """Number of steps for a canvas with `total` masked positions."""
        return len(self.counts_by_step(total))

    def counts_by_step(self, total: int) -> list[int]:
        """How many positions each step fills in a canvas with `total` masked positions."""
        found: list[int] = []
        remaining = total
        while remaining > 0:
            count = self.counts(np.array([remaining]), np.array([total]), len(found) + 1)
            found.append(int(count.clip(1, remaining)[0]))
            remaining -= found[-1]
        return found


class AdaptiveSchedule(Schedule, ABC):
    """Depends on the predictions: the engine computes the logits of every masked position and waits for the device."""

    needs_logits = True
    is_local: bool = False
    """Whether it looks only at predictions of this step, and only at positions that `narrow` leaves. If the order is
    local too, the engine computes only those positions."""

    @abstractmethod
    def accept(self, state: State, scores: Tensor) -> Tensor:
        """(B, T) bool: positions to fill now. scores: (B, T), from the order, -inf where nothing may be filled.

        If it accepts no position of a sequence, the engine fills the position that the order ranks first.
        """


SCHEDULES: dict[str, type[Schedule]] = {}


def register_schedule(name: str) -> Callable[[type[Schedule]], type[Schedule]]:
    """Class decorator: register the schedule under this name."""
    return register("a schedule", name, SCHEDULES)


class Constant(FixedSchedule):
    """`one` position per step (the paper), or `k`."""

    def __init__(self, size: int = 1):
        self.size = size
        self.name = "one" if size == 1 else str(size)

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        return np.minimum(self.size, remaining)

    def steps(self, total: int) -> int:
        return -(-total // self.size)


ONE = Constant(1)


def make_schedule(name: str | int | Schedule) -> Schedule:
    """The schedule of that name: `one`, a whole number of positions per step, `threshold:0.9`, `blocks:8+cosine:4`."""
    if isinstance(name, Schedule):
        return name
    text = str(name).strip()
    if text == "one" or is_count(text):
        return Constant(1 if text == "one" else int(text))
    return from_name("schedule", text, SCHEDULES, also=("one", "a whole number from 1 to a thousand million"))


def split_schedules(names: str) -> list[str]:
    """A comma-separated list in which a schedule's own options may contain commas.

    >>> split_schedules("one,4,klass:0.9,0.01,blocks:8+factor:1")
    ['one', '4', 'klass:0.9,0.01', 'blocks:8+factor:1']
    """
    found = split_names(names, lambda part: is_number(part) and not is_count(part))
    if not found:
        raise InputError("is empty: name a schedule", "schedule")
    return found


class NumberOfSteps(FixedSchedule):
    """At most T steps."""

    def __init__(self, number: int = 10):
        check_count("number of steps", number)
        self.number = number


@register_schedule("steps")
class EvenSteps(NumberOfSteps):
    """T steps of equal size; if the positions do not divide evenly, the first steps fill one more."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        steps_left = max(self.number - step + 1, 1)
        return -(-remaining // steps_left)


@register_schedule("linear")
class Linear(NumberOfSteps):
    """T steps; after step t, n (1 - t/T) of n positions are masked."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        return remaining - total * max(self.number - step, 0) // self.number


@register_schedule("cosine")
class Cosine(NumberOfSteps):
    """T steps; after step t, n cos(t/T pi/2) of n positions are masked, so later steps fill more."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        masked_after = total * np.cos(np.pi / 2 * min(step, self.number) / self.number)
        return remaining - np.floor(masked_after).astype(np.int64)


class Shares(NumberOfSteps):
    """Each step fills a share of what is masked, rounded, and the last one the rest.

    Steps that would fill nothing are left out: the next one would see the same canvas.
    """

    def __init__(self, number: int):
        check_count("number of steps", number, at_most=10_000)
        super().__init__(int(number))
        self._shares = self.shares()
        self._left: dict[int, list[int]] = {}
        """See `_masked_after`, by length."""

    @abstractmethod
    def shares(self) -> np.ndarray:
        """(T,) of each step."""

    @abstractmethod
    def rounded(self, masked: int, share: np.floating) -> int:
        """How many of so many masked positions the share is."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        lengths, canvas = np.unique(total, return_inverse=True)
        after = np.array([(self._masked_after(int(length))[step:] or [0])[0] for length in lengths])
        return remaining - after[canvas]

    def _masked_after(self, length: int) -> list[int]:
        """How many of so many positions are masked at first and after each step."""
        if length not in self._left:
            left = [length]
            for share in self._shares[:-1]:
                left.append(left[-1] - self.rounded(left[-1], share))
            self._left[length] = [*dict.fromkeys(one for one in left if one), 0]
        return self._left[length]


@register_schedule("timesteps")
class Timesteps(Shares):
    """Dream's: T + 1 times from 1 down to eps; from time t to s, the share 1 - s/t of what is masked, rounded down.

    The counts are each sentence's own; Dream's code takes the mean over the batch.
    """

    def __init__(self, number: int = 10, eps: float = 0.001):
        if not 0 < eps < 1:
            raise InputError(f"eps {eps:g}: expected a number between 0 and 1")
        self.eps = eps
        super().__init__(number)

    def shares(self) -> np.ndarray:
        times = torch.linspace(1, self.eps, self.number + 1)  # in float32, as Dream's: its rounding decides some counts
        return (1 - times[1:] / times[:-1]).numpy()

    def rounded(self, masked: int, share: np.floating) -> int:
        return int(np.float32(masked) * share)


@register_schedule("rounded")
class Rounded(Shares):
    """dLLM's: like steps:T, but each step's even share of what is masked is rounded to the nearest whole number."""

    def shares(self) -> np.ndarray:
        times = torch.arange(self.number, -1, -1, dtype=torch.float64) / self.number
        masked = 1 - (1 - times.float())  # in float32, as dLLM's, which decides what is half way between two numbers
        return 1 - (masked[1:] / masked[:-1]).double().numpy()

    def rounded(self, masked: int, share: np.floating) -> int:
        return round(masked * float(share))


@register_schedule("dilated")
class Dilated(FixedSchedule):
    """As many positions as each grid of the order dilated adds; combined with that order, the grids themselves."""

    def __init__(self, base: int = 2):
        check_count("base", base, at_least=2)
        self.base = base

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        lengths, canvas = np.unique(total, return_inverse=True)
        width = int(lengths.max())
        levels = grid_levels(torch.from_numpy(lengths), width, self.base).numpy()
        later = (levels > step) & (np.arange(width) < lengths[:, None])
        return remaining - later.sum(1)[canvas]


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

    def start(self) -> Self:
        fresh = copy(self)
        fresh._before = None
        return fresh

    def keep(self, canvases: Tensor) -> None:
        if self._before is not None:
            logprobs, row, stable = self._before
            self._before = logprobs, row[canvases], stable[canvases]

    def accept(self, state: State, scores: Tensor) -> Tensor:
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
        return (best_logprobs(state) > float(np.log(self.probability))) & (stable >= 2)


@register_schedule("learned")
class Learned(AdaptiveSchedule):
    """As many as a learned order decides at a speed from 0 (best) to 1 (fewest passes), or `passes=N` on average."""

    def __init__(self, speed: float = 0.5, passes: float | None = None):
        """passes: what validation took on average at the speed that is meant."""
        check_number("speed", speed, at_least=0, at_most=1)
        check_number("passes", passes, at_least=1)
        self.speed, self.passes = speed, passes
        self._order: LearnedOrder | None = None

    @classmethod
    def parse(cls, options: str) -> "Learned":
        key, equals, number = options.partition("=")
        if not is_number(number if equals else options or "0.5") or (equals and key.strip() != "passes"):
            raise InputError(f"'{options}': expected a speed from 0 to 1, or passes=N")
        return cls(passes=float(number)) if equals else cls(float(options or 0.5))

    def bind(self, order: Order) -> tuple[Order, Schedule]:
        if not isinstance(order, LearnedOrder) or not order.network.config.decides_count:
            found = f"the order '{order.name}' does not decide how many positions to fill"
            raise InputError(f"{self.name}: {found}: learn one with the count 'bernoulli'", "schedule")
        bound = copy(self)
        bound._order = order.at_speed(self.speed if self.passes is None else order.speed_for(self.passes))
        return bound._order, bound

    def accept(self, state: State, scores: Tensor) -> Tensor:
        assert self._order is not None
        return self._order.accepts(state)


@register_schedule("blocks")
class Blocks(Schedule):
    """Blocks of b positions from left to right; the schedule after + applies within each: blocks:8+threshold:0.9.

    Blocks are counted from the first mask: what is given belongs to none. `blocks:8@text` counts them from the start of
    the text, as block-causal models do, and `blocks:8@answer` from the first mask even for these.
    """

    def __init__(self, size: int, inner: Schedule, origin: str = ""):
        if isinstance(inner, Blocks):
            raise InputError("there are no blocks inside blocks")
        check_count("size of a block", size)
        self.size, self.inner, self.origin = size, inner, origin
        self.name = f"blocks:{size}{f'@{origin}' if origin else ''}+{inner.name}"

    @classmethod
    def parse(cls, options: str) -> "Blocks":
        blocks, plus, name = (part.strip() for part in options.partition("+"))
        size, at, origin = (part.strip() for part in blocks.partition("@"))
        if not is_count(size):
            raise InputError(f"'{size}' is not a whole number from 1 to a thousand million")
        if at and origin not in ("text", "answer"):
            raise InputError(f"'@{origin}': blocks are counted from the start of the @text or of the @answer")
        inner = make_schedule(name if plus else "one")
        if origin == "text":
            return TextBlocks(int(size), inner, origin)
        kind = FixedBlocks if isinstance(inner, FixedSchedule) else AdaptiveBlocks
        return kind(int(size), inner, origin)

    def around(self, inner: Schedule) -> Self:
        """The same blocks with another schedule of the same kind in each."""
        blocks = copy(self)
        blocks.inner = inner
        return blocks

    def bind(self, order: Order) -> tuple[Order, Schedule]:
        order, inner = self.inner.bind(order)
        return order, self.around(inner)

    def start(self) -> Self:
        return self.around(self.inner.start())

    def keep(self, canvases: Tensor) -> None:
        self.inner.keep(canvases)

    def narrow(self, state: State, scores: Tensor) -> Tensor:
        return scores.masked_fill(~self._current(state), -torch.inf)

    def _current(self, state: State) -> Tensor:
        """(B, T) bool: the leftmost block with a mask."""
        block = self._blocks(state)
        return block == self._leftmost(block, state)

    def finished(self, state: State) -> Tensor:
        """(B, T) bool: the blocks before that one."""
        block = self._blocks(state)
        return block < self._leftmost(block, state)

    def _leftmost(self, block: Tensor, state: State) -> Tensor:
        """(B, 1) the index of the leftmost block with a mask. block: (B, T), of each position"""
        return block.masked_fill(~state.masked, torch.iinfo(block.dtype).max).amin(1, keepdim=True)

    def reach(self, remaining: np.ndarray, total: np.ndarray, state: State) -> np.ndarray | None:
        if isinstance(self.inner, AdaptiveSchedule) and not self.inner.is_local:
            return None
        return np.minimum(remaining, self.size - (total - remaining) % self.size)

    def _blocks(self, state: State) -> Tensor:
        """(B, T) the block index of each position."""
        if state.fillable is None:
            return (state.positions // self.size).expand(state.masked.shape)
        return (state.fillable.cumsum(1) - 1).clamp(min=0) // self.size


class FixedBlocks(Blocks, FixedSchedule):
    """Blocks whose inner schedule is known in advance. It starts over with every block."""

    inner: FixedSchedule

    def __init__(self, size: int, inner: Schedule, origin: str = ""):
        super().__init__(size, inner, origin)
        self._known: dict[int, list[int]] = {}

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        lengths, canvas = np.unique(total, return_inverse=True)
        by_step = [self.counts_by_step(length) for length in lengths.tolist()]
        now = [counts[step - 1] if step <= len(counts) else self.size for counts in by_step]
        return np.array(now)[canvas]

    def counts_by_step(self, total: int) -> list[int]:
        if total not in self._known:
            whole, rest = divmod(total, self.size)
            block = self.inner.counts_by_step(self.size) if whole else []
            self._known[total] = block * whole + self.inner.counts_by_step(rest)
        return self._known[total]


class AdaptiveBlocks(Blocks, AdaptiveSchedule):
    """Blocks whose inner schedule uses the predictions."""

    inner: AdaptiveSchedule

    def accept(self, state: State, scores: Tensor) -> Tensor:
        return self.inner.accept(state, scores)


class TextBlocks(Blocks, AdaptiveSchedule):
    """Blocks of the whole text, given tokens included: of some, only a part is masked.

    A step fills as many positions as it would in a block that is all masked, until the block has no mask left. Where
    the masks are decides how many steps a canvas takes, so the engine finds out as it goes.
    """

    is_local = True

    def __init__(self, size: int, inner: Schedule, origin: str = ""):
        super().__init__(size, inner, origin)
        self.needs_logits = inner.needs_logits
        if isinstance(inner, FixedSchedule):
            self._filled_after = np.cumsum(inner.counts_by_step(size))
            """Positions of a block that is all masked, after each step."""
        else:
            assert isinstance(inner, AdaptiveSchedule)
            self.is_local = inner.is_local

    def accept(self, state: State, scores: Tensor) -> Tensor:
        if isinstance(self.inner, AdaptiveSchedule):
            return self.inner.accept(state, scores)
        filled = (self._current(state) & state.filled).sum(1)
        after = torch.from_numpy(self._filled_after).to(filled.device)
        count = after[torch.searchsorted(after, filled, right=True)] - filled
        ranking, rank = ranked(scores)
        return ranked_prefix(rank <= count[:, None], ranking)

    def reach(self, remaining: np.ndarray, total: np.ndarray, state: State) -> np.ndarray | None:
        return (self._current(state) & state.masked).sum(1).cpu().numpy() if self.is_local else None

    def _blocks(self, state: State) -> Tensor:
        return ((state.positions + state.opening_size) // self.size).expand(state.masked.shape)


def counted_from_text(schedule: Schedule) -> Schedule:
    """Blocks without @ as a block-causal model takes them; any other schedule as it is."""
    if not isinstance(schedule, Blocks) or schedule.origin:
        return schedule
    blocks = TextBlocks(schedule.size, schedule.inner)
    blocks.name = schedule.name
    return blocks


def best_logprobs(state: State) -> Tensor:
    """(B, T) the log-probability of the best (or sampled) token at each position; -inf where nothing is masked."""
    return state.spread(state.token_logprobs)


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


def best_ranked(scores: Tensor) -> Tensor:
    """(B, T) bool: the position of each sequence with the highest score; ties go left."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.argmax(1, keepdim=True), True)

"""The shape of a generation order: metrics and labels that use only the steps, not the words.

An order is given as `steps`: the step, from 1, at which each position was filled. Functions take one sentence (n,) or
many of the same length (..., n), and measure along the last axis. Only the order of the steps matters, not their
values. Where a step fills several positions, rank statistics count ties; metrics of moves from one position to the
next (jumps, AR-ness) take the positions of a step from left to right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class RankedOrders:
    """Orders of one length, (..., n) each, sorted once; every function here takes this in place of steps."""

    steps: Array
    permutation: Array
    """Positions, from 0, in the order in which they were filled; from the left within one step."""
    earlier: Array
    """How many positions were filled in earlier steps."""
    until: Array
    """How many positions were filled in the same step or earlier."""

    @property
    def length(self) -> int:
        return self.steps.shape[-1]

    @cached_property
    def relative(self) -> Array:
        """When each position was filled, from 0 (the start) to 1 (the end): the midpoint of its n-th of the time.

        >>> ranked([1, 4, 3, 2]).relative.tolist()
        [0.125, 0.875, 0.625, 0.375]
        """
        return (self.earlier + self.until) / (2 * self.length)

    @cached_property
    def tied(self) -> Array:
        """(...): pairs of positions filled in the same step."""
        return (self.until - self.earlier - 1).sum(-1) // 2

    @cached_property
    def passed(self) -> Array:
        """See `passed_over`."""
        return passed_over(self.steps)


Orders = Sequence[int] | Array | RankedOrders


def ranked(steps: Orders) -> RankedOrders:
    """Sort orders.

    >>> orders = ranked([2, 1, 2, 9])
    >>> orders.permutation.tolist(), orders.earlier.tolist(), orders.until.tolist()
    ([1, 0, 2, 3], [1, 0, 1, 3], [3, 1, 3, 4])
    """
    if isinstance(steps, RankedOrders):
        return steps
    steps = np.asarray(steps)
    permutation = np.argsort(steps, axis=-1, kind="stable")
    ordered = np.take_along_axis(steps, permutation, -1)
    length = steps.shape[-1]
    opens = np.ones(steps.shape, bool)
    opens[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    closes = np.ones(steps.shape, bool)
    closes[..., :-1] = opens[..., 1:]
    ranks = np.arange(length, dtype=np.int32)
    first = np.maximum.accumulate(np.where(opens, ranks, 0), -1)
    end = np.minimum.accumulate(np.where(closes, ranks + 1, length)[..., ::-1], -1)[..., ::-1]
    earlier, until = np.empty(steps.shape, np.int32), np.empty(steps.shape, np.int32)
    np.put_along_axis(earlier, permutation, first, -1)
    np.put_along_axis(until, permutation, end, -1)
    return RankedOrders(steps, permutation, earlier, until)


def by_length(steps: Sequence[Sequence[int]]) -> Iterator[tuple[Array, Array]]:
    """Sentences of one length together, shortest first: (m,) their indices and (m, n) their steps. No empty ones.

    Steps are renumbered (only their order matters), so that they fit small integers.
    """
    lengths = np.array([len(sentence) for sentence in steps], np.int64)
    for length in np.unique(lengths[lengths > 0]).tolist():
        rows = np.flatnonzero(lengths == length)
        renumbered = ranked(np.array([steps[row] for row in rows.tolist()], np.int64)).until
        yield rows, renumbered.astype(np.int16 if length < 1 << 15 else np.int32)


def left_to_right(length: int) -> Array:
    """The steps of this order, to compare others with."""
    return np.arange(1, length + 1, dtype=np.int32)


def outer_in(length: int) -> Array:
    """The order `outer-in` with stride 1: first, last, second, last but one, ...

    >>> outer_in(5).tolist()
    [1, 3, 5, 4, 2]
    """
    left = np.arange(length)
    return np.minimum(2 * left + 1, 2 * (length - left)).astype(np.int32)


def kendall(steps: Orders, reference: Array) -> Array:
    """(...) Kendall's tau-b with a reference order that fills one position per step: the pairs of positions that both
    orders fill in the same sequence minus those that they do not, divided by the geometric mean of the numbers of pairs
    that each of them orders at all. NaN where there are none.

    >>> round(float(kendall([1, 2, 4, 3], left_to_right(4))), 3)
    0.667
    """
    orders = ranked(steps)
    permutation = np.argsort(reference)
    ascends = np.array_equal(permutation, np.arange(orders.length))
    return _tau(orders.passed if ascends else passed_over(orders.steps[..., permutation]), orders.tied)


def _tau(passed: Array, tied: Array) -> Array:
    """(...) Kendall's tau-b with left-to-right, from what `RankedOrders` says of orders."""
    pairs = passed.shape[-1] * (passed.shape[-1] - 1) / 2
    discordant = passed.sum(-1, dtype=np.int64)
    return divide(pairs - tied - 2 * discordant, np.sqrt(pairs * (pairs - tied)))


def spearman(steps: Orders, reference: Array) -> Array:
    """(...) Spearman's rho with a reference order: the correlation of the ranks, ties averaged. NaN where either of the
    two orders nothing.

    >>> round(float(spearman([1, 2, 4, 3], left_to_right(4))), 3)
    0.8
    """
    ranks, reference_ranks = ranked(steps).relative - 0.5, ranked(reference).relative - 0.5
    variances = np.einsum("...i,...i", ranks, ranks) * (reference_ranks @ reference_ranks)
    return divide(ranks @ reference_ranks, np.sqrt(variances))


def divide(numerator: Array, denominator: Array) -> Array:
    """NaN where the denominator is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def _steps(steps: Orders) -> Array:
    return steps.steps if isinstance(steps, RankedOrders) else np.asarray(steps)


def at_edge(steps: Orders) -> Array:
    """(..., n): whether the position was the leftmost or the rightmost masked one when it was filled."""
    return np.logical_or(*at_edges(steps))


def at_edges(steps: Orders) -> tuple[Array, Array]:
    """(..., n) each: whether the position was the leftmost masked one when it was filled, and whether the rightmost.

    It was the leftmost if nothing to its left was filled later.
    """
    values = _steps(steps)
    latest_from_right = np.maximum.accumulate(values[..., ::-1], -1)[..., ::-1]
    return values == np.maximum.accumulate(values, -1), values == latest_from_right


def edge_share(steps: Sequence[Array]) -> float:
    """Over all sentences, the share of positions that were filled as the leftmost or the rightmost masked one."""
    return sum(np.count_nonzero(at_edge(sentence)) for sentence in steps) / max(1, sum(map(len, steps)))


def jumps(steps: Orders) -> Array:
    """(..., n - 1): the signed distance from each filled position to the next one; +1 is the right neighbor.

    >>> jumps([1, 2, 4, 3]).tolist()
    [1, 2, -1]
    """
    return np.diff(ranked(steps).permutation, axis=-1)


def local_arness(steps: Orders, k: int) -> Array:
    """(..., n - k): whether k consecutive moves all went to the right neighbor. The mean is the local AR-ness@k.

    AR-ness (Gong et al. 2025, DiffuCoder) is how close an order is to that of a left-to-right model.

    >>> local_arness([1, 2, 3, 5, 4], 2).tolist()
    [True, False, False]
    """
    moves = jumps(steps)
    windows = max(0, moves.shape[-1] - k + 1)
    all_right = np.ones((*moves.shape[:-1], windows), bool)
    for start in range(k):
        all_right &= moves[..., start : start + windows] == 1
    return all_right


def passed_over(steps: Sequence[int] | Array) -> Array:
    """(..., n): how many positions to the left of each position were still masked when it was filled.

    >>> passed_over([1, 4, 2, 3]).tolist()
    [0, 0, 1, 1]
    """
    # Positions first: a comparison then runs over the many sentences, not along one short sentence.
    values = np.ascontiguousarray(np.moveaxis(np.asarray(steps), -1, 0))
    passed = np.zeros(values.shape, np.int16 if len(values) < 1 << 15 else np.int32)
    for lag in range(1, len(values)):
        passed[lag:] += values[:-lag] > values[lag:]
    return np.moveaxis(passed, 0, -1)


def global_arness(steps: Orders, k: int) -> Array:
    """(..., n): whether the position was one of the first k masked ones when it was filled. The mean is the global
    AR-ness@k.

    >>> global_arness([1, 4, 2, 3], 1).tolist()
    [True, True, False, False]
    """
    return ranked(steps).passed < k


def is_left_to_right(steps: Orders) -> Array:
    """(...): whether no position was filled before one to its left."""
    return ranked(steps).passed.sum(-1) == 0


def is_last_then_left_to_right(steps: Orders) -> Array:
    """(...): whether the last position alone was filled first, and the others from left to right."""
    orders = ranked(steps)
    if not orders.length:
        return np.zeros(orders.steps.shape[:-1], bool)
    is_first = (orders.until[..., -1] == 1) & (orders.length > 1)
    return is_first & ~orders.passed[..., :-1].any(-1)


NEARLY = 0.9
"""Kendall's tau above which an order counts as nearly left-to-right."""


def is_nearly_left_to_right(steps: Orders, without_last: Array | bool = False) -> Array:
    """(...): whether an order is left-to-right, or has a Kendall's tau with left-to-right above 0.9.

    without_last: (...) where the last position, such as final punctuation, does not count.

    >>> [bool(is_nearly_left_to_right([2, 3, 4, 5, 1], without_last)) for without_last in (False, True)]
    [False, True]
    """
    orders = ranked(steps)
    tied_without_last = orders.tied - (orders.until - orders.earlier - 1)[..., -1]
    rest = _tau(orders.passed[..., :-1], tied_without_last) > NEARLY
    whole = _tau(orders.passed, orders.tied) > NEARLY
    rest |= ~orders.passed[..., :-1].any(-1)
    return np.where(without_last, rest, whole | is_left_to_right(orders))


def heat_map(steps: Orders, bins: int = 20) -> Array:
    """(..., bins, bins): at which time (rows, from the first step) which part of the sentence (columns) was filled.

    Time and sentence both run from 0 to 1, and each position is a rectangle: its n-th of the sentence by its n-th of
    the time (positions of one step share theirs). The map is the area of these in each cell, so that every row and
    every column sums to 1. Sentences of any length have the same weight, and their mean is the map of a test set.

    >>> heat_map([1, 2, 4, 3], 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    orders = ranked(steps)
    borders = np.arange(bins + 1, dtype=np.float32) * np.float32(orders.length / bins)
    positions = np.arange(orders.length)
    space = _overlap(positions, positions + 1, borders)
    shared_by = (orders.until - orders.earlier)[..., None].astype(np.float32)
    time = _overlap(orders.earlier, orders.until, borders) / shared_by
    return np.swapaxes(time, -1, -2) @ space * np.float32(bins / orders.length)


def _overlap(start: Array, end: Array, borders: Array) -> Array:
    """(..., bins): how much of the interval from start to end lies in each bin."""
    low, high = start[..., None].astype(np.float32), end[..., None].astype(np.float32)
    return np.diff(np.clip(borders, low, high), axis=-1)


def order_entropy(heat: Array) -> Array:
    """(...): how uncertain it is, at a given time, which position is filled. The entropy of each row of a test set's
    (..., bins, bins) heat map, divided by the logarithm of the number of bins, averaged over the rows. 1 for random
    orders."""
    bins = heat.shape[-1]
    share = np.maximum(heat, 0)
    logs = np.log(share, where=share > 0, out=np.zeros_like(share))
    return -(share * logs).sum(-1).mean(-1) / np.log(bins)


def profile_signs(steps: Orders, points: int = 20) -> Array:
    """(..., points (points - 1) / 2): which of two points of the sentence was filled later, as a unit vector.

    The points are equally spaced from the first position to the last; between two positions the relative step is
    interpolated. The dot product of two such vectors is then Kendall's tau-b of two sentences brought to the same
    length: 1 for left-to-right at any two lengths. All zeros where a sentence orders nothing.
    """
    relative = ranked(steps).relative
    point = np.linspace(0, relative.shape[-1] - 1, points)
    left = np.minimum(point.astype(np.int64), max(0, relative.shape[-1] - 2))
    right = np.minimum(left + 1, relative.shape[-1] - 1)
    weight = point - left
    profile = np.round(relative[..., left] * (1 - weight) + relative[..., right] * weight, 9).astype(np.float32)
    first, second = np.triu_indices(points, 1)
    signs = np.sign(profile[..., second] - profile[..., first])
    norm = np.sqrt(np.einsum("...i,...i", signs, signs))[..., None]
    return np.divide(signs, norm, out=np.zeros_like(signs), where=norm > 0)


def diversity(sums: Array, squares: Array) -> Array:
    """(...): how much the orders of a test set differ, 1 minus the mean Kendall's tau-b of all pairs of sentences.

    0 if all have the same shape, 1 for random orders, more if many are opposites. A sentence is not paired with itself.

    Args:
        sums: (..., 1 + M) the sum of the weights, how often each sentence was sampled, and of the weighted vectors of
            `profile_signs`.
        squares: (...) the sum of the squares of the weights.
    """
    total, vector = sums[..., 0], sums[..., 1:]
    squared_norm = np.einsum("...i,...i", vector, vector).astype(np.float64)
    return 1 - divide(squared_norm - squares, np.asarray(total**2 - squares))


LABELS = ("outer-to-inner", "left-to-right", "right-to-left", "inner-to-outer", "other")
NULL_SHARE = 0.0125
"""How often a random order may get one of the four labels."""
LEAST_SIDE_SHARE = 0.25
"""An order that works inwards fills at least this share of its edge positions from each side."""


def labels(steps: Orders) -> Array:
    """(...): which shape an order has, as an index into `LABELS`.

    - *outer-to-inner*: it fills more positions at the edges of the masked part than random orders do, at least
      `edge_threshold`, and a quarter of them or more from either side. It need not alternate: the left half, then the
      right half backwards is outer-to-inner, too.
    - *inner-to-outer*: the order played backwards is outer-to-inner.
    - *left-to-right*, *right-to-left*: neither, and Kendall's tau with left-to-right, or its negative, is at least
      `tau_threshold`. A sentence of ten or more positions with the last one filled first and the rest from left to
      right is left-to-right, and so is the paper's own example that 'runs from left to right mostly'.

    Every label is calibrated on random orders: they get each of the four in at most about 1.25% of sentences, and any
    of them in 5%; in more if a sentence has six positions or fewer, where even a pure order is likely by chance (7% at
    six, a quarter at five).

    >>> LABELS[int(labels([1, 2, 3, 4, 8, 7, 6, 5]))]
    'outer-to-inner'
    """
    orders = ranked(steps)
    tau = _tau(orders.passed, orders.tied)
    inward, outward = _excess_at_edges(orders.until), _excess_at_edges(-orders.until)
    is_monotonic = np.abs(tau) >= tau_threshold(orders.length) - 1e-6  # False for NaN
    monotonic = np.where(tau > 0, 1, 2)
    conditions = [(inward > 0) & (inward > outward), (outward > 0) & (outward > inward), is_monotonic]
    return np.select(conditions, [0, 3, monotonic], 4)


def tau_threshold(length: int) -> float:
    """The size of Kendall's tau with left-to-right that 2.5% of random orders of this length reach, 1.25% either way.

    The tau of a random order has the variance 2(2n + 5) / 9n(n - 1) and is nearly normal. Never above 1, so that full
    agreement always counts.
    """
    if length < 2:
        return 1.0
    return min(1.0, 2.24 * float(np.sqrt(2 * (2 * length + 5) / (9 * length * (length - 1)))))


@lru_cache(maxsize=100_000)
def edge_threshold(step_sizes: tuple[int, ...]) -> int:
    """The number of positions filled at an edge that random orders reach in at most 1.25% of sentences.

    Exact: a random order chooses a step's positions from the masked ones, all choices equally likely, whatever happened
    before. Never above the length, so that an order that fills nothing but edges always counts. step_sizes: How many
    positions each step fills, from the first on.
    """
    length = remaining = sum(step_sizes)
    chances = np.ones(1)
    for size in step_sizes:
        chances = np.convolve(chances, _edge_chances(remaining, size))
        remaining -= size
    at_least = np.cumsum(chances[::-1])[::-1]
    return min(length, int(np.count_nonzero(at_least > NULL_SHARE * (1 + 1e-9))))


def _edge_chances(masked: int, size: int) -> Array:
    """(size + 1,): how likely 0, 1, ... of `size` positions, drawn from the masked ones, are at an edge.

    Positions are at an edge if they and all masked ones on one side of them are drawn: a run from the left and one from
    the right. Both runs together can have a length t in t + 1 ways; each has G(t) - 2 G(t + 1) + G(t + 2) of all
    choices, where G(t) is the number of those that contain t given positions.
    """
    if size == masked:
        return np.eye(1, size + 1, size)[0]
    holding = [*(comb(masked - t, size - t) for t in range(size + 1)), 0, 0]
    exactly = [(t + 1) * (holding[t] - 2 * holding[t + 1] + holding[t + 2]) for t in range(size + 1)]
    return np.array([count / comb(masked, size) for count in exactly])


def _excess_at_edges(steps: Array) -> Array:
    """(...): by how many edge positions an order exceeds what random orders reach, 1 being the least that counts.

    0 or less if it does not, or if too few come from one of the sides.
    """
    from_left, from_right = at_edges(steps)
    at_edge = np.count_nonzero(from_left | from_right, axis=-1)
    left = np.count_nonzero(from_left & ~from_right, axis=-1)
    right = np.count_nonzero(from_right & ~from_left, axis=-1)
    has_both_sides = (np.minimum(left, right) >= LEAST_SIDE_SHARE * (left + right)) & (left + right > 0)
    return np.where(has_both_sides, at_edge - _edge_thresholds(steps) + 1, 0)


def _edge_thresholds(steps: Array) -> Array:
    """(...): the `edge_threshold` of each order, or one for all."""
    ordered = np.sort(steps, axis=-1)
    starts = np.ones(ordered.shape, bool)
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    length = steps.shape[-1]
    if starts.all():  # one position per step
        return np.asarray(edge_threshold((1,) * length))
    kinds, kind = np.unique(starts.reshape(-1, length), axis=0, return_inverse=True)
    sizes = (tuple(np.diff([*np.flatnonzero(row), length]).tolist()) for row in kinds)
    return np.array([edge_threshold(one) for one in sizes])[kind].reshape(steps.shape[:-1])

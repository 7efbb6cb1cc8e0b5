"""The shape of a generation order: what the steps alone tell, whatever the words are.

An order comes as `steps`: the step, from 1, at which each position was filled. Functions take one sentence (n,) or
many of the same length (..., n), and measure along the last axis. Only the order of the steps matters, not their
values. Where several positions share a step (a budget above one), rank statistics know of ties; those that follow the
pen from one position to the next (jumps, AR-ness) read the positions of one step from the left.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LABELS = ("outer-to-inner", "left-to-right", "right-to-left", "inner-to-outer", "other")


@dataclass(frozen=True)
class RankedOrders:
    """Orders of one length, (..., n) each, sorted once: every function here takes this in place of steps."""

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
        """When each position was filled, from 0 (the start) to 1 (the end): the middle of its turn. 0.5 on average."""
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

    >>> one = ranked([2, 1, 2, 9])
    >>> one.permutation.tolist(), one.earlier.tolist(), one.until.tolist()
    ([1, 0, 2, 3], [1, 0, 1, 3], [3, 1, 3, 4])
    """
    if isinstance(steps, RankedOrders):
        return steps
    steps = np.asarray(steps)
    order = np.argsort(steps, axis=-1, kind="stable")
    ordered = np.take_along_axis(steps, order, -1)
    length = steps.shape[-1]
    opens = np.ones(steps.shape, bool)
    opens[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    closes = np.ones(steps.shape, bool)
    closes[..., :-1] = opens[..., 1:]
    numbers = np.arange(length, dtype=np.int32)
    first = np.maximum.accumulate(np.where(opens, numbers, 0), -1)
    behind = np.minimum.accumulate(np.where(closes, numbers + 1, length)[..., ::-1], -1)[..., ::-1]
    earlier, until = np.empty(steps.shape, np.int32), np.empty(steps.shape, np.int32)
    np.put_along_axis(earlier, order, first, -1)
    np.put_along_axis(until, order, behind, -1)
    return RankedOrders(steps, order, earlier, until)


def by_length(steps: Sequence[Sequence[int]]) -> Iterator[tuple[Array, Array]]:
    """Sentences of one length together, shortest first: (m,) their numbers and (m, n) their steps. No empty ones.

    Steps are renumbered (only their order matters), so that they fit small integers.
    """
    lengths = np.array([len(one) for one in steps], np.int64)
    for length in np.unique(lengths[lengths > 0]).tolist():
        rows = np.flatnonzero(lengths == length)
        several = ranked(np.array([steps[row] for row in rows.tolist()], np.int64)).until
        yield rows, several.astype(np.int16 if length < 1 << 15 else np.int32)


def relative_steps(steps: Orders) -> Array:
    """When each position was filled, from 0 (the start) to 1 (the end): the middle of its turn. 0.5 on average.

    >>> relative_steps([1, 4, 3, 2]).tolist()
    [0.125, 0.875, 0.625, 0.375]
    """
    return ranked(steps).relative


# Orders to compare with, as steps.


def left_to_right(length: int) -> Array:
    return np.arange(1, length + 1, dtype=np.int32)


def right_to_left(length: int) -> Array:
    return left_to_right(length)[::-1]


def outer_in(length: int) -> Array:
    """The order `outer-in` with stride 1: first, last, second, last but one, ...

    >>> outer_in(5).tolist()
    [1, 3, 5, 4, 2]
    """
    left = np.arange(length)
    return np.minimum(2 * left + 1, 2 * (length - left)).astype(np.int32)


def inner_out(length: int) -> Array:
    """`outer_in` backwards."""
    return length + 1 - outer_in(length)


# Correlations.


def kendall(steps: Orders, reference: Array) -> Array:
    """Kendall's tau-b to an order that fills one position a step: pairs of positions filled in the same order as there,
    less those filled the other way round, by the geometric mean of the numbers of pairs that either one orders at all.
    NaN where there are none.

    >>> round(float(kendall([1, 2, 4, 3], left_to_right(4))), 3)
    0.667
    """
    own = ranked(steps)
    pairs = own.length * (own.length - 1) / 2
    order = np.argsort(reference)
    ascends = np.array_equal(order, np.arange(own.length))
    against = (own.passed if ascends else passed_over(own.steps[..., order])).sum(-1, dtype=np.int64)
    return _ratio(pairs - own.tied - 2 * against, np.sqrt(pairs * (pairs - own.tied)))


def spearman(steps: Orders, reference: Array) -> Array:
    """Spearman's rho: the correlation of the ranks, those of ties averaged. NaN where either one orders nothing.

    >>> round(float(spearman([1, 2, 4, 3], left_to_right(4))), 3)
    0.8
    """
    own, given = ranked(steps).relative - 0.5, ranked(reference).relative - 0.5
    return _ratio(own @ given, np.sqrt(np.einsum("...i,...i", own, own) * (given @ given)))


def _ratio(top: Array, bottom: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)


def _steps(steps: Orders) -> Array:
    return steps.steps if isinstance(steps, RankedOrders) else np.asarray(steps)


# Borders and jumps.


def at_edge(steps: Orders) -> Array:
    """(..., n): the position was the leftmost or the rightmost masked one when it was filled.

    It was the leftmost if nothing to its left came later.
    """
    values = _steps(steps)
    from_right = np.maximum.accumulate(values[..., ::-1], -1)[..., ::-1]
    return (values == np.maximum.accumulate(values, -1)) | (values == from_right)


def edge_share(steps: Sequence[Array]) -> float:
    """Over all sentences, the share of positions that were filled as the leftmost or the rightmost masked one."""
    return sum(np.count_nonzero(at_edge(one)) for one in steps) / max(1, sum(map(len, steps)))


def jumps(steps: Orders) -> Array:
    """(..., n - 1): from each filled position to the next one; +1 is the right neighbour.

    >>> jumps([1, 2, 4, 3]).tolist()
    [1, 2, -1]
    """
    return np.diff(ranked(steps).permutation, axis=-1)


def adjacent(steps: Orders) -> Array:
    """(..., n - 1): the next position is a neighbour of the one filled before it."""
    return np.abs(jumps(steps)) == 1


# AR-ness (Gong et al. 2025, DiffuCoder): how near an order is to a left-to-right model's.


def local_arness(steps: Orders, k: int) -> Array:
    """(..., n - k): k moves in a row all went to the right neighbour. Its mean is the local AR-ness@k.

    >>> local_arness([1, 2, 3, 5, 4], 2).tolist()
    [True, False, False]
    """
    return right_runs(jumps(steps), k)


def right_runs(moves: Array, k: int) -> Array:
    """`local_arness`, from jumps."""
    windows = max(0, moves.shape[-1] - k + 1)
    found = np.ones((*moves.shape[:-1], windows), bool)
    for start in range(k):
        found &= moves[..., start : start + windows] == 1
    return found


def passed_over(steps: Orders) -> Array:
    """(..., n): how many positions to the left of each one were still masked when it was filled.

    >>> passed_over([1, 4, 2, 3]).tolist()
    [0, 0, 1, 1]
    """
    if isinstance(steps, RankedOrders):
        return steps.passed
    values = np.ascontiguousarray(np.moveaxis(np.asarray(steps), -1, 0))  # long rows to compare: sentences are short
    found = np.zeros(values.shape, np.int16 if len(values) < 1 << 15 else np.int32)
    for lag in range(1, len(values)):
        found[lag:] += values[:-lag] > values[lag:]
    return np.moveaxis(found, 0, -1)


def global_arness(steps: Orders, k: int) -> Array:
    """(..., n): the position was one of the first k masked ones when filled. Its mean is the global AR-ness@k.

    >>> global_arness([1, 4, 2, 3], 1).tolist()
    [True, True, False, False]
    """
    return passed_over(steps) < k


# Whole sentences.


def is_left_to_right(steps: Orders) -> Array:
    """The pen never goes back."""
    return np.asarray(np.all(np.diff(_steps(steps), axis=-1) >= 0, axis=-1))


def is_last_then_left_to_right(steps: Orders) -> Array:
    """The last position alone comes first, then the pen never goes back."""
    values = _steps(steps)
    if values.shape[-1] < 2:
        return np.zeros(values.shape[:-1], bool)
    return (values[..., -1] < values[..., :-1].min(-1)) & is_left_to_right(values[..., :-1])


def label_threshold(length: int) -> float:
    """The correlation that random orders of this length reach with one of the four prototypes in 5% of sentences.

    Kendall's tau of a random order has the variance 2(2n + 5) / 9n(n - 1). Two of the prototypes are the other two
    backwards, and the remaining pair is as good as uncorrelated: 2.236 is where the larger of two standard normal
    numbers, signs set aside, is found with probability 0.05. Never above 1: agreeing fully always counts.
    """
    if length < 2:
        return 1.0
    return min(1.0, 2.236 * float(np.sqrt(2 * (2 * length + 5) / (9 * length * (length - 1)))))


def label(steps: Orders) -> Array:
    """The number in `LABELS` of what an order looks like most.

    The one of outer-in, left-to-right, right-to-left and inner-out that it has the largest Kendall's tau with, or
    'other' where that is below `label_threshold` or there are fewer than two positions. Of equally large ones,
    left-to-right and right-to-left go first. A sentence of ten or more positions with the last one filled first and the
    rest from the left is left-to-right, and so is the paper's own example that 'runs from left to right mostly'.

    >>> LABELS[int(label([1, 2, 5, 7, 8, 6, 4, 3]))]
    'outer-to-inner'
    """
    own = ranked(steps)
    along, inwards = kendall(own, left_to_right(own.length)), kendall(own, outer_in(own.length))
    return label_of(along, inwards, own.length)


def label_of(along: Array, inwards: Array, length: int) -> Array:
    """`label`, from Kendall's tau to left-to-right and to outer-in."""
    straight = np.abs(along) >= np.abs(inwards) - 1e-9
    best = np.where(straight, along, inwards)
    found = np.where(straight, np.where(along > 0, 1, 2), np.where(inwards > 0, 0, 3))
    return np.where(np.abs(best) >= label_threshold(length) - 1e-6, found, 4)  # NaN is not


# Many sentences.


def heat_map(steps: Orders, bins: int = 20) -> Array:
    """(..., bins, bins): when (rows, from the first step) which part of the sentence (columns) was filled.

    Time and sentence both run from 0 to 1, and each position is a rectangle: its own n-th of the sentence by its turn
    (positions of one step share theirs). The map is the area of these in each cell, so that every row and every column
    sums to 1. Sentences of any length weigh the same, and their mean is the map of a test set.

    >>> heat_map([1, 2, 4, 3], 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    own = ranked(steps)
    borders = np.arange(bins + 1, dtype=np.float32) * np.float32(own.length / bins)
    numbers = np.arange(own.length)
    place = _overlap(numbers, numbers + 1, borders)
    time = _overlap(own.earlier, own.until, borders) / (own.until - own.earlier)[..., None].astype(np.float32)
    return np.swapaxes(time, -1, -2) @ place * np.float32(bins / own.length)


def _overlap(start: Array, end: Array, borders: Array) -> Array:
    """(..., bins): how much of start to end lies in each bin."""
    low, high = start[..., None].astype(np.float32), end[..., None].astype(np.float32)
    return np.diff(np.clip(borders, low, high), axis=-1)


def order_entropy(heat: Array) -> Array:
    """How open it is, at a given time, where the pen is: the entropy of each row of a test set's (..., bins, bins) heat
    map, by the logarithm of the number of bins, averaged over the rows. 1 for random orders."""
    bins = heat.shape[-1]
    share = np.maximum(heat, 0)
    logs = np.log(share, where=share > 0, out=np.zeros_like(share))
    return -(share * logs).sum(-1).mean(-1) / np.log(bins)


def profile_signs(steps: Orders, points: int = 20) -> Array:
    """(..., points (points - 1) / 2): which of two places of the sentence was filled later, as a vector of length 1.

    The places are `points` equally spaced ones from the first position to the last; between two positions the relative
    step is interpolated. So the dot product of two of these is Kendall's tau-b of two sentences brought to the same
    length: 1 for left-to-right at any two lengths. All zeros where a sentence orders nothing.
    """
    relative = ranked(steps).relative
    place = np.linspace(0, relative.shape[-1] - 1, points)
    left = np.minimum(place.astype(np.int64), max(0, relative.shape[-1] - 2))
    right = np.minimum(left + 1, relative.shape[-1] - 1)
    part = place - left
    line = np.round(relative[..., left] * (1 - part) + relative[..., right] * part, 9).astype(np.float32)
    first, second = np.triu_indices(points, 1)
    signs = np.sign(line[..., second] - line[..., first])
    size = np.sqrt(np.einsum("...i,...i", signs, signs))[..., None]
    return np.divide(signs, size, out=np.zeros_like(signs), where=size > 0)


def diversity(signs: Array, weights: Array | None = None) -> Array:
    """How much the orders of a test set differ: 1 less the mean Kendall's tau-b of all pairs of different sentences.

    0 if all have the same shape, 1 for random orders, above if opposites abound. `signs` are (N, ...) vectors of
    `profile_signs`, `weights` (..., N) say how often each sentence was drawn; a sentence is no pair with itself.
    """
    weights = np.ones(len(signs), np.float32) if weights is None else weights
    orders = np.einsum("ij,ij->i", signs, signs) > 0
    weights = np.where(orders, weights, 0).astype(np.float32)
    drawn, twice = weights.sum(-1, dtype=np.float64), (weights**2).sum(-1, dtype=np.float64)
    return diversity_of(weights @ signs, drawn, twice)


def diversity_of(sums: Array, drawn: Array, twice: Array) -> Array:
    """`diversity`, from the weighted sum of the vectors, the sum of the weights and that of their squares."""
    length = np.einsum("...i,...i", sums, sums).astype(np.float64)
    return 1 - _ratio(length - twice, np.asarray(drawn**2 - twice))

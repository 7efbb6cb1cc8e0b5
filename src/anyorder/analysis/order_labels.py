"""Which shape an order has: outer-to-inner, left-to-right, right-to-left, inner-to-outer, or none of these.

Every label is calibrated on random orders: they get each of the four in at most about 1.25% of sentences, and any of
them in 5%; in more if a sentence has six positions or fewer, where even a pure order is likely by chance (7% at six, a
quarter at five). Uses only the steps, like `order_metrics.py`.
"""

from functools import lru_cache
from math import comb

import numpy as np

from anyorder.analysis.order_metrics import Array, RankedOrders, at_edges

LABELS = ("outer-to-inner", "left-to-right", "right-to-left", "inner-to-outer", "other")
NULL_SHARE = 0.0125
"""How often a random order may get one of the four labels."""
LEAST_SIDE_SHARE = 0.25
"""An order that works inwards fills at least this share of its edge positions from each side."""


def labels(orders: RankedOrders, tau_left_to_right: Array) -> Array:
    """(...): the index into `LABELS` of an order's shape. tau_left_to_right: (...) Kendall's tau with left-to-right

    - *outer-to-inner*: it fills more positions at the edges of the masked part than random orders do, at least
      `edge_threshold`, and a quarter of them or more from either side. It need not alternate: the left half, then the
      right half backwards is outer-to-inner, too.
    - *inner-to-outer*: the order played backwards is outer-to-inner.
    - *left-to-right*, *right-to-left*: neither, and Kendall's tau with left-to-right, or its negative, is at least
      `tau_threshold`. A sentence of ten or more positions with the last one filled first and the rest from left to
      right is left-to-right, and so is the paper's own example that 'runs from left to right mostly'.

    >>> from anyorder.analysis.order_metrics import kendall, left_to_right, ranked
    >>> orders = ranked([1, 2, 3, 4, 8, 7, 6, 5])
    >>> LABELS[int(labels(orders, kendall(orders, left_to_right(8))))]
    'outer-to-inner'
    """
    inward, outward = _excess_at_edges(orders.until), _excess_at_edges(-orders.until)
    is_monotonic = np.abs(tau_left_to_right) >= tau_threshold(orders.length) - 1e-6  # False for NaN
    monotonic = np.where(tau_left_to_right > 0, 1, 2)
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

    def holding(t: int) -> int:
        return comb(masked - t, size - t) if t <= size else 0

    exactly = [(t + 1) * (holding(t) - 2 * holding(t + 1) + holding(t + 2)) for t in range(size + 1)]
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

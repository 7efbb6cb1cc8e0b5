"""Labels of orders against their definitions, thresholds against all orders of a short sentence."""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder.analysis import order_metrics
from anyorder.analysis.order_metrics import LABELS, edge_threshold, labels, tau_threshold
from tests.analysis.paper import AFFLECK, AFFLECK_OTHER_READING, MOSTLY_LEFT_TO_RIGHT, TEARGAS


def name(steps: Sequence[int] | np.ndarray) -> str:
    return LABELS[int(labels(steps))]


def slow_sides(steps: Sequence[int]) -> tuple[int, int, int]:
    """Positions filled at an edge, at the left one only, at the right one only: the order played step by step."""
    at_edge = left_only = right_only = 0
    for step in sorted(set(steps)):
        after = [i for i, other in enumerate(steps) if other > step]
        for i in (i for i, other in enumerate(steps) if other == step):
            left, right = all(i < j for j in after), all(i > j for j in after)
            at_edge += left or right
            left_only += left and not right
            right_only += right and not left
    return at_edge, left_only, right_only


def slow_label(steps: Sequence[int]) -> str:
    """The definition, with thresholds from all orders that have the same steps."""
    n = len(steps)
    excess = {}
    for shape, one in (("outer-to-inner", list(steps)), ("inner-to-outer", [-step for step in steps])):
        null = Counter(slow_sides(other)[0] for other in itertools.permutations(one))
        total = sum(null.values())
        reached = [k for k in range(n + 1) if sum(c for e, c in null.items() if e >= k) <= 0.0125 * total + 1e-9]
        at_edge, left, right = slow_sides(one)
        enough = at_edge >= min([*reached, n]) and left + right > 0 and min(left, right) * 4 >= left + right
        excess[shape] = at_edge - min([*reached, n]) + 1 if enough else 0
    if max(excess.values()) > 0 and len(set(excess.values())) == 2:
        return max(excess, key=lambda shape: excess[shape])
    tau = float(order_metrics.kendall(steps, order_metrics.left_to_right(n)))
    if abs(tau) >= tau_threshold(n) - 1e-6:
        return "left-to-right" if tau > 0 else "right-to-left"
    return "other"


def test_all_orders_of_up_to_six_positions() -> None:
    for n in range(1, 6):
        for steps in itertools.permutations(range(1, n + 1)):
            assert name(steps) == slow_label(steps), steps
    six = list(itertools.permutations(range(1, 7)))
    for steps in six[::29]:
        assert name(steps) == slow_label(steps), steps


@pytest.mark.parametrize(
    "steps", [(1, 1, 2, 2, 3, 3), (1, 2, 3, 3, 2, 1), (1, 1, 1, 1, 1), (1, 1, 2, 3, 3, 1), (3, 1, 1, 2, 3, 4)]
)
def test_orders_with_several_positions_a_step(steps: tuple[int, ...]) -> None:
    assert name(steps) == slow_label(steps)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_any_order_with_several_positions_a_step(steps: list[int]) -> None:
    assert name(steps) == slow_label(steps)


@pytest.mark.parametrize("sizes", [(1,) * 7, (2, 3, 2), (1, 4, 2), (3, 3), (4, 1, 1, 1), (7,)])
def test_the_edge_threshold_is_that_of_all_orders(sizes: tuple[int, ...]) -> None:
    steps = [step for step, size in enumerate(sizes) for _ in range(size)]
    counts = [slow_sides(order)[0] for order in set(itertools.permutations(steps))]
    threshold = edge_threshold(sizes)
    if threshold < len(steps):
        assert np.mean([count >= threshold for count in counts]) <= 0.0125
    assert np.mean([count >= threshold - 1 for count in counts]) > 0.0125


@pytest.mark.parametrize("length", [8, 9, 20, 41, 120])
def test_half_and_half_is_outer_to_inner(length: int) -> None:
    """Edge share 1, and yet the old label, the nearest of four prototypes, was left-to-right."""
    half = length // 2
    left_first = [*range(1, half + 1), *range(length, half, -1)]
    assert order_metrics.edge_share([np.array(left_first)]) == 1
    right_first = left_first[::-1]
    blocks = np.argsort(
        [*range(half // 2), *range(length - 1, length - 1 - half // 2, -1), *range(half // 2, length - half // 2)]
    )
    for steps in (left_first, right_first, blocks):
        assert name(steps) == "outer-to-inner"
        assert name(length + 1 - np.array(steps)) == "inner-to-outer"
    last_first = [*range(2, length + 1), 1]
    assert name(last_first) == "left-to-right" or length < 10
    assert name(order_metrics.left_to_right(length)) == "left-to-right"


def test_a_side_needs_a_quarter() -> None:
    """20 positions, 19 of them at one edge only (the last one is at both): 5 from the right are enough, 4 are not."""
    for from_right, expected in ((5, "outer-to-inner"), (4, "left-to-right")):
        steps = [*range(1, 20 - from_right), *range(20, 19 - from_right, -1)]
        assert slow_sides(steps) == (20, 19 - from_right, from_right)
        assert name(steps) == expected


def test_labels_agree_with_the_papers_examples() -> None:
    assert name(TEARGAS.steps) == "outer-to-inner"
    assert name(AFFLECK.steps) == "outer-to-inner"
    assert name(AFFLECK_OTHER_READING) == "outer-to-inner"
    assert name(MOSTLY_LEFT_TO_RIGHT.steps) == "left-to-right"


@pytest.mark.parametrize("length", [4, 5, 7, 10, 30])
def test_labels_of_pure_orders(length: int) -> None:
    outer_in, left_to_right = order_metrics.outer_in(length), order_metrics.left_to_right(length)
    orders = outer_in, left_to_right, left_to_right[::-1], length + 1 - outer_in
    assert [int(labels(order)) for order in orders] == [0, 1, 2, 3]


def test_few_random_orders_get_a_label() -> None:
    random = np.random.default_rng(5)
    for length, most in ((6, 0.08), (8, 0.065), (10, 0.065), (25, 0.065), (60, 0.065)):
        steps = random.permuted(np.tile(np.arange(length), (20_000, 1)), axis=1)
        shares = np.bincount(labels(steps), minlength=5) / len(steps)
        assert 0.01 < 1 - shares[4] < most, length
        assert max(shares[0], shares[3]) < 0.0125 * 1.3 or length == 6, length
    assert int(labels([1])) == 4


@given(st.integers(2, 14).flatmap(lambda n: st.permutations(range(1, n + 1))))
def test_mirrored_and_reversed_orders(steps: Sequence[int]) -> None:
    one, n = np.array(steps), len(steps)
    mirrored, reversed_ = [0, 2, 1, 3, 4], [3, 2, 1, 0, 4]
    assert int(labels(one[::-1])) == mirrored[int(labels(one))]
    assert int(labels(n + 1 - one)) == reversed_[int(labels(one))]


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.lists(st.lists(st.integers(1, n), min_size=n, max_size=n), min_size=1, max_size=4)
    )
)
def test_a_batch_is_labeled_like_each_of_its_sentences(several: list[list[int]]) -> None:
    expected = [int(labels(steps)) for steps in several]
    assert labels(np.array(several)).tolist() == expected
    assert labels(np.array(several)[None]).tolist() == [expected]

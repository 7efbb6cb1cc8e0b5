"""Order metrics against their definitions spelled out: all orders of up to six positions, ties, the paper's examples."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyorder.analysis import order_metrics
from anyorder.orders import make_order
from anyorder.orders.base import State

ALL = [list(order) for n in range(1, 7) for order in itertools.permutations(range(1, n + 1))]
TIED = st.lists(st.integers(1, 5), min_size=1, max_size=9)
PERMUTED = st.integers(1, 14).flatmap(lambda n: st.permutations(range(1, n + 1)))


def test_an_empty_order_has_no_last_position() -> None:
    assert not order_metrics.is_last_then_left_to_right(np.zeros((3, 0), int)).any()


def relative_steps(steps: Sequence[int] | np.ndarray) -> np.ndarray:
    return order_metrics.ranked(steps).relative


def diversity(signs: np.ndarray, weights: np.ndarray) -> float:
    sums = np.array([weights.sum(), *(weights @ signs)])
    return float(order_metrics.diversity(sums, (weights**2).sum()))


def sign(number: float) -> int:
    return (number > 0) - (number < 0)


def slow_kendall(steps: Sequence[int], other: Sequence[float]) -> float:
    pairs = [(sign(steps[j] - steps[i]), sign(other[j] - other[i])) for i in range(len(steps)) for j in range(i)]
    bottom = math.sqrt(sum(a * a for a, _ in pairs) * sum(b * b for _, b in pairs))
    return sum(a * b for a, b in pairs) / bottom if bottom else math.nan


def slow_spearman(steps: Sequence[int], other: Sequence[int]) -> float:
    def ranks(values: Sequence[int]) -> list[float]:
        return [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]

    a, b = np.array(ranks(steps)), np.array(ranks(other))
    if a.std() == 0 or b.std() == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def slow_permutation(steps: Sequence[int]) -> list[int]:
    return [i for step in sorted(set(steps)) for i in range(len(steps)) if steps[i] == step]


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, abs=1e-9)


def check(steps: list[int]) -> None:
    """Every metric of one sentence against its definition."""
    n = len(steps)
    one = np.array(steps)
    for reference in (
        order_metrics.left_to_right(n),
        order_metrics.left_to_right(n)[::-1],
        order_metrics.outer_in(n),
        n + 1 - order_metrics.outer_in(n),
    ):
        assert same(float(order_metrics.kendall(one, reference)), slow_kendall(steps, reference.tolist()))
        assert same(float(order_metrics.spearman(one, reference)), slow_spearman(steps, reference.tolist()))
    order = slow_permutation(steps)
    assert order_metrics.ranked(one).permutation.tolist() == order
    moves = [b - a for a, b in itertools.pairwise(order)]
    assert order_metrics.jumps(one).tolist() == moves
    for k in (1, 2, 4):
        runs = [all(moves[i + j] == 1 for j in range(k)) for i in range(len(moves) - k + 1)]
        assert order_metrics.local_arness(one, k).tolist() == runs
    masked_before = [[j for j in range(n) if steps[j] >= steps[i]] for i in range(n)]
    edges = [
        not any(steps[j] > steps[i] for j in range(i)) or not any(steps[j] > steps[i] for j in range(i + 1, n))
        for i in range(n)
    ]
    assert order_metrics.at_edge(one).tolist() == edges
    if len(set(steps)) == n:
        assert edges == [i in (left[0], left[-1]) for i, left in enumerate(masked_before)]
        for k in (1, 2, 4):
            first = [i in left[:k] for i, left in enumerate(masked_before)]
            assert order_metrics.global_arness(one, k).tolist() == first
    straight = order == list(range(n)) and steps == sorted(steps)
    assert bool(order_metrics.is_left_to_right(one)) == straight
    end_first = n > 1 and steps.count(min(steps)) == 1 and steps[-1] == min(steps) and steps[:-1] == sorted(steps[:-1])
    assert bool(order_metrics.is_last_then_left_to_right(one)) == end_first
    turn = [(sum(b < a for b in steps) + sum(b <= a for b in steps)) / 2 / n for a in steps]
    assert relative_steps(one).tolist() == pytest.approx(turn)
    assert sum(turn) / n == pytest.approx(0.5)
    heat = order_metrics.heat_map(one, 4)
    assert heat == pytest.approx(slow_heat_map(steps, 4), abs=1e-5)
    assert heat.sum(0) == pytest.approx(np.ones(4), abs=1e-5)
    assert heat.sum(1) == pytest.approx(np.ones(4), abs=1e-5)


def slow_heat_map(steps: Sequence[int], bins: int) -> np.ndarray:
    """Time and sentence divided so finely that every rectangle consists of whole cells."""
    n = len(steps)
    found = np.zeros((bins * n, bins * n))
    for i, step in enumerate(steps):
        earlier, same_step = sum(other < step for other in steps), steps.count(step)
        found[earlier * bins : (earlier + same_step) * bins, i * bins : (i + 1) * bins] += 1 / same_step
    return found.reshape(bins, n, bins, n).sum((1, 3)) / n / bins


def test_every_metric_on_all_orders_of_up_to_six_positions() -> None:
    assert len(ALL) == 873
    for steps in ALL:
        check(steps)


@given(TIED)
def test_every_metric_where_positions_share_steps(steps: list[int]) -> None:
    check(steps)


@given(PERMUTED)
def test_every_metric_on_longer_orders(steps: Sequence[int]) -> None:
    check(list(steps))


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.permutations(range(1, n + 1)), min_size=1, max_size=4)))
def test_a_batch_is_measured_like_each_of_its_sentences(several: list[list[int]]) -> None:
    steps = np.array(several)
    n = steps.shape[1]
    for measure in (
        lambda s: order_metrics.kendall(s, order_metrics.outer_in(n)), lambda s: order_metrics.spearman(s, order_metrics.left_to_right(n)), order_metrics.at_edge,
        order_metrics.jumps, lambda s: order_metrics.local_arness(s, 2), lambda s: order_metrics.global_arness(s, 2), order_metrics.is_left_to_right,
        order_metrics.is_last_then_left_to_right, order_metrics.is_nearly_left_to_right, order_metrics.heat_map, order_metrics.profile_signs, relative_steps,
    ):  # fmt: skip
        expected = np.stack([np.asarray(measure(one)) for one in steps])
        assert np.allclose(measure(steps), expected, equal_nan=True)
        assert np.allclose(measure(order_metrics.ranked(steps)), expected, equal_nan=True)
        assert np.allclose(measure(steps[None])[0], expected, equal_nan=True)


@given(PERMUTED)
def test_mirrored_and_reversed_orders(steps: Sequence[int]) -> None:
    one = np.array(steps)
    n = len(one)
    along, inwards = (
        float(order_metrics.kendall(one, other(n))) for other in (order_metrics.left_to_right, order_metrics.outer_in)
    )
    assert same(float(order_metrics.kendall(one[::-1], order_metrics.left_to_right(n))), -along)
    assert same(float(order_metrics.kendall(n + 1 - one, order_metrics.left_to_right(n))), -along)
    assert same(float(order_metrics.kendall(n + 1 - one, order_metrics.outer_in(n))), -inwards)
    assert order_metrics.at_edge(one[::-1]).tolist() == order_metrics.at_edge(one)[::-1].tolist()


@pytest.mark.parametrize("length", range(1, 12))
def test_prototypes_are_the_orders_of_decoding(length: int) -> None:
    empty = State(torch.ones(1, length, dtype=torch.bool), torch.tensor([length]), torch.zeros(1, dtype=torch.int64), 0)
    pairs = {
        "left-to-right": order_metrics.left_to_right,
        "right-to-left": lambda n: order_metrics.left_to_right(n)[::-1],
        "outer-in:stride=1": order_metrics.outer_in,
    }
    for name, reference in pairs.items():
        chosen = make_order(name).scores(empty)[0].argsort(descending=True, stable=True)
        assert order_metrics.ranked(reference(length)).permutation.tolist() == chosen.tolist()


def test_edge_share_counts_positions_of_all_sentences() -> None:
    assert (
        order_metrics.edge_share([np.array([1, 3, 5, 4, 2]), np.array([2, 1, 3]), np.array([3, 1, 2, 4, 5])]) == 10 / 13
    )
    assert order_metrics.edge_share([]) == 0


@given(TIED, st.booleans())
def test_nearly_left_to_right(steps: list[int], without_last: bool) -> None:
    counted = steps[: len(steps) - without_last]
    expected = counted == sorted(counted) or slow_kendall(counted, range(len(counted))) > 0.9
    assert bool(order_metrics.is_nearly_left_to_right(steps, without_last)) == expected


def test_one_swap_in_ten_is_nearly_left_to_right() -> None:
    """One of 45 pairs the wrong way round is a tau of .956, three are .867; a full stop filled first costs nine."""
    straight = list(range(1, 11))
    swapped, rotated = [2, 1, *straight[2:]], [4, 1, 2, 3, *straight[4:]]
    assert [bool(order_metrics.is_nearly_left_to_right(one)) for one in (swapped, rotated)] == [True, False]
    stop_first = [*(step + 1 for step in swapped), 1]
    both = np.array([stop_first, stop_first])
    assert order_metrics.is_nearly_left_to_right(both, np.array([True, False])).tolist() == [True, False]


def test_sentences_by_length() -> None:
    steps = [[3, 1, 2], [1], [], [7, 7, 90], [2, 1, 3]]
    groups = {one.shape[1]: (rows.tolist(), one.tolist()) for rows, one in order_metrics.by_length(steps)}
    assert groups == {1: ([1], [[1]]), 3: ([0, 3, 4], [[3, 1, 2], [2, 2, 3], [2, 1, 3]])}


def test_entropy_of_heat_maps() -> None:
    assert float(order_metrics.order_entropy(np.eye(4))) == 0
    assert float(order_metrics.order_entropy(np.full((4, 4), 0.25))) == pytest.approx(1)
    halves = np.kron(np.eye(2), np.full((2, 2), 0.5))
    assert float(order_metrics.order_entropy(halves)) == pytest.approx(0.5)
    assert float(
        order_metrics.order_entropy(order_metrics.heat_map(order_metrics.left_to_right(40), 20))
    ) == pytest.approx(0, abs=1e-5)


def slow_diversity(several: list[list[int]], points: int) -> float:
    lines = []
    for steps in several:
        place = np.linspace(0, len(steps) - 1, points)
        lines.append(np.round(np.interp(place, np.arange(len(steps)), relative_steps(steps)), 9))
    taus = [slow_kendall(a.tolist(), b.tolist()) for a, b in itertools.combinations(lines, 2)]
    return 1 - sum(taus) / len(taus)


@settings(max_examples=30)
@given(st.lists(st.integers(2, 9).flatmap(lambda n: st.permutations(range(1, n + 1))), min_size=2, max_size=5))
def test_diversity_is_the_mean_over_all_pairs(several: list[list[int]]) -> None:
    signs = np.stack([order_metrics.profile_signs(steps, 7) for steps in several])
    assert diversity(signs, np.ones(len(signs))) == pytest.approx(slow_diversity(several, 7), abs=1e-5)
    twice = np.arange(len(several)) % 2 + 1  # every other sentence drawn twice: pairs of the two copies are left out
    pairs = [(i, j) for i in range(len(several)) for j in range(len(several)) if i != j]
    tau = {(i, j): float(signs[i] @ signs[j]) for i, j in pairs}
    expected = sum(twice[i] * twice[j] * tau[i, j] for i, j in pairs) / sum(twice[i] * twice[j] for i, j in pairs)
    assert diversity(signs, twice) == pytest.approx(1 - expected, abs=1e-5)


def test_orders_of_one_shape_are_not_diverse_at_any_length() -> None:
    for order, most in ((order_metrics.left_to_right, 1e-6), (order_metrics.outer_in, 0.06)):
        signs = np.stack([order_metrics.profile_signs(order(length)) for length in (8, 11, 20, 37)])
        assert diversity(signs, np.ones(len(signs))) == pytest.approx(0, abs=most)


@pytest.mark.parametrize(("steps", "nearly"), [([2, 3, 4, 5, 6, 1], True), ([3, 4, 5, 6, 2, 1], False)])
def test_only_the_last_position_is_left_out(steps: list[int], nearly: bool) -> None:
    assert bool(order_metrics.is_nearly_left_to_right(steps, True)) == nearly

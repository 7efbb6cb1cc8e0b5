"""Heuristic orders: a fixed one against a plain simulation of its description, one by confidence against its formula.

The formulas are worked out number by number in double precision.
"""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from anyorder.errors import InputError
from anyorder.models.base import AllowedTokens
from anyorder.orders import ORDERS, State, make_order, split_orders
from anyorder.orders.heuristics import grid_levels, splitmix64

MASK, FIRST_WORD = 2, 3


def state(lengths: list[int], keys: list[int] | None = None) -> State:
    widest = max(lengths)
    masked = torch.arange(widest)[None] < torch.tensor(lengths)[:, None]
    numbers = torch.tensor(keys if keys is not None else [0] * len(lengths))
    return State(masked, torch.tensor(lengths), numbers, step=1)


def filled_in(name: str, lengths: list[int], keys: list[int] | None = None) -> list[list[int]]:
    """Positions in the order in which their scores fill them."""
    now = state(lengths, keys)
    scores = make_order(name).scores(now).masked_fill(~now.masked, -torch.inf)
    ranked = scores.sort(dim=1, descending=True, stable=True).indices
    return [ranked[i, :length].tolist() for i, length in enumerate(lengths)]


def outer_in(length: int, stride: int) -> list[int]:
    """The leftmost `stride`, the rightmost `stride`, and so on, by taking from both ends of a list."""
    left = list(range(length))
    order: list[int] = []
    from_left = True
    while left:
        if from_left:
            order += left[:stride]
            left = left[stride:]
        else:
            order += left[: -stride - 1 : -1]
            left = left[:-stride]
        from_left = not from_left
    return order


LENGTHS = list(range(1, 20))


def test_left_to_right() -> None:
    assert filled_in("left-to-right", LENGTHS) == [list(range(n)) for n in LENGTHS]


def test_right_to_left() -> None:
    assert filled_in("right-to-left", LENGTHS) == [list(range(n))[::-1] for n in LENGTHS]


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 7])
def test_outer_in(stride: int) -> None:
    assert filled_in(f"outer-in:stride={stride}", LENGTHS) == [outer_in(n, stride) for n in LENGTHS]


def test_a_stride_beyond_the_sentence_is_left_to_right() -> None:
    assert filled_in("outer-in:stride=1e30", LENGTHS) == [list(range(n)) for n in LENGTHS]


def test_outer_in_as_the_paper_tells_it() -> None:
    """Stride 2: the two leftmost, the two rightmost, then the third and fourth from the left."""
    assert filled_in("outer-in:stride=2", [8])[0] == [0, 1, 7, 6, 2, 3, 5, 4]


def test_uniform_is_a_permutation_that_belongs_to_the_key() -> None:
    alone = [filled_in("uniform", [n], [n * 31])[0] for n in LENGTHS]
    assert filled_in("uniform", LENGTHS, [n * 31 for n in LENGTHS]) == alone
    assert all(sorted(order) == list(range(len(order))) for order in alone)
    assert filled_in("uniform", [12], [1]) != filled_in("uniform", [12], [2])


def test_uniform_draws_every_order_equally_often() -> None:
    keys = list(range(24_000))
    seen = Counter(map(tuple, filled_in("uniform", [4] * len(keys), keys)))
    assert set(seen) == set(itertools.permutations(range(4)))
    chi_square = sum((count - 1000) ** 2 / 1000 for count in seen.values())
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


def test_names() -> None:
    assert set(ORDERS) == {
        "uniform", "left-to-right", "right-to-left", "outer-in", "least-to-most", "easy-first", "entropy", "max-prob",
        "margin", "learned", "dilated",
    }  # fmt: skip
    assert make_order("outer-in:stride=2").name == "outer-in:stride=2"
    assert split_orders("a, b:x=1,y=2 ,c") == ["a", "b:x=1,y=2", "c"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("margn", "unknown order 'margn': did you mean 'margin'"),
        ("l2r", "unknown order 'l2r'"),
        ("outer-in:stride=0", "not a whole number from 1"),
        ("outer-in:stride=1.5", "not a whole number from 1"),
        ("outer-in:width=2", "has no such option"),
        ("outer-in:stride=two", "should look like name=number"),
        ("margin:x=1", "has no such option"),
    ],
)
def test_wrong_names_are_explained(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_order(name)


def distribution(row: list[float]) -> list[float]:
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def formula(name: str, row: list[float]) -> float:
    p = distribution(row)
    words = sorted(p[FIRST_WORD:], reverse=True)
    entropy = -sum(x * math.log(x) for x in p)
    if name == "max-prob":
        return math.log(words[0])
    if name == "margin":
        return words[0] - words[1]
    if name == "entropy":
        return -entropy
    if name == "least-to-most":
        return -math.log(p[MASK])
    if name == "easy-first":
        return -math.log(p[MASK]) - entropy
    assert name == "easy-first:logp=0.5,negent=2"
    return -0.5 * math.log(p[MASK]) - 2 * entropy


NAMES = ["max-prob", "margin", "entropy", "least-to-most", "easy-first", "easy-first:logp=0.5,negent=2"]


@pytest.mark.parametrize("name", NAMES)
def test_scores_follow_the_formula(name: str) -> None:
    masked = torch.tensor([[True, False, True, False], [False, True, True, True]])
    where = masked.flatten().nonzero().squeeze(1)
    logits = torch.randn(len(where), 9, generator=torch.Generator().manual_seed(1)) * 3
    state = State(
        masked, torch.tensor([3, 4]), torch.zeros(2, dtype=torch.int64), 2,
        where=where, logits=logits, mask_token=MASK,
        allowed=AllowedTokens(np.arange(9) >= FIRST_WORD, torch.device("cpu")),
    )  # fmt: skip
    scores = make_order(name).scores(state)
    assert scores.shape == masked.shape
    assert bool((scores[~masked] == -torch.inf).all())
    expected = [formula(name, row) for row in logits.double().tolist()]
    assert scores[masked].tolist() == pytest.approx(expected, abs=1e-5)


def test_the_best_special_token_does_not_count() -> None:
    """Where a special token leads, margin and max-prob compare words all the same."""
    logits = torch.tensor([[9.0, 0, 0, 1, 2], [0, 0, 0, 3, 1]])
    state = State(
        torch.tensor([[True, True]]), torch.tensor([2]), torch.zeros(1, dtype=torch.int64), 1,
        where=torch.tensor([0, 1]), logits=logits, mask_token=MASK,
        allowed=AllowedTokens(np.arange(9) >= FIRST_WORD, torch.device("cpu")),
    )  # fmt: skip
    for name in ("margin", "max-prob"):
        assert int(make_order(name).scores(state).argmax()) == 1


@pytest.mark.parametrize("name", ["max-prob", "margin", "entropy"])
@pytest.mark.parametrize("certain", [(16.0, 20.0, 18.0), (19.0, 23.0, 27.0), (35.0, 34.0, 33.0)])
def test_positions_of_which_the_model_is_nearly_certain_do_not_tie(name: str, certain: tuple[float, ...]) -> None:
    """The probabilities differ from 1 by 1e-7 to 1e-15; in single precision, all would be 1."""
    logits = torch.tensor([[0.0, 0, 0, 20, 20 - lead] for lead in certain])
    logits[:, :FIRST_WORD] = -torch.inf
    state = State(
        torch.ones(1, 3, dtype=torch.bool), torch.tensor([3]), torch.zeros(1, dtype=torch.int64), 1,
        where=torch.arange(3), logits=logits.nan_to_num(neginf=-1e4), mask_token=MASK,
        allowed=AllowedTokens(np.arange(5) >= FIRST_WORD, torch.device("cpu")),
    )  # fmt: skip
    ranking = make_order(name).scores(state)[0].sort(descending=True).indices.tolist()
    assert ranking == sorted(range(3), key=lambda i: -certain[i])


def test_hashes_are_those_of_splitmix64() -> None:
    """In Python's integers, as published (Steele et al. 2014)."""
    mask = (1 << 64) - 1

    def published(number: int) -> int:
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & mask
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB & mask
        return number ^ (number >> 31)

    numbers = [0, 1, 2**33, 2**62 + 12345, -1, -(2**63)]
    assert [found & mask for found in splitmix64(torch.tensor(numbers)).tolist()] == [
        published(n & mask) for n in numbers
    ]


def test_levels_of_a_grid() -> None:
    """Eight positions: every fourth, then every second, then all."""
    assert grid_levels(torch.tensor([8, 5]), 8, 2).tolist()[0] == [1, 3, 2, 3, 1, 3, 2, 3]
    assert grid_levels(torch.tensor([8, 5]), 8, 2).tolist()[1][:5] == [1, 2, 1, 2, 1]

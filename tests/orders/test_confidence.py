"""Every confidence order against its formula, worked out number by number in double precision."""

import math

import numpy as np
import pytest
import torch

from anyorder.models.base import AllowedTokens
from anyorder.orders import State, make_order

MASK, FIRST_WORD = 2, 3


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

"""Filling by hand: someone says which positions are filled, the model says with what. No HTTP in here.

The engine does the work. `Guided` is an order like any other, which asks for the given positions one after another; at
the step after the last of them it looks at everything, and what it saw there is the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from anyorder.data.vocab import Vocabulary
from anyorder.decoding.budget import Fixed
from anyorder.decoding.engine import Filled, Request, Work, fill
from anyorder.errors import InputError
from anyorder.model.model import Model
from anyorder.orders import Order, State
from anyorder.orders.learned import LearnedOrder
from anyorder.translator import sentence_key

CANDIDATES = 5
T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """A word that could stand at a masked position."""

    token: str
    p: float
    """The model's probability of it."""


@dataclass(frozen=True)
class Position:
    """A target after some of its positions were filled by hand. Everything has one entry for each position."""

    filled: Filled
    """Masked positions hold the mask, step 0 and log-probability 0."""
    tokens: list[str | None]
    """Subwords; None where masked."""
    next: int | None
    """What the order would fill now; None without an order, and when nothing is masked."""
    scores: list[float | None]
    """The softmax of the order's scores over the masked positions; None where filled, and without an order."""
    policy: bool
    """The order was learned: `scores` are the probabilities it was trained to give. Those of other orders only rank."""
    candidates: list[list[Candidate] | None]
    """The best words at each masked position, by the model's probability; None where filled."""


class Guided(Order):
    """Fills the given positions first. After them it looks at all that is masked, and does what `order` does."""

    name = "by hand"

    def __init__(self, positions: Sequence[int], order: Order | None):
        self._positions, self._order = list(positions), order
        self.wants_opening = order is not None and order.wants_opening
        # A step given by hand computes what a step of the order would: what it writes is the same to the last bit.
        self.needs = "both" if not positions else order.needs if order else "nothing"
        self.logits: Tensor | None = None
        """(masked positions, tokens) after the given positions, once the engine got there."""
        self.scored: Tensor | None = None
        """(length,) the order's scores there."""

    def scores(self, state: State) -> Tensor:
        given = self._positions
        if state.step >= len(given):
            self.needs = "both"
        if state.step <= len(given):
            return (state.positions == given[state.step - 1]).float()[None]
        self.logits = state.logits
        if self._order is None:
            return state.masked.float()
        scores = self._order.scores(state)
        self.scored = scores[0]
        return scores


def step(
    model: Model,
    source: np.ndarray,
    direction: str,
    length: int,
    positions: Sequence[int],
    order: Order | None = None,
    seed: int = 1,
) -> Position:
    """Fill `positions` (from 0) of a target one after another, each with the model's best word, and look at the rest.

    Args:
        model: Fills them.
        source: Ids of the sentence to translate.
        direction: Source and target language, such as `de-en`.
        length: Subwords of the target.
        positions: In the order in which they are filled; each at most once.
        order: Says what it would fill next.
        seed: For orders that draw lots.
    """
    check_positions(positions, length)
    order = order.bind(model, direction) if order else None
    guided = Guided(positions, order)
    work = Work.of(model, [Request(source, length, sentence_key(seed, source, length))], direction)
    after = fill(model, work, guided, Fixed(1), steps=len(positions) + 1).filled()[0]
    beyond = np.flatnonzero(after.steps == len(positions) + 1)  # the look filled one more
    after.ids[beyond], after.steps[beyond], after.logprobs[beyond] = model.vocabulary.mask, 0, 0
    masked = after.steps == 0
    return Position(
        filled=after,
        tokens=[
            None if hidden else piece for piece, hidden in zip(model.vocabulary.pieces(after.ids), masked, strict=True)
        ],
        next=int(beyond[0]) if order and len(beyond) else None,
        scores=_in_place(_distribution(guided.scored, masked), masked),
        policy=isinstance(order, LearnedOrder),
        candidates=_in_place(_candidates(guided.logits, model.vocabulary), masked),
    )


def check_positions(positions: Sequence[int], length: int) -> None:
    """An `InputError` for a position that is not there, or given twice."""
    for i, position in enumerate(positions):
        if not 0 <= position < length:
            raise InputError(f"position {position}: a target of length {length} has positions 0 to {length - 1}")
        if position in positions[:i]:
            raise InputError(f"position {position} is already filled")


def _distribution(scores: Tensor | None, masked: np.ndarray) -> list[float]:
    if scores is None:
        return []
    # Weights that a user gave an order may be so large that no number is left.
    return scores.cpu()[torch.from_numpy(masked)].double().nan_to_num().softmax(0).tolist()


def _candidates(logits: Tensor | None, vocabulary: Vocabulary) -> list[list[Candidate]]:
    if logits is None:
        return []
    words = logits[:, vocabulary.first_word :]
    best = words.topk(min(CANDIDATES, words.shape[1]))
    chances = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
    return [
        [Candidate(token, p) for token, p in zip(vocabulary.pieces(ids), row, strict=True)]
        for ids, row in zip((best.indices + vocabulary.first_word).tolist(), chances.tolist(), strict=True)
    ]


def _in_place(values: Sequence[T], masked: np.ndarray) -> list[T | None]:
    """Values of the masked positions where they belong; None in the others, and everywhere if there are no values."""
    each = iter(values)
    return [next(each, None) if hidden else None for hidden in masked]

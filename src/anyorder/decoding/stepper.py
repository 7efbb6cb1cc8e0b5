"""Filling by hand: someone says which positions are filled, the model says with what. No HTTP in here.

The engine does the work. `Guided` is an order like any other, which asks for the given positions one after another; at
the step after the last of them it looks at everything, and what it saw there is the answer.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.engine import Canvas, DecodeBatch, Hypothesis, Request, fill
from anyorder.decoding.schedules import Fixed
from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order, State
from anyorder.orders.base import Needs
from anyorder.orders.learned import LearnedOrder
from anyorder.translator import sentence_key

CANDIDATES = 5
T = TypeVar("T")
Written = tuple[int, float]
"""A token and its log-probability."""


@dataclass(frozen=True)
class Candidate:
    """A word that could stand at a masked position."""

    token: str
    p: float
    """The model's probability of it."""


@dataclass(frozen=True)
class Position:
    """A target after some of its positions were filled by hand. Everything has one entry for each position."""

    filled: Hypothesis
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


class Memory:
    """What one model wrote by hand lately, so that a sentence that goes on as before is not written again."""

    def __init__(self, size: int = 4096):
        self._size = size
        self._written: OrderedDict[tuple[Hashable, tuple[int, ...]], Written] = OrderedDict()

    def recall(self, about: Hashable, positions: Sequence[int]) -> list[Written]:
        """What was written at the first of the positions, as far as that is known."""
        known: list[Written] = []
        for count in range(1, len(positions) + 1):
            key = about, tuple(positions[:count])
            if key not in self._written:
                break
            self._written.move_to_end(key)
            known.append(self._written[key])
        return known

    def keep(self, about: Hashable, positions: Sequence[int], target: Sequence[Written]) -> None:
        """target: what stands at every position of the sentence."""
        for count, position in enumerate(positions, 1):
            self._written[about, tuple(positions[:count])] = target[position]
        while len(self._written) > self._size:
            self._written.popitem(last=False)


class Guided(Order):
    """Fills the given positions first. After them it looks at all that is masked, and does what `order` does."""

    name = "by hand"

    def __init__(self, positions: Sequence[int], order: Order | None, done: int = 0):
        self._positions, self._order = list(positions), order
        self.wants_opening = order is not None and order.wants_opening
        self.needs = "both" if done == len(positions) else needs_of(order)
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
    model: TranslationModel,
    source: np.ndarray,
    direction: str,
    length: int,
    positions: Sequence[int],
    order: Order | None = None,
    seed: int = 1,
    memory: Memory | None = None,
) -> Position:
    """Fill `positions` (from 0) of a target one after another, each with the model's best word, and look at the rest.

    Args:
        model: Fills them.
        source: Ids of the sentence to translate.
        direction: Source and target language, such as `de-en`.
        length: Subwords of the target.
        positions: In the order in which they are filled; each at most once.
        order: Says what it would fill next.
        seed: For orders that draw hash_uniform.
        memory: What this model wrote before.
    """
    check_positions(positions, length)
    order = order.bind(model, direction) if order else None
    memory = memory if memory is not None else Memory()
    about = direction, source.tobytes(), length, needs_of(order)
    known = memory.recall(about, positions)
    guided = Guided(positions, order, len(known))
    work = DecodeBatch.of(model, [Request(source, length, sentence_key(seed, source, length))], direction)
    canvas = _begin(work, model, list(zip(positions, known, strict=False)))
    after = fill(model, work, guided, Fixed(1), len(positions) + 1, canvas).filled()[0]
    memory.keep(about, positions, list(zip(after.ids.tolist(), after.logprobs.tolist(), strict=True)))
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


def needs_of(order: Order | None) -> Needs:
    """A step given by hand computes what a step of the order would: what it writes is the same to the last bit."""
    return order.needs if order else "nothing"


def _begin(work: DecodeBatch, model: TranslationModel, written: Sequence[tuple[int, Written]]) -> Canvas:
    """A canvas on which some positions are filled already."""
    canvas = Canvas(work, model.vocabulary, model.device)
    for at, (position, (token, logprob)) in enumerate(written, 1):
        where, tokens, logprobs = (torch.tensor([value], device=model.device) for value in (position, token, logprob))
        canvas.fill(where, tokens, logprobs, at)
    left = canvas.lengths - len(written)
    canvas.keep(left[left > 0])
    return canvas


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

"""End tokens last: an order and a schedule under which positions whose best token ends the text wait for the others.

LLaDA's option `confidence_eos_eot_inf`. A model that was trained on padded answers is otherwise surest of the end, and
fills it in first.
"""

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from anyorder.decoding.schedules import AdaptiveSchedule, Blocks, Schedule
from anyorder.models.base import NEVER
from anyorder.orders.base import Needs, Order, State

_WITH_LOGITS: dict[Needs, Needs] = {"nothing": "logits", "hidden": "both"}


class EndsLast(Order):
    """An order in which positions whose best token is an end token come last, from left to right.

    The other positions are ranked by the model's distribution without end tokens.
    """

    def __init__(self, order: Order, ends: Tensor):
        """ends: (E,) int64, the ids of the end tokens, on the model's device."""
        self._order, self._ends = order, ends
        self.name = order.name
        self.needs = _WITH_LOGITS.get(order.needs, order.needs)
        self.needs_opening = order.needs_opening
        self.is_local = order.is_local or order.needs == "nothing"

    @property
    def identity(self) -> str:
        return self._order.identity

    def scores(self, state: State) -> Tensor:
        assert state.logits is not None
        without = state.logits.index_fill(1, self._ends, NEVER)
        scores = self._order.scores_as_declared(replace(state, logits=without))
        scores = scores if scores.is_floating_point() else scores.double()
        return scores.masked_fill(best_is_end(state, self._ends), torch.finfo(scores.dtype).min)


class _AcceptEndsLast(AdaptiveSchedule):
    """A schedule that accepts no end token while the order could fill something else."""

    def __init__(self, schedule: AdaptiveSchedule, ends: Tensor):
        self._schedule, self._ends = schedule, ends
        self.name, self.is_local = schedule.name, schedule.is_local

    def accept(self, state: State, scores: Tensor) -> Tensor:
        is_end = best_is_end(state, self._ends)
        others = ((scores > -torch.inf) & ~is_end).any(1, keepdim=True)
        return self._schedule.accept(state, scores) & ~(is_end & others)

    def narrow(self, state: State, scores: Tensor) -> Tensor:
        return self._schedule.narrow(state, scores)

    def reach(self, *state: Any) -> np.ndarray | None:
        return self._schedule.reach(*state)

    def start(self) -> Self:
        return type(self)(self._schedule.start(), self._ends)

    def keep(self, canvases: Tensor) -> None:
        self._schedule.keep(canvases)


def accept_ends_last(schedule: Schedule, ends: Tensor) -> Schedule:
    """The schedule for `EndsLast`. Those that do not look at predictions leave all to the order."""
    if isinstance(schedule, Blocks):
        return schedule.around(accept_ends_last(schedule.inner, ends))
    return _AcceptEndsLast(schedule, ends) if isinstance(schedule, AdaptiveSchedule) else schedule


def best_is_end(state: State, ends: Tensor) -> Tensor:
    """(B, T) bool: where the best token is an end token; the sampled one, if positions are ranked by these."""
    assert state.logits is not None
    assert state.where is not None
    best = state.sampled
    if best is None:
        best = state.allowed.restrict(state.logits).argmax(-1) + state.allowed.first
    everywhere = torch.zeros_like(state.masked)
    everywhere.view(-1).index_copy_(0, state.where, torch.isin(best, ends))
    return everywhere

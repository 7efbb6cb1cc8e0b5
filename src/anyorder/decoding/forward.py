"""One forward pass of a decoding step, and what orders, schedules and callbacks see of it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import ranges, starts_of
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.state import DecodeState, comparable
from anyorder.device import to_device
from anyorder.models.base import AllowedTokens, Model
from anyorder.models.native.attention import QueryPositions
from anyorder.orders.base import Order, State


@dataclass(frozen=True)
class StepPredictions:
    """What a step saw and did, for a callback. Positions are indices into the flattened (B, T)."""

    step: int
    """From 1."""
    canvases: np.ndarray
    """(B,) the index of each canvas among those being decoded."""
    width: int
    """T"""
    masked: Tensor
    """(M,) positions that were masked before the step."""
    logits: Tensor
    """(M, vocab_size) float32"""
    allowed: AllowedTokens
    filled: Tensor
    """(F,) positions that the step filled."""
    tokens: Tensor
    """(F,)"""
    logprobs: Tensor
    """(F,)"""


StepCallback = Callable[[StepPredictions], None]

HiddenAt = Callable[[Tensor, QueryPositions], Tensor]


@dataclass(frozen=True)
class StepOutput:
    """A forward pass at all masked positions."""

    view: State
    masked: Tensor
    """(M,) positions"""
    hidden: Tensor
    """(M, hidden_size)"""
    logits: Tensor | None
    """(M, vocab_size)"""
    width: int
    current_logprobs: Tensor | None = None
    """(B, T) the log-probability of the current token at each position, if requested."""

    def logits_at(self, model: Model, positions: Tensor) -> Tensor:
        """(N, vocab_size) the logits at some of the masked positions."""
        index = torch.searchsorted(self.masked, positions)
        return model.logits(self.hidden[index]) if self.logits is None else self.logits[index]

    def event(self, canvases: np.ndarray, positions: Tensor, tokens: Tensor, logprobs: Tensor) -> StepPredictions:
        assert self.logits is not None
        return StepPredictions(
            self.view.step, canvases, self.width, self.masked, self.logits, self.view.allowed,
            positions, tokens, logprobs,
        )  # fmt: skip


def forward_step(
    model: Model,
    hidden_at: HiddenAt,
    state: DecodeState,
    order: Order,
    step: int,
    with_logits: bool = False,
    everywhere: bool = False,
    leftmost: np.ndarray | None = None,
) -> StepOutput:
    """One forward pass, and what the order may see of it.

    Args:
        model: Predicts the tokens.
        hidden_at: The model's hidden states at some positions.
        state: The canvases.
        order: Declares what it needs.
        step: From 1.
        with_logits: Whether to compute logits even if the order does not need them.
        everywhere: Whether to include positions that are already filled.
        leftmost: (B,) how many masked positions of each canvas to include, from the left; all of them if not given.
    """
    masked, remaining = state.masked_positions(), state.remaining
    if leftmost is not None:
        masked, remaining = masked[to_device(ranges(starts_of(remaining), leftmost), masked.device)], leftmost
    positions, counts = (state.fillable_positions(), state.total) if everywhere else (masked, remaining)
    at = state.query(positions, counts)
    if order.needs_opening:
        with_openings, openings, inner = state.query_with_openings(positions, at, counts)
        states = hidden_at(state.tokens, with_openings)
        hidden, opening = states[inner], states[openings]
    else:
        hidden, opening = hidden_at(state.tokens, at), None
    logits = model.logits(hidden) if with_logits or order.needs in ("logits", "both") else None
    segments, current = at.segments, None
    if everywhere:
        assert logits is not None
        current = state.token_logprobs(positions, logits)
        index = torch.searchsorted(positions, masked)
        hidden, logits, segments = hidden[index], logits[index], state.query(masked, remaining).segments
    view = state.view(
        step,
        where=masked,
        segments=segments,
        tokens=state.padded_tokens(),
        hidden=hidden if order.needs in ("hidden", "both") else None,
        logits=logits,
        opening=opening,
    )
    return StepOutput(view, masked, hidden, logits, state.width, current)


def reach(order: Order, schedule: Schedule, state: DecodeState) -> np.ndarray | None:
    """(B,) how many masked positions, from the left, the step needs in each canvas; None for all."""
    if not (order.is_local or order.needs == "nothing"):
        return None
    return schedule.reach(state.remaining, state.total[: len(state.remaining)])


def ranking_scores(order: Order, schedule: Schedule, view: State) -> Tensor:
    """(B, T) an order's scores where the schedule allows filling, -inf elsewhere."""
    return schedule.narrow(view, comparable(order.scores_as_declared(view), view.masked, order.identity))

"""One forward pass of a decoding step, and what orders, schedules and callbacks see of it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import ranges, starts_of
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.state import DecodeState
from anyorder.device import to_device
from anyorder.errors import InputError
from anyorder.models.base import AllowedTokens, Model
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


@dataclass(frozen=True)
class StepOutput:
    """A forward pass at masked positions."""

    view: State
    masked: Tensor
    """(M,) positions"""
    hidden: Tensor
    """(M, hidden_size)"""
    logits: Tensor | None
    """(M, vocab_size)"""
    current_logprobs: Tensor | None
    """(B, T) the log-probability of the current token at each position, if requested."""

    def logits_at(self, model: Model, positions: Tensor) -> Tensor:
        """(N, vocab_size) at some of the masked positions."""
        index = torch.searchsorted(self.masked, positions)
        return model.logits(self.hidden[index]) if self.logits is None else self.logits[index]


def forward_step(
    state: DecodeState,
    order: Order,
    schedule: Schedule | None = None,
    known: Tensor | None = None,
    with_logits: bool = False,
    everywhere: bool = False,
) -> StepOutput:
    """One forward pass at the masked positions, and what the order may see of it.

    Positions that the schedule, if given, cannot fill now are left out, unless the order looks at them. `known` are the
    hidden states, if they need not be computed. `with_logits` asks for logits even if the order needs none;
    `everywhere` also for what the model says about filled positions.
    """
    model, masked, remaining = state.model, state.masked_positions(), state.remaining
    leftmost = reach(order, schedule, state) if schedule and known is None else None
    if leftmost is not None:
        masked, remaining = masked[to_device(ranges(starts_of(remaining), leftmost), masked.device)], leftmost
    positions, counts = (state.fillable_positions(), state.total) if everywhere else (masked, remaining)
    at = state.query(positions, counts)
    if order.needs_opening:
        with_openings, openings, inner = state.query_with_openings(positions, at, counts)
        states = state.context.hidden(state.tokens, with_openings) if known is None else known
        hidden, opening = states[inner], states[openings]
    else:
        hidden, opening = state.context.hidden(state.tokens, at) if known is None else known, None
    logits = model.logits(hidden) if with_logits or order.needs in ("logits", "both") else None
    segments, current = at.segments, None
    if everywhere:
        assert logits is not None
        current = state.token_logprobs(positions, logits)
        index = torch.searchsorted(positions, masked)
        hidden, logits, segments = hidden[index], logits[index], state.query(masked, remaining).segments
    view = state.view(
        where=masked,
        segments=segments,
        tokens=state.padded_tokens(),
        hidden=hidden if order.needs in ("hidden", "both") else None,
        logits=logits,
        opening=opening,
    )
    return StepOutput(view, masked, hidden, logits, current)


def reach(order: Order, schedule: Schedule, state: DecodeState) -> np.ndarray | None:
    """(B,) how many masked positions, from the left, the step needs in each canvas; None for all."""
    if not (order.is_local or order.needs == "nothing"):
        return None
    return schedule.reach(state.remaining, state.total[: len(state.remaining)])


def ranking_scores(order: Order, schedule: Schedule, view: State) -> Tensor:
    """(B, T) an order's scores, finite where the schedule allows filling, -inf elsewhere. NaN ranks last."""
    scores, masked = order.scores_as_declared(view), view.masked
    if not isinstance(scores, Tensor) or scores.shape != masked.shape:  # a user's own order may return anything
        found = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(f"order '{order.identity}': returned {found}, expected scores of shape {tuple(masked.shape)}")
    scores = scores if scores.is_floating_point() else scores.double()
    lowest = torch.finfo(scores.dtype).min
    return schedule.narrow(view, scores.nan_to_num(nan=lowest, neginf=lowest).masked_fill(~masked, -torch.inf))


def predict_first_ranked(
    state: DecodeState, order: Order, schedule: Schedule, counts: np.ndarray, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The `counts[i]` positions of canvas i that rank first, ascending, and the logits there: (N,), (N, vocab_size).

    If the order needs nothing, the model runs at these positions only. known: see `forward_step`.
    """
    if order.needs == "nothing":
        positions = state.best_positions(ranking_scores(order, schedule, state.view()), counts)
        return positions, state.model.logits(state.context.hidden(state.tokens, state.query(positions, counts)))
    output = forward_step(state, order, schedule, known)
    positions = state.best_positions(ranking_scores(order, schedule, output.view), counts)
    return positions, output.logits_at(state.model, positions)

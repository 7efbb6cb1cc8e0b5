"""The decoding loop for adaptive schedules and revisions.

What a step fills depends on the predictions, or filled positions may be masked again. So the host waits for the device
at every step, and canvases finish in any order.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyorder.decoding.forward import StepCallback, StepOutput, forward_step, ranking_scores, reach
from anyorder.decoding.revision import NoRevision, Revision, RevisionState
from anyorder.decoding.sampling import TokenSampler
from anyorder.decoding.schedules import AdaptiveSchedule, FixedSchedule, Schedule, best_ranked
from anyorder.decoding.state import DecodeState
from anyorder.device import to_device
from anyorder.models.base import Context, Model
from anyorder.orders.base import Order


def run_adaptive(
    model: Model,
    state: DecodeState,
    context: Context,
    order: Order,
    schedule: Schedule,
    revision: Revision,
    max_step: int | None,
    on_step: StepCallback | None,
    sampler: TokenSampler | None,
) -> DecodeState:
    """Fill everything, or stop after step `max_step`."""
    whole, step = state, state.step
    canvases = np.flatnonzero(whole.remaining)
    if not len(canvases):
        whole.record_writes(None if isinstance(revision, NoRevision) else [])
        return whole
    if len(canvases) < len(whole.lengths):
        context = context.select(canvases)
    state = state.select(canvases)
    state.remaining = whole.remaining[canvases]
    schedule = schedule.start() if isinstance(schedule, AdaptiveSchedule) else schedule
    revises = not isinstance(revision, NoRevision)
    if revises:
        state.track_history()
    last_revision = np.array([revision.last_step(length) for length in whole.lengths.tolist()])
    writes: list[_Writes] = []
    while len(state.remaining) and step != max_step:
        step += 1
        everywhere = revision.needs_current_logprobs
        leftmost = None if revises or on_step else reach(order, schedule, state)
        output = forward_step(model, context.hidden, state, order, step, True, everywhere, leftmost)
        positions = _positions(state, schedule, output, ranking_scores(order, schedule, output.view))
        tokens, logprobs = state.choose(output.logits_at(model, positions), positions, step, sampler)
        if on_step:
            on_step(output.event(canvases, positions, tokens, logprobs))
        state.fill(positions, tokens, logprobs, step)
        if revises:
            writes.append(_Writes(step, canvases, state.width, positions, tokens, logprobs))
            _revise(state, revision, step, step <= last_revision[canvases], output.current_logprobs)
        remaining = state.view(step).masked.sum(1).cpu().numpy()
        unfinished = np.flatnonzero(remaining)
        if len(unfinished) < len(remaining) or step == max_step:
            whole.absorb(state, canvases)
            whole.record_forwards(canvases[remaining == 0], step)
        if 0 < len(unfinished) < len(remaining):
            state, context, canvases = state.select(unfinished), context.select(unfinished), canvases[unfinished]
            if isinstance(schedule, AdaptiveSchedule):
                schedule.keep(to_device(unfinished, model.device))
        state.remaining = remaining[unfinished]
    whole.step, whole.remaining = step, state.remaining
    whole.record_writes([step_writes.arrays() for step_writes in writes] if revises else None)
    return whole


@dataclass(frozen=True)
class _Writes:
    """What one step wrote. It stays on the device until the end, so that the host waits only once."""

    step: int
    canvases: np.ndarray
    """Indices of the canvases being decoded."""
    width: int
    """Positions per canvas."""
    positions: Tensor
    """(M,) in the flattened canvases."""
    tokens: Tensor
    logprobs: Tensor

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Canvas, position, step, token and log-probability of each write."""
        owner, position = np.divmod(self.positions.cpu().numpy(), self.width)
        steps = np.full(len(owner), self.step)
        return self.canvases[owner], position, steps, self.tokens.cpu().numpy(), self.logprobs.cpu().numpy()


def _positions(state: DecodeState, schedule: Schedule, output: StepOutput, scores: Tensor) -> Tensor:
    """The positions to fill, ascending. scores: (B, T), -inf where nothing may be filled now."""
    allowed = scores > -torch.inf
    if isinstance(schedule, AdaptiveSchedule):
        accepted = schedule.accept(output.view, scores) & allowed
        accepted = torch.where(accepted.any(1, keepdim=True), accepted, best_ranked(scores) & allowed)
        return accepted.flatten().nonzero().squeeze(1)
    assert isinstance(schedule, FixedSchedule)
    counts = schedule.counts(state.remaining, state.total, output.view.step)
    return state.best_positions(scores, counts.clip(1, allowed.sum(1).cpu().numpy()))


def _revise(
    state: DecodeState, revision: Revision, step: int, may_revise: np.ndarray, current_logprobs: Tensor | None
) -> None:
    """Let a revision mask positions again. may_revise: (B,) bool, by canvas."""
    history, view = state.track_history(), state.view(step)
    history.times_complete += ~view.masked.any(1)
    if not may_revise.any():
        return
    tokens, steps, logprobs = state.results()
    filled = state.filled
    asked = revision.remask(
        RevisionState(
            step=step,
            lengths=view.lengths,
            filled=filled,
            tokens=tokens,
            logprobs=logprobs,
            steps=steps,
            masked=view.masked,
            keys=view.keys,
            times_written=history.times_written,
            changed=history.changed,
            times_complete=history.times_complete,
            current_logprobs=current_logprobs,
        )
    )
    revised = asked & filled & to_device(may_revise, filled.device)[:, None]
    state.remask(revised.flatten().nonzero().squeeze(1), revision.hides_tokens)

"""Decoding loop: score, select, fill until nothing is masked. One forward pass per step.

Canvases of different lengths are decoded together. With a schedule that is known in advance, they are sorted so that
those that finish first are at the end and are dropped from there, and the host never waits for the device inside the
loop. It waits at every step if what a step fills depends on the predictions, if filled positions may be masked again,
or if the steps are watched; then canvases finish in any order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import ranges, starts_of
from anyorder.decoding.forward import (
    StepCallback,
    StepOutput,
    StepPredictions,
    forward_step,
    predict_first_ranked,
    ranking_scores,
)
from anyorder.decoding.revision import NoRevision, Revision, RevisionState
from anyorder.decoding.sampling import TokenSampler
from anyorder.decoding.schedules import AdaptiveSchedule, FixedSchedule, Schedule, best_ranked
from anyorder.decoding.state import DecodeBatch, DecodeState, Hypothesis
from anyorder.device import to_device
from anyorder.models.base import Canvas, Context, Model
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.orders.base import Order


def decode(
    model: Model,
    canvases: Sequence[Canvas],
    order: Order,
    schedule: Schedule,
    revision: Revision | None = None,
    batch_tokens: int | None = None,
    on_progress: Callable[[int], None] = lambda canvases: None,
    on_step: StepCallback | None = None,
    sampler: TokenSampler | None = None,
) -> list[Hypothesis]:
    """Fill every canvas; results come in the order of the canvases.

    `batch_tokens` limits the number of target tokens decoded together; results do not depend on it. Without a
    `sampler`, the most likely tokens are written.
    """
    found: dict[int, Hypothesis] = {}
    for chosen in canvas_batches(model, canvases, schedule, batch_tokens):
        batch = DecodeBatch.of(model, [canvases[i] for i in chosen])
        callback = on_step and _renumbered(on_step, np.array(chosen))
        state = run_decoding(model, batch, order, schedule, revision, callback, sampler)
        found.update(zip(chosen, state.hypotheses(), strict=True))
        on_progress(len(chosen))
    return [found[i] for i in range(len(canvases))]


def canvas_batches(
    model: Model, canvases: Sequence[Canvas], schedule: Schedule, batch_tokens: int | None, copies: int = 1
) -> Iterator[list[int]]:
    """Canvas indices batched by number of steps, most first, within `batch_tokens` over all copies."""
    if batch_tokens is None:  # enough to keep the device busy while all their logits fit in about 4 GB
        batch_tokens = min(24_576 if model.device.type == "cuda" else 2_048, (1 << 30) // model.vocab_size)
    masked = [int(np.count_nonzero(canvas.tokens == model.mask_token)) for canvas in canvases]
    steps = {count: schedule.steps(count) if isinstance(schedule, FixedSchedule) else count for count in set(masked)}
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(canvases)), key=lambda i: (-steps[masked[i]], -masked[i], -len(canvases[i].tokens))):
        size = len(canvases[i].tokens) + 2
        if batch and (tokens + size) * copies > batch_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += size
    if batch:
        yield batch


def _renumbered(on_step: StepCallback, canvases: np.ndarray) -> StepCallback:
    return lambda seen: on_step(replace(seen, canvases=canvases[seen.canvases]))


@torch.inference_mode()
def run_decoding(
    model: Model,
    batch: DecodeBatch,
    order: Order,
    schedule: Schedule,
    revision: Revision | None = None,
    on_step: StepCallback | None = None,
    sampler: TokenSampler | None = None,
) -> DecodeState:
    """Fill one batch. What an order needs may change between steps."""
    revision, shared = revision or NoRevision(), model.context(batch.canvases)
    state = DecodeState(model, batch, shared)
    if isinstance(schedule, FixedSchedule) and isinstance(revision, NoRevision) and on_step is None:
        run_fixed(state, order, schedule, shared_first_step(model, batch, shared, order), sampler)
    else:
        _run_adaptive(state, order, schedule, revision, on_step, sampler)
    del state.context  # frees what the model has cached: a caller may keep the state while it fills the next batch
    return state


def run_fixed(
    state: DecodeState,
    order: Order,
    schedule: FixedSchedule,
    first_step: Tensor | None = None,
    sampler: TokenSampler | None = None,
    max_step: int | None = None,
) -> None:
    """Fill what is masked, or stop after step `max_step`. The host knows how many positions every step fills.

    first_step: the hidden states of the first step, if they are known.
    """
    state.drop_finished(state.remaining)
    while len(state.remaining) and state.step != max_step:
        total, step = state.total[: len(state.remaining)], state.step + 1
        counts = schedule.counts(state.remaining, total, step).clip(1, state.remaining)
        positions, logits = predict_first_ranked(state, order, schedule, counts, first_step)
        state.fill(positions, *state.choose(logits, positions, sampler))
        state.drop_finished(state.remaining - counts)
        first_step = None


def shared_first_step(model: Model, batch: DecodeBatch, shared: Context, order: Order) -> Tensor | None:
    """Before the first step, all copies of a canvas are identical: run it once, with the context that they share.

    The hidden states of all copies; None if there are no copies, the order needs nothing, or a canvas has no mask.
    """
    if batch.copies == 1 or order.needs == "nothing":
        return None
    packed = batch.canvases.packed
    rows = np.flatnonzero(packed.tokens == model.mask_token)
    owner = np.searchsorted(packed.starts, rows, side="right") - 1
    counts = np.bincount(owner, minlength=len(packed.sizes))
    if not counts.all():
        return None
    if order.needs_opening:
        rows = np.sort(np.concatenate([rows, packed.starts]))
        counts = counts + 1
    at = QueryPositions(to_device(rows, model.device), Segments.of(counts, model.device))
    copied = ranges(np.repeat(starts_of(counts), batch.copies), np.repeat(counts, batch.copies))
    return shared.hidden(to_device(packed.tokens, model.device), at)[to_device(copied, model.device)]


def _run_adaptive(
    whole: DecodeState,
    order: Order,
    schedule: Schedule,
    revision: Revision,
    on_step: StepCallback | None,
    sampler: TokenSampler | None,
) -> None:
    """Fill everything. After every step the host asks the device what is still masked."""
    revises, everywhere = not isinstance(revision, NoRevision), revision.needs_current_logprobs
    if revises:
        whole.keep_history()
    unfinished = np.flatnonzero(whole.remaining)
    if not len(unfinished):
        return
    state = whole.select(unfinished)
    if isinstance(schedule, AdaptiveSchedule):
        schedule = schedule.start()
    within = None if revises or on_step else schedule
    last_revision = np.array([revision.last_step(length) for length in whole.lengths.tolist()])
    while len(unfinished):
        output = forward_step(state, order, within, with_logits=True, everywhere=everywhere)
        positions = _positions(state, schedule, output, ranking_scores(order, schedule, output.view))
        tokens, logprobs = state.choose(output.logits_at(state.model, positions), positions, sampler)
        state.fill(positions, tokens, logprobs)
        if on_step:
            assert output.logits is not None
            on_step(
                StepPredictions(
                    state.step, state.canvases, state.width, output.masked, output.logits, state.allowed,
                    positions, tokens, logprobs,
                )
            )  # fmt: skip
        if revises:
            _revise(state, revision, state.step <= last_revision[state.canvases], output.current_logprobs)
        state.remaining = state.view().masked.sum(1).cpu().numpy()
        unfinished = np.flatnonzero(state.remaining)
        if len(unfinished) < len(state.remaining):
            whole.absorb(state)
            whole.forwards[state.canvases[state.remaining == 0]] = state.step
            if len(unfinished):
                state = state.select(unfinished)
                if isinstance(schedule, AdaptiveSchedule):
                    schedule.keep(to_device(unfinished, state.model.device))


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


def _revise(state: DecodeState, revision: Revision, may_revise: np.ndarray, current_logprobs: Tensor | None) -> None:
    """Let a revision mask positions again. may_revise: (B,) bool, by canvas."""
    view, filled = state.view(), state.filled
    state.times_complete += ~view.masked.any(1)
    if not may_revise.any():
        return
    tokens, steps, logprobs = state.results()
    asked = revision.remask(
        RevisionState(
            step=state.step,
            lengths=view.lengths,
            filled=filled,
            tokens=tokens,
            logprobs=logprobs,
            steps=steps,
            masked=view.masked,
            keys=view.keys,
            times_written=state.times_written,
            changed=state.changed,
            times_complete=state.times_complete,
            current_logprobs=current_logprobs,
        )
    )
    revised = asked & filled & to_device(may_revise, filled.device)[:, None]
    state.remask(revised.flatten().nonzero().squeeze(1), revision.hides_tokens)

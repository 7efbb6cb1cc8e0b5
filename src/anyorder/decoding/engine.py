"""Decoding loop: score, select, fill until nothing is masked. One forward pass per step.

Canvases of different lengths are decoded together. With a schedule that is known in advance, they are sorted so that
those that finish first are at the end and are dropped from there, and the host never waits for the device inside the
loop. Adaptive schedules and revisions have their own loop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from anyorder.data.packing import ranges, starts_of
from anyorder.decoding.adaptive_loop import run_adaptive
from anyorder.decoding.forward import HiddenAt, StepCallback, forward_step, ranking_scores, reach
from anyorder.decoding.revision import NoRevision, Revision
from anyorder.decoding.sampling import TokenSampler
from anyorder.decoding.schedules import FixedSchedule, Schedule
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
    batch_tokens = batch_tokens or default_batch_tokens(model)
    results: list[Hypothesis | None] = [None] * len(canvases)
    for chosen in canvas_batches(canvases, model.mask_token, schedule, batch_tokens):
        batch = DecodeBatch(
            model.pack([canvases[i] for i in chosen]), np.array([canvases[i].key for i in chosen], np.int64)
        )
        callback = on_step and _renumbered(on_step, np.array(chosen))
        filled = run_decoding(model, batch, order, schedule, revision, on_step=callback, sampler=sampler)
        for i, hypothesis in zip(chosen, filled.hypotheses(), strict=True):
            results[i] = hypothesis
        on_progress(len(chosen))
    return [hypothesis for hypothesis in results if hypothesis is not None]


def default_batch_tokens(model: Model) -> int:
    """Enough to keep the device busy while all their logits fit in about 4 GB."""
    usual = 24_576 if model.device.type == "cuda" else 2_048
    return min(usual, (1 << 30) // model.vocab_size)


def canvas_batches(
    canvases: Sequence[Canvas], mask_token: int, schedule: Schedule, batch_tokens: int
) -> Iterator[list[int]]:
    """Canvas indices batched by number of steps, most first, within `batch_tokens`."""
    masked = [int(np.count_nonzero(canvas.tokens == mask_token)) for canvas in canvases]
    steps = {count: schedule.steps(count) if isinstance(schedule, FixedSchedule) else count for count in set(masked)}
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(canvases)), key=lambda i: (-steps[masked[i]], -masked[i], -len(canvases[i].tokens))):
        size = len(canvases[i].tokens) + 2
        if batch and tokens + size > batch_tokens:
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
    max_step: int | None = None,
    state: DecodeState | None = None,
    on_step: StepCallback | None = None,
    sampler: TokenSampler | None = None,
) -> DecodeState:
    """Decode one batch until it is filled, or up to step `max_step`. What an order needs may change between steps.

    Args:
        model: Predicts the tokens.
        batch: The canvases, sorted by number of steps, most first.
        order: Scores positions.
        schedule: Decides how many of them to fill.
        revision: Decides which to mask again; none if not given.
        max_step: Stop after this step, even if positions are still masked.
        state: A state of the same batch to continue from.
        on_step: Called after every step.
        sampler: Draws tokens; if not given, the most likely ones are taken.
    """
    state = state or DecodeState(batch, model)
    revision = revision or NoRevision()
    shared = model.context(batch.canvases)
    copied = np.repeat(np.arange(len(batch.canvases.lengths)), batch.copies)
    context = shared.select(copied) if batch.copies > 1 else shared
    if isinstance(schedule, FixedSchedule) and isinstance(revision, NoRevision):
        first = shared_first_step(shared, batch, order, model) if batch.copies > 1 and not state.step else None
        return _run_fixed(model, state, context, order, schedule, max_step, first, on_step, sampler)
    return run_adaptive(model, state, context, order, schedule, revision, max_step, on_step, sampler)


def _run_fixed(
    model: Model,
    state: DecodeState,
    context: Context,
    order: Order,
    schedule: FixedSchedule,
    max_step: int | None,
    first_step: HiddenAt | None,
    on_step: StepCallback | None,
    sampler: TokenSampler | None,
) -> DecodeState:
    """The host knows how many positions every step fills and never waits."""
    step = state.step
    to_fill = int(np.count_nonzero(state.remaining))
    if 0 < to_fill < len(state.lengths):
        context.keep_first(to_fill)
    state.drop_finished(state.remaining[:to_fill])
    while len(state.remaining) and step != max_step:
        step += 1
        counts = schedule.counts(state.remaining, state.total[: len(state.remaining)], step).clip(1, state.remaining)
        if order.needs == "nothing" and on_step is None:
            positions = state.best_positions(ranking_scores(order, schedule, state.view(step)), counts)
            logits = model.logits(context.hidden(state.tokens, state.query(positions, counts)))
            tokens, logprobs = state.choose(logits, positions, step, sampler)
        else:
            leftmost = None if first_step or on_step else reach(order, schedule, state)
            output = forward_step(
                model, first_step or context.hidden, state, order, step, on_step is not None, leftmost=leftmost
            )
            positions = state.best_positions(ranking_scores(order, schedule, output.view), counts)
            tokens, logprobs = state.choose(output.logits_at(model, positions), positions, step, sampler)
            if on_step:
                on_step(output.event(np.arange(len(counts)), positions, tokens, logprobs))
        first_step = None
        state.fill(positions, tokens, logprobs, step)
        remaining = state.remaining - counts
        unfinished = int(np.count_nonzero(remaining))
        state.drop_finished(remaining[:unfinished])
        if 0 < unfinished < len(remaining):
            context.keep_first(unfinished)
    return state


def shared_first_step(context: Context, batch: DecodeBatch, order: Order, model: Model) -> HiddenAt | None:
    """Before the first step, all copies of a canvas are identical: run it once and share the result."""
    if order.needs == "nothing":
        return None
    packed = batch.canvases.packed
    rows = np.flatnonzero(packed.tokens == model.mask_token)
    owner = np.searchsorted(packed.starts, rows, side="right") - 1
    counts = np.bincount(owner, minlength=len(packed.sizes))
    if order.needs_opening:
        rows = np.sort(np.concatenate([rows, packed.starts]))
        counts = counts + 1
    at = QueryPositions(to_device(rows, model.device), Segments.of(counts, model.device))
    copied = _copied_rows(counts, batch.copies)
    states = context.hidden(to_device(packed.tokens, model.device), at)[to_device(copied, model.device)]
    return lambda tokens, query: states


def _copied_rows(counts: np.ndarray, copies: int) -> np.ndarray:
    """Each canvas's rows repeated `copies` times, side by side. counts: (B,) rows per canvas."""
    return ranges(np.repeat(starts_of(counts), copies), np.repeat(counts, copies))

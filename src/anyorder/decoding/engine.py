"""The decoding loop: score, select, fill, until nothing is masked. One forward pass a step.

Canvases of any lengths go through together. With a schedule that is known in advance they are sorted so that those that
finish first lie at the end and leave from there, and the host never waits for the device inside the loop. With an
adaptive schedule or a revision the host looks at the device once a step and finished canvases leave from anywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import ranges, starts_of
from anyorder.decoding.revision import NoRevision, Revision, RevisionState
from anyorder.decoding.schedules import AdaptiveSchedule, FixedSchedule, Schedule, best_ranked
from anyorder.decoding.state import DecodeBatch, DecodeState, Hypothesis, comparable
from anyorder.models.attention import QueryPositions, Segments, to_device
from anyorder.models.base import AllowedTokens, Canvas, Context, Model
from anyorder.orders.base import Order, State


@dataclass(frozen=True)
class StepPredictions:
    """What a step saw and did, for a callback. Positions are indices into the flattened (B, T)."""

    step: int
    """From 1."""
    canvases: np.ndarray
    """(B,) the number of each canvas among those that are decoded."""
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


def decode(
    model: Model,
    canvases: Sequence[Canvas],
    order: Order,
    schedule: Schedule,
    revision: Revision | None = None,
    batch_tokens: int | None = None,
    on_progress: Callable[[int], None] = lambda canvases: None,
    on_step: StepCallback | None = None,
) -> list[Hypothesis]:
    """Fill every canvas; results come in the order of the canvases.

    `batch_tokens` bounds the target tokens that are under way together; results do not depend on it.
    """
    batch_tokens = batch_tokens or default_batch_tokens(model)
    results: list[Hypothesis | None] = [None] * len(canvases)
    for chosen in _batches(canvases, model.mask_token, schedule, batch_tokens):
        batch = DecodeBatch(
            model.pack([canvases[i] for i in chosen]), np.array([canvases[i].key for i in chosen], np.int64)
        )
        filled = run_decoding(
            model, batch, order, schedule, revision, on_step=on_step and _renumbered(on_step, np.array(chosen))
        )
        for i, hypothesis in zip(chosen, filled.hypotheses(), strict=True):
            results[i] = hypothesis
        on_progress(len(chosen))
    return [hypothesis for hypothesis in results if hypothesis is not None]


def default_batch_tokens(model: Model) -> int:
    """As many as keep the device busy while the logits of all of them fit in about 4 GB."""
    usual = 24_576 if model.device.type == "cuda" else 2_048
    return min(usual, (1 << 30) // model.vocab_size)


def _batches(canvases: Sequence[Canvas], mask_token: int, schedule: Schedule, batch_tokens: int) -> Iterator[list[int]]:
    """Indices of canvases that take similarly many steps, most first, within the bound."""
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
) -> "DecodeState":
    """Decode one batch until all is filled, or until step `max_step`. What an order needs may change between steps.

    state: a state of the same batch to continue from.
    """
    state = state or DecodeState(batch, model)
    revision = revision or NoRevision()
    shared = model.context(batch.canvases)
    context = shared.repeat(batch.copies) if batch.copies > 1 else shared
    if isinstance(schedule, FixedSchedule) and isinstance(revision, NoRevision):
        first = _shared_first_step(shared, batch, order, model) if batch.copies > 1 and not state.step else None
        return _run_fixed(model, state, context, order, schedule, max_step, first, on_step)
    return _run_adaptive(model, state, context, order, schedule, revision, max_step, on_step)


HiddenAt = Callable[[Tensor, QueryPositions], Tensor]


def _run_fixed(
    model: Model,
    state: DecodeState,
    context: Context,
    order: Order,
    schedule: FixedSchedule,
    max_step: int | None,
    first_step: HiddenAt | None,
    on_step: StepCallback | None,
) -> DecodeState:
    """The host knows how many positions every step fills and never waits."""
    step = state.step
    to_fill = int(np.count_nonzero(state.remaining))
    if 0 < to_fill < len(state.lengths):
        context.keep_first(to_fill)
    state.drop_finished(state.remaining[:to_fill])
    while len(state.remaining) and step != max_step:
        step += 1
        counts = _counts(schedule, state, step)
        if order.needs == "nothing" and on_step is None:
            positions = state.top_positions(order.scores(state.view(step)), counts)
            hidden = context.hidden(state.tokens, state.query(positions, counts))
            tokens, logprobs = state.allowed.best(model.logits(hidden))
        else:
            seen = _look(model, first_step or context.hidden, state, order, step, with_logits=on_step is not None)
            positions = state.top_positions(order.scores(seen.view), counts)
            tokens, logprobs = seen.predict(model, positions)
            if on_step:
                on_step(seen.event(np.arange(len(counts)), positions, tokens, logprobs))
        first_step = None
        state.fill(positions, tokens, logprobs, step)
        remaining = state.remaining - counts
        unfinished = int(np.count_nonzero(remaining))
        state.drop_finished(remaining[:unfinished])
        if 0 < unfinished < len(remaining):
            context.keep_first(unfinished)
    return state


def _run_adaptive(
    model: Model,
    state: DecodeState,
    context: Context,
    order: Order,
    schedule: Schedule,
    revision: Revision,
    max_step: int | None,
    on_step: StepCallback | None,
) -> DecodeState:
    """What a step fills depends on the predictions, or what is filled may be masked again."""
    whole, step = state, state.step
    canvases = np.flatnonzero(whole.remaining)
    last_revision = revision.last_step(state.width)
    if len(canvases) < len(whole.lengths):
        context = context.select(canvases)
    state = state.select(canvases)
    state.remaining = whole.remaining[canvases]
    writes: list[tuple[np.ndarray, ...]] = []
    while len(state.remaining) and step != max_step:
        step += 1
        seen = _look(model, context.hidden, state, order, step, with_logits=True)
        scores = comparable(order.scores(seen.view), seen.view.masked)
        if isinstance(schedule, AdaptiveSchedule):
            accepted = schedule.accept(seen.view, scores) & seen.view.masked
            accepted = torch.where(accepted.any(1, keepdim=True), accepted, best_ranked(scores) & seen.view.masked)
            positions = accepted.flatten().nonzero().squeeze(1)
        else:
            assert isinstance(schedule, FixedSchedule)
            counts = _counts(schedule, state, step)
            positions = state.top_positions(scores, counts)
        tokens, logprobs = seen.predict(model, positions)
        if on_step:
            on_step(seen.event(canvases, positions, tokens, logprobs))
        state.fill(positions, tokens, logprobs, step)
        if last_revision:
            owner, position = np.divmod(positions.cpu().numpy(), state.width)
            writes.append(
                (canvases[owner], position, np.full(len(owner), step), tokens.cpu().numpy(), logprobs.cpu().numpy())
            )
        if step <= last_revision:
            state.remask(_to_revise(state, revision, step))
        remaining = state.view(step).masked.sum(1).cpu().numpy()
        unfinished = np.flatnonzero(remaining)
        if len(unfinished) < len(remaining) or step == max_step:
            whole.absorb(state, canvases)
        if 0 < len(unfinished) < len(remaining):
            state, context, canvases = state.select(unfinished), context.select(unfinished), canvases[unfinished]
        state.remaining = remaining[unfinished]
    whole.step, whole.remaining = step, state.remaining
    whole.record_writes(writes if last_revision else None)
    return whole


def _counts(schedule: FixedSchedule, state: DecodeState, step: int) -> np.ndarray:
    """(B,) how many positions of each canvas are filled now."""
    remaining = state.remaining
    return schedule.counts(remaining, state.total[: len(remaining)], step).clip(1, remaining)


def _to_revise(state: DecodeState, revision: Revision, step: int) -> Tensor:
    """The positions that a revision masks again."""
    tokens, steps, logprobs = state.results()
    filled = state.filled
    view = state.view(step)
    asked = revision.remask(RevisionState(step, view.lengths, filled, tokens, logprobs, steps))
    return (asked & filled).flatten().nonzero().squeeze(1)


@dataclass(frozen=True)
class _Seen:
    """A forward pass at all masked positions."""

    view: State
    masked: Tensor
    """(M,) positions"""
    hidden: Tensor
    """(M, hidden_size)"""
    logits: Tensor | None
    """(M, vocab_size)"""
    width: int

    def predict(self, model: Model, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The best token at some of the masked positions and its log-probability."""
        index = torch.searchsorted(self.masked, positions)
        logits = model.logits(self.hidden[index]) if self.logits is None else self.logits[index]
        return self.view.allowed.best(logits)

    def event(self, canvases: np.ndarray, positions: Tensor, tokens: Tensor, logprobs: Tensor) -> StepPredictions:
        assert self.logits is not None
        return StepPredictions(
            self.view.step, canvases, self.width, self.masked, self.logits, self.view.allowed,
            positions, tokens, logprobs,
        )  # fmt: skip


def _look(
    model: Model, hidden_at: HiddenAt, state: DecodeState, order: Order, step: int, with_logits: bool = False
) -> _Seen:
    """One forward pass, and what the order may see of it."""
    masked = state.masked_positions()
    at = state.query(masked, state.remaining)
    if order.needs_opening:
        everything, openings, inner = state.query_with_openings(masked, at)
        states = hidden_at(state.tokens, everything)
        hidden, opening = states[inner], states[openings]
    else:
        hidden, opening = hidden_at(state.tokens, at), None
    logits = model.logits(hidden) if with_logits or order.needs in ("logits", "both") else None
    view = state.view(
        step,
        where=masked,
        segments=at.segments,
        tokens=state.padded_tokens(),
        hidden=hidden if order.needs in ("hidden", "both") else None,
        logits=logits,
        opening=opening,
    )
    return _Seen(view, masked, hidden, logits, state.width)


def _shared_first_step(context: Context, batch: DecodeBatch, order: Order, model: Model) -> HiddenAt | None:
    """Before the first step the copies of a canvas are alike: run it once, and let every copy see the result."""
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
    """The rows of every canvas so many times, its copies side by side. counts: (B,) rows of each."""
    return ranges(np.repeat(starts_of(counts), copies), np.repeat(counts, copies))

"""Decoding loop: score, select, fill until nothing is masked. One forward pass per step.

Canvases of different lengths are decoded together. With a schedule that is known in advance, they are sorted so that
those that finish first are at the end and are dropped from there, and the host never waits for the device inside the
loop. It waits at every step if what a step fills depends on the predictions, if filled positions may be masked again,
or if the steps are watched; then canvases finish in any order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import ranges, starts_of
from anyorder.decoding.revision import NoRevision, Revision, RevisionState
from anyorder.decoding.sampling import TokenSampler
from anyorder.decoding.schedules import AdaptiveSchedule, Blocks, FixedSchedule, Schedule, best_ranked
from anyorder.decoding.state import DecodeBatch, DecodeState, Hypothesis
from anyorder.device import to_device
from anyorder.errors import InputError
from anyorder.memory import Halving
from anyorder.models.base import Canvas, Context, Model
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.orders.base import Order, State


@dataclass(frozen=True)
class StepOutput:
    """A forward pass at masked positions."""

    view: State
    """What orders, schedules and callbacks may see of it. A position is an index into the flattened (B, T)."""
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


StepCallback = Callable[[np.ndarray, StepOutput, Tensor, Tensor, Tensor], None]
"""Called after every step with the indices of the B canvases among those being decoded, the forward pass, and what was
written: positions, tokens and their log-probabilities, (F,) each."""
EndCheck = Callable[[int, np.ndarray], bool]
"""Called whenever a block of a canvas is finished, with the index of the canvas and its tokens up to the end of that
block. If it returns true, what follows is not filled."""


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
    is_ended: Callable[[Canvas, np.ndarray], bool] | None = None,
) -> list[Hypothesis]:
    """Fill every canvas; results come in the order of the canvases.

    `batch_tokens` limits the number of target tokens decoded together; results do not depend on it. Where memory is too
    small for a batch, it is halved. Without a `sampler`, the most likely tokens are written. With a schedule in blocks
    and without a revision, what follows the block with which a canvas `is_ended` stays masked: see `EndCheck`.
    """
    found: dict[int, Hypothesis] = {}
    halving, reported, told = Halving(), 0, 0

    def tell(finished: int) -> None:
        """Report progress: nothing where a batch begins again that ran out of memory half-way."""
        nonlocal told
        if finished > told:
            on_progress(finished - told)
            told = finished

    def fill(chosen: Sequence[int]) -> None:
        nonlocal reported
        reported = 0

        def callback(rows: np.ndarray, *seen: Any) -> None:
            nonlocal reported
            reported += 1
            assert on_step is not None
            on_step(np.array(chosen)[rows], *seen)

        batch = DecodeBatch.of(model, [canvases[i] for i in chosen])
        check = is_ended and _of_canvases(is_ended, [canvases[i] for i in chosen])
        state = run_decoding(
            model, batch, order, schedule, revision, on_step and callback, sampler, check,
            lambda share: tell(len(found) + int(share * len(chosen))),
        )  # fmt: skip
        found.update(zip(chosen, state.hypotheses(), strict=True))
        tell(len(found))

    for batch in canvas_batches(model, canvases, schedule, batch_tokens):
        halving.run(batch, fill, may_repeat=lambda: reported == 0)  # nobody is told of the same step twice
    return [found[i] for i in range(len(canvases))]


def canvas_batches(
    model: Model, canvases: Sequence[Canvas], schedule: Schedule, batch_tokens: int | None, copies: int = 1
) -> Iterator[list[int]]:
    """Canvas indices batched by number of steps, most first, within `batch_tokens` over all copies."""
    batch_tokens = batch_tokens or usual_batch_tokens(model)
    masked = [int(np.count_nonzero(canvas.masked(model.mask_token))) for canvas in canvases]
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


def usual_batch_tokens(model: Model) -> int:
    """Enough to keep the device busy while all their logits fit in about 4 GB."""
    return min(24_576 if model.device.type == "cuda" else 2_048, (1 << 30) // model.vocab_size)


def _of_canvases(is_ended: Callable[[Canvas, np.ndarray], bool], canvases: Sequence[Canvas]) -> EndCheck:
    return lambda number, tokens: is_ended(canvases[number], tokens)


@torch.inference_mode()
def run_decoding(
    model: Model,
    batch: DecodeBatch,
    order: Order,
    schedule: Schedule,
    revision: Revision | None = None,
    on_step: StepCallback | None = None,
    sampler: TokenSampler | None = None,
    is_ended: EndCheck | None = None,
    on_filled: Callable[[float], None] = lambda share: None,
) -> DecodeState:
    """Fill one batch. on_filled: called with the share of all positions that are filled, where the host knows it."""
    revision, shared = revision or NoRevision(), model.context(batch.canvases)
    state = DecodeState(model, batch, shared, sampler)
    is_final = isinstance(revision, NoRevision)
    is_ended = is_ended if is_final and isinstance(schedule, Blocks) else None
    if isinstance(schedule, FixedSchedule) and is_final and on_step is None and is_ended is None:
        _run_fixed(state, order, schedule, shared_first_step(model, batch, shared, order), on_filled)
    else:
        _run_adaptive(state, order, schedule, revision, on_step, is_ended)
    del state.context  # frees what the model has cached: a caller may keep the state while it fills the next batch
    return state


def _run_fixed(
    state: DecodeState,
    order: Order,
    schedule: FixedSchedule,
    first_step: Tensor | None,
    on_filled: Callable[[float], None],
) -> None:
    """Fill everything. The host knows how many positions every step fills.

    first_step: the hidden states of the first step, if they are known.
    """
    state.drop_finished(state.remaining)
    positions_in_all, filled = max(1, int(state.total.sum())), 0
    while len(state.remaining):
        total, step = state.total[: len(state.remaining)], state.step + 1
        counts = schedule.counts(state.remaining, total, step).clip(1, state.remaining)
        positions, logits = predict_first_ranked(state, order, schedule, counts, first_step)
        state.fill(positions, *state.choose(logits, positions))
        state.drop_finished(state.remaining - counts)
        first_step = None
        filled += int(counts.sum())
        on_filled(filled / positions_in_all)


def shared_first_step(model: Model, batch: DecodeBatch, shared: Context, order: Order) -> Tensor | None:
    """Before the first step, all copies of a canvas are identical: run it once, with the context that they share.

    The hidden states of all copies; None if there are no copies, the order needs nothing, or a canvas has no mask.
    """
    if batch.copies == 1 or order.needs == "nothing":
        return None
    packed = batch.canvases.packed
    rows = np.flatnonzero(batch.canvases.masked(model.mask_token))
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
    is_ended: EndCheck | None,
) -> None:
    """Fill everything. After every step the host asks the device what is still masked."""
    revises, everywhere = not isinstance(revision, NoRevision), revision.needs_current_logprobs
    if revises:
        whole.keep_history()
    unfinished = np.flatnonzero(whole.remaining)
    if not len(unfinished):
        return
    state, schedule = whole.select(unfinished), schedule.start()
    within = None if revises or on_step else schedule
    with_logits = everywhere or on_step is not None or schedule.needs_logits
    finished = np.zeros(len(whole.lengths), np.int64)
    last_revision = np.array([revision.last_step(length) for length in whole.lengths.tolist()])
    while len(unfinished):
        output = forward_step(state, order, within, with_logits, everywhere)
        positions = _positions(state, schedule, output, ranking_scores(order, schedule, output.view))
        tokens, logprobs = state.choose(output.logits_at(state.model, positions), positions)
        state.fill(positions, tokens, logprobs)
        if on_step:
            on_step(state.canvases, output, positions, tokens, logprobs)
        if revises:
            _revise(state, revision, state.step <= last_revision[state.canvases], output.current_logprobs)
        state.remaining = state.view().masked.sum(1).cpu().numpy()
        if is_ended and isinstance(schedule, Blocks):
            _end(state, schedule, finished, is_ended)
        unfinished = np.flatnonzero(state.remaining)
        if len(unfinished) < len(state.remaining):
            whole.absorb(state)
            if len(unfinished):
                state = state.select(unfinished)
                schedule.keep(to_device(unfinished, state.model.device))


def _end(state: DecodeState, schedule: Blocks, finished: np.ndarray, is_ended: EndCheck) -> None:
    """Regard canvases as complete that end with a block that is finished.

    finished: (all canvases,) how many positions of each lie in finished blocks; what this step finished is added.
    """
    now = schedule.finished(state.view()).sum(1).cpu().numpy()
    longer = np.flatnonzero((now > finished[state.canvases]) & (state.remaining > 0))
    finished[state.canvases] = now
    if len(longer):
        tokens = state.padded_tokens()[to_device(longer, state.model.device)].cpu().numpy()
        for row, ids in zip(longer.tolist(), tokens, strict=True):
            if is_ended(int(state.canvases[row]), ids[: now[row]]):
                state.remaining[row] = 0


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


def forward_step(
    state: DecodeState,
    order: Order,
    schedule: Schedule | None = None,
    with_logits: bool = False,
    everywhere: bool = False,
    known: Tensor | None = None,
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
        sampled=state.sampled(logits, masked),
        opening=opening,
    )
    return StepOutput(view, masked, hidden, logits, current)


def reach(order: Order, schedule: Schedule, state: DecodeState) -> np.ndarray | None:
    """(B,) how many masked positions, from the left, the step needs in each canvas; None for all."""
    if not (order.is_local or order.needs == "nothing"):
        return None
    return schedule.reach(state.remaining, state.total[: len(state.remaining)], state.view())


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
    output = forward_step(state, order, schedule, known=known)
    positions = state.best_positions(ranking_scores(order, schedule, output.view), counts)
    return positions, output.logits_at(state.model, positions)

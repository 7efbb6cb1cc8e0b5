"""Beam search: fill several hypotheses per canvas in parallel, and keep only the best of their children.

A step fills one position of every hypothesis, so the hypotheses of a canvas have the same number of tokens and their
summed log-probabilities are comparable. All hypotheses of all canvases share one forward pass per step, the host never
waits for the device inside the loop, and no canvas depends on its batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from anyorder.decoding.beam_candidates import Candidates, expand, select_best
from anyorder.decoding.engine import canvas_batches, default_batch_tokens, shared_first_step
from anyorder.decoding.revision import NoRevision, Revision
from anyorder.decoding.schedules import Constant, Schedule
from anyorder.decoding.state import DecodeBatch, DecodeState, Hypothesis
from anyorder.errors import InputError
from anyorder.models.base import Canvas, Context, Model
from anyorder.orders.base import Order
from anyorder.registry import is_count

MAX_SIZE = 4096
JOINT_ORDER = "max-prob"
"""The order that a beam of size 1 over positions and tokens amounts to."""


@dataclass(frozen=True)
class Beam:
    """How many hypotheses to keep per canvas, and how their children differ. With size 1, decoding is greedy."""

    size: int = 1
    over: Literal["tokens", "positions", "joint"] = "tokens"
    """tokens: those at the position that the order ranks first. positions: those that it ranks first, with the
    best token at each. joint: both at once, regardless of the order."""

    @property
    def name(self) -> str:
        return str(self.size) if self.over == "tokens" else f"{self.over}:{self.size}"

    def check(self, order: str | None, schedule: Schedule, revision: Revision) -> None:
        """An `InputError` unless beam search supports these. order: its name, None if none was chosen."""
        if self.over == "joint" and order not in (None, JOINT_ORDER):
            raise self.error(f"chooses positions by their probability, so the order must be {JOINT_ORDER}")
        if self.size > 1 and not isinstance(revision, NoRevision):
            raise self.error("does not go together with a revision")
        if self.size > 1 and not (isinstance(schedule, Constant) and schedule.size == 1):
            raise self.error("fills one position per step, so the schedule must be one")

    def error(self, problem: str) -> InputError:
        return InputError(f"{self.name}: {problem}", "beam")


def make_beam(beam: int | str | Beam) -> Beam:
    """The beam of that name: a number of hypotheses, `positions:N` or `joint:N`."""
    if isinstance(beam, Beam):
        return beam
    over, _, size = str(beam).strip().rpartition(":")
    if not is_count(size) or int(size) > MAX_SIZE or over not in ("", "positions", "joint"):
        raise InputError(f"{beam}: expected a whole number from 1 to {MAX_SIZE}, positions:N or joint:N", "beam")
    return Beam(int(size), over or "tokens")  # type: ignore[arg-type]


def beam_search(
    model: Model,
    canvases: Sequence[Canvas],
    order: Order,
    beam: Beam,
    n_best: int = 1,
    batch_tokens: int | None = None,
    on_progress: Callable[[int], None] = lambda canvases: None,
) -> list[list[Hypothesis]]:
    """Fill every canvas; results come in the order of the canvases: the `n_best` hypotheses of each, best first.

    There are fewer if the beam holds fewer distinct ones. `batch_tokens` limits the number of target tokens decoded
    together, over all hypotheses; results do not depend on it.
    """
    batch_tokens = max(1, (batch_tokens or default_batch_tokens(model)) // beam.size)
    results: list[list[Hypothesis]] = [[] for _ in canvases]
    for chosen in canvas_batches(canvases, model.mask_token, Constant(1), batch_tokens):
        keys = np.array([canvases[i].key for i in chosen], np.int64)
        batch = DecodeBatch(model.pack([canvases[i] for i in chosen]), keys.repeat(beam.size), beam.size)
        found = iter(_search(model, batch, order, beam).hypotheses(n_best))
        for i in chosen:
            results[i] = next(found)
        on_progress(len(chosen))
    return results


@torch.inference_mode()
def _search(model: Model, batch: DecodeBatch, order: Order, beam: Beam) -> "_Beams":
    """Fill one batch."""
    shared = model.context(batch.canvases)
    copied = np.repeat(np.arange(len(batch.canvases.lengths)), beam.size)
    beams = _Beams(DecodeState(batch, model), shared.select(copied), beam.size)
    hidden_at = shared_first_step(shared, batch, order, model) if beams.state.remaining.all() else None
    beams.drop_finished(beams.state.remaining)
    step = 0
    while len(beams.state.remaining):
        step += 1
        children = expand(model, hidden_at or beams.context.hidden, beams.state, order, step, beam.over, beam.size)
        hidden_at = None
        beams.replace_by(children, model.vocab_size, step)
        beams.drop_finished(beams.state.remaining - 1)
    return beams


class _Beams:
    """The hypotheses of all canvases, grouped by canvas, best first.

    A canvas always has as many as the beam size. A score of -inf marks placeholders for missing ones: initially all but
    one, since an unfilled canvas has one hypothesis.
    """

    def __init__(self, state: DecodeState, context: Context, size: int):
        self.state, self.context, self._size = state, context, size
        device, canvases = state.tokens.device, len(state.lengths) // size
        self._scores = torch.full((canvases, size), -torch.inf, dtype=torch.float64, device=device)
        self._scores[:, 0].zero_()
        self._hashes = torch.zeros(canvases, size, dtype=torch.int64, device=device)

    def replace_by(self, children: Candidates, vocab_size: int, step: int) -> None:
        """Replace the parents with their best distinct children."""
        now = len(self.state.remaining) // self._size
        best = select_best(self._scores[:now], self._hashes[:now], children, vocab_size)
        self.state.adopt(best.parents)
        offsets = torch.arange(len(best.parents), device=best.parents.device) * self.state.width
        self.state.fill(offsets + best.positions, best.tokens, best.logprobs, step)
        self._scores[:now], self._hashes[:now] = best.scores, best.hashes

    def drop_finished(self, remaining: np.ndarray) -> None:
        """Keep only the unfinished canvases, which come before the finished ones."""
        unfinished = int(np.count_nonzero(remaining))
        if 0 < unfinished < len(remaining):
            self.context.keep_first(unfinished)
        self.state.drop_finished(remaining[:unfinished])

    def hypotheses(self, n_best: int) -> list[list[Hypothesis]]:
        """The best ones of every canvas, on the host."""
        exists: Tensor = self._scores != -torch.inf  # NaN counts as existing: the caller rejects it
        exists[:, 0] = True
        counts = exists.sum(1).clamp(max=n_best).tolist()
        filled = self.state.hypotheses()
        return [filled[i * self._size : i * self._size + count] for i, count in enumerate(counts)]

"""Rollouts: a frozen model fills sentences in orders sampled from a policy, and the policy's inputs are recorded.

The Transformer runs without gradients, so learning costs no more than decoding plus two small networks. Nothing
here knows about algorithms, returns or losses.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.data.packing import starts_of
from anyorder.decoding.engine import run_decoding
from anyorder.decoding.sampling import gumbel_noise
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.state import DecodeBatch
from anyorder.device import to_device
from anyorder.learning.rewards import Outcome, length_mask
from anyorder.memory import Halving
from anyorder.models.base import Model
from anyorder.models.native.attention import Segments
from anyorder.orders.base import Order, State
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyInputs, cat_present


@dataclass(frozen=True)
class OrderBatch:
    """Sentences to roll out, on the host."""

    sentences: DecodeBatch
    """Canvases, each as often as it is to be filled."""
    references: np.ndarray
    """(canvases, R) ids, padded."""
    reference_lengths: np.ndarray
    """(canvases,)"""

    def part(self, start: int, stop: int) -> "OrderBatch":
        """Some of the canvases, all copies of each."""
        whole, copies = self.sentences, self.sentences.copies
        canvases = whole.canvases.take(np.arange(start, stop))
        sentences = DecodeBatch(canvases, whole.keys[start * copies : stop * copies], copies)
        return OrderBatch(sentences, self.references[start:stop], self.reference_lengths[start:stop])


@dataclass(frozen=True)
class Decisions:
    """D choices between two or more masked positions, of all rollouts, step by step. Forced choices are left out."""

    inputs: PolicyInputs
    """(rows,) the policy's inputs at the masked positions, decision by decision."""
    segments: Segments
    """How many rows each decision has."""
    positions: Tensor
    """(rows,) int64: the index of each row in the flattened (D, T)."""
    width: int
    """T"""
    chosen: Tensor
    """(D,) the position that was filled."""
    rollout: np.ndarray
    """(D,) the index of the rollout, on the host."""
    step: Tensor
    """(D,) from 0."""
    opening: Tensor | None
    """(D, hidden_size) what the value network sees: the delimiter before the target."""
    reference: Tensor | None
    """(D, T) log-probabilities of a reference order."""

    @property
    def target_lengths(self) -> Tensor:
        """(D,) T of each decision's sentence: masked positions plus those filled before, one per step."""
        return self.segments.cu_seqlens.diff() + self.step

    def select(self, numbers: np.ndarray) -> "Decisions":
        """Some of the decisions, by number."""
        assert self.segments.lengths is not None
        device = self.chosen.device
        counts = self.segments.lengths[numbers]
        segments, index = Segments.of(counts, device), to_device(numbers, device)
        total = int(counts.sum())
        decision = torch.arange(len(numbers), device=device)
        decision = decision.repeat_interleave(to_device(counts, device), output_size=total)
        shift = (self.segments.cu_seqlens[index] - segments.cu_seqlens[:-1])[decision]
        rows = torch.arange(total, device=device) + shift
        return Decisions(
            inputs=self.inputs[rows],
            segments=segments,
            positions=decision * self.width + self.positions[rows] % self.width,
            width=self.width,
            chosen=self.chosen[index],
            rollout=self.rollout[numbers],
            step=self.step[index],
            opening=None if self.opening is None else self.opening[index],
            reference=None if self.reference is None else self.reference[index],
        )

    @classmethod
    def cat(cls, parts: Sequence["Decisions"], rollouts: Sequence[int]) -> "Decisions":
        """The decisions of all parts of a batch, as if it had been rolled out at once. rollouts: of each part."""
        width = max(part.width for part in parts)
        lengths = [part.segments.lengths for part in parts]
        counts = np.concatenate([own for own in lengths if own is not None])
        first = starts_of(np.array([len(part.chosen) for part in parts]))
        positions = [
            (part.positions // part.width + start) * width + part.positions % part.width
            for part, start in zip(parts, first.tolist(), strict=True)
        ]
        before = starts_of(np.array(rollouts))
        rollout = np.concatenate([part.rollout + start for part, start in zip(parts, before, strict=True)])
        references = [part.reference for part in parts]
        step = torch.cat([part.step for part in parts])
        together = cls(
            inputs=PolicyInputs.cat([part.inputs for part in parts]),
            segments=Segments.of(counts, step.device),
            positions=torch.cat(positions),
            width=width,
            chosen=torch.cat([part.chosen for part in parts]),
            rollout=rollout,
            step=step,
            opening=cat_present([part.opening for part in parts]),
            reference=cat_present([_wider(one, width, -torch.inf) for one in references if one is not None]),
        )
        return together.select(np.lexsort((rollout, step.cpu().numpy())))  # step by step


def _wider(values: Tensor, width: int, value: float = 0) -> Tensor:
    """(N, T) to (N, width)"""
    return F.pad(values, (0, width - values.shape[1]), value=value)


@dataclass(frozen=True)
class _StepRecord:
    """What one step recorded for the sentences in which there was a choice."""

    inputs: PolicyInputs
    counts: np.ndarray
    """Masked positions of each sentence, on the host."""
    where: Tensor
    """Those positions, as in `State`."""
    opening: Tensor | None
    reference: Tensor | None


class SamplingOrder(Order):
    """Samples from a learned order's distribution by adding Gumbel noise to its scores, and records what it saw."""

    def __init__(
        self,
        order: LearnedOrder,
        with_opening: bool,
        reference: Order | None = None,
        reference_scale: float = 1.0,
        on_step: Callable[[int, int], None] = lambda step, most: None,
    ):
        """on_step: called before every step but the first with the steps done and the most that a sentence takes."""
        self.name = f"sampled {order.name}"
        self._order, self._reference, self._reference_scale = order, reference, reference_scale
        self.needs = order.needs if reference is None or reference.needs in ("nothing", order.needs) else "both"
        self.needs_opening = with_opening
        self._records: list[_StepRecord] = []
        self._on_step = on_step

    def without_records(self) -> "SamplingOrder":
        """The same order, which has seen nothing yet."""
        sampler = copy(self)
        sampler._records = []
        return sampler

    def scores(self, state: State) -> Tensor:
        assert state.segments is not None
        assert state.segments.lengths is not None
        assert state.where is not None
        if self._records:
            self._on_step(len(self._records), int(self._records[0].counts[0]))
        inputs = self._order.inputs(state)
        scores = state.spread(self._order.network(inputs, state.segments))
        counts = state.segments.lengths
        choices = int(np.count_nonzero(counts > 1))  # the longest come first: those with a choice are a prefix
        rows = int(counts[:choices].sum())
        reference = None
        if self._reference is not None:
            reference = self._reference_scale * self._reference.scores(state)[:choices]
            reference = reference.masked_fill(~state.masked[:choices], -torch.inf).log_softmax(1)
        opening = None if state.opening is None else state.opening[:choices]
        self._records.append(_StepRecord(inputs[:rows], counts[:choices], state.where[:rows], opening, reference))
        # The largest of scores plus Gumbel noise is a sample of their softmax. The noise is a hash of the sentence's
        # key, the position and the step, so a rollout does not depend on its batch. It also decides between equal
        # scores, where decoding takes the leftmost position.
        return scores + gumbel_noise(state.keys, state.positions + (state.step << 20))

    def decisions(self, steps: Tensor, lengths: Tensor) -> Decisions:
        """All decisions. steps: (N, T) the step at which decoding with this order filled each position."""
        records, (_, width), device = self._records, steps.shape, steps.device
        was_masked = length_mask(lengths, width) & (steps > 0)  # what was given is never chosen
        position_at = steps.masked_fill(~was_masked, width + 1).argsort(dim=1)
        counts = np.array([len(record.counts) for record in records])
        rollout = np.concatenate([np.arange(count) for count in counts])
        step = to_device(np.repeat(np.arange(len(counts)), counts), device)
        first_decisions = zip(records, starts_of(counts).tolist(), strict=True)
        return Decisions(
            inputs=PolicyInputs.cat([record.inputs for record in records]),
            segments=Segments.of(np.concatenate([record.counts for record in records]), device),
            positions=torch.cat([record.where + first * width for record, first in first_decisions]),
            width=width,
            chosen=position_at[to_device(rollout, device), step],
            rollout=rollout,
            step=step,
            opening=cat_present([record.opening for record in records]),
            reference=cat_present([record.reference for record in records]),
        )


def roll_out(
    model: Model, batch: OrderBatch, sampler: SamplingOrder, halving: Halving | None = None
) -> tuple[Decisions, Outcome]:
    """Fill every sentence, one position per step. Where memory is too small for all, it takes fewer at a time; the
    result is the same. halving: remembers how many."""
    numbers = range(len(batch.reference_lengths))

    def run(part: Sequence[int]) -> tuple[Decisions, Outcome]:
        own = batch if len(part) == len(numbers) else batch.part(part[0], part[-1] + 1)
        return _roll_out(model, own, sampler.without_records())

    parts = (halving or Halving()).run(numbers, run)
    if len(parts) == 1:
        return parts[0]
    decisions, outcomes = zip(*parts, strict=True)
    width = max(outcome.ids.shape[1] for outcome in outcomes)
    together = {
        field.name: torch.cat(
            [
                _wider(getattr(one, field.name), width) if field.name in _BY_POSITION else getattr(one, field.name)
                for one in outcomes
            ]
        )
        for field in fields(Outcome)
    }
    return Decisions.cat(decisions, [len(outcome.lengths) for outcome in outcomes]), Outcome(**together)


_BY_POSITION = ("ids", "steps", "logprobs")
"""The fields of an `Outcome` that have the width of the longest sentence of its batch."""


def _roll_out(model: Model, batch: OrderBatch, sampler: SamplingOrder) -> tuple[Decisions, Outcome]:
    state = run_decoding(model, batch.sentences, sampler, make_schedule("one"))
    ids, steps, logprobs = (value.clone() for value in state.results())
    lengths = to_device(state.lengths, model.device)
    copies, canvases = batch.sentences.copies, batch.sentences.canvases
    languages = canvases.packed.languages[canvases.starts]
    outcome = Outcome(
        ids=ids,
        lengths=lengths,
        references=to_device(batch.references, model.device).repeat_interleave(copies, 0),
        reference_lengths=to_device(batch.reference_lengths, model.device).repeat_interleave(copies, 0),
        steps=steps,
        logprobs=logprobs,
        languages=to_device(languages, model.device).repeat_interleave(copies, 0),
    )
    return sampler.decisions(steps, lengths), outcome


def edge_fills(outcome: Outcome) -> Tensor:
    """(N, T) bool: the position was the leftmost or the rightmost masked one when it was filled.

    It was the leftmost if nothing to its left was filled later.
    """
    steps = outcome.steps.masked_fill(~outcome.inside, 0)
    from_left = steps.cummax(1).values
    from_right = steps.flip(1).cummax(1).values.flip(1)
    return ((steps == from_left) | (steps == from_right)) & outcome.to_fill

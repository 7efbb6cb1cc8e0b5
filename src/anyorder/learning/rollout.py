"""Rollouts: a frozen model fills sentences in orders sampled from a policy, and the policy's inputs are recorded.

The Transformer runs without gradients, so learning costs no more than decoding plus two small networks. Nothing
here knows about algorithms, returns or losses.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.data.packing import ranges, starts_of
from anyorder.decoding.engine import run_decoding
from anyorder.decoding.sampling import gumbel_noise
from anyorder.decoding.schedules import ONE, AdaptiveSchedule
from anyorder.decoding.state import DecodeBatch
from anyorder.device import to_device
from anyorder.learning.rewards import Outcome, length_mask
from anyorder.memory import Halving
from anyorder.models.base import Model
from anyorder.models.native.attention import Segments
from anyorder.orders.base import Order, State
from anyorder.orders.heuristics import hash_uniform
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
    speeds: np.ndarray | None = None
    """(canvases,) from 0 to 1, for a policy that decides how many positions a step fills."""

    def rollout_speeds(self, device: torch.device) -> Tensor | None:
        """(rollouts,) float32: that of each copy of a canvas."""
        if self.speeds is None:
            return None
        return to_device(self.speeds.astype(np.float32).repeat(self.sentences.copies), device)

    def part(self, start: int, stop: int) -> "OrderBatch":
        """Some of the canvases, all copies of each."""
        whole, copies = self.sentences, self.sentences.copies
        canvases = whole.canvases.take(np.arange(start, stop))
        sentences = DecodeBatch(canvases, whole.keys[start * copies : stop * copies], copies)
        speeds = None if self.speeds is None else self.speeds[start:stop]
        return OrderBatch(sentences, self.references[start:stop], self.reference_lengths[start:stop], speeds)


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
    """(D,) the position that was filled; the leftmost if there were several."""
    filled: Tensor | None
    """(rows,) bool: whether each row's position was filled, if the policy decides how many; else None."""
    rollout: np.ndarray
    """(D,) the index of the rollout, on the host."""
    step: Tensor
    """(D,) from 0."""
    opening: Tensor | None
    """(D, hidden_size) what the value network sees: the delimiter before the target."""
    reference: Tensor | None
    """(D, T) log-probabilities of a reference order."""
    target_lengths: Tensor
    """(D,) T of each decision's sentence: how many positions were masked at first."""

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
            filled=None if self.filled is None else self.filled[rows],
            rollout=self.rollout[numbers],
            step=self.step[index],
            opening=None if self.opening is None else self.opening[index],
            reference=None if self.reference is None else self.reference[index],
            target_lengths=self.target_lengths[index],
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
        references = [part.reference for part in parts if part.reference is not None]
        step = torch.cat([part.step for part in parts])
        together = cls(
            inputs=PolicyInputs.cat([part.inputs for part in parts]),
            segments=Segments.of(counts, step.device),
            positions=torch.cat(positions),
            width=width,
            chosen=torch.cat([part.chosen for part in parts]),
            filled=cat_present([part.filled for part in parts]),
            rollout=rollout,
            step=step,
            target_lengths=torch.cat([part.target_lengths for part in parts]),
            opening=cat_present([part.opening for part in parts]),
            reference=_together(references, -torch.inf) if references else None,
        )
        return together.select(np.lexsort((rollout, step.cpu().numpy())))  # step by step


def _together(values: Sequence[Tensor], empty: float = 0) -> Tensor:
    """Tensors one after another; those of shape (N, T) become as wide as the widest."""
    width = max(one.shape[-1] for one in values)
    return torch.cat([F.pad(one, (0, width - one.shape[1]), value=empty) if one.dim() == 2 else one for one in values])


class LogProbs(NamedTuple):
    """What the policy says at D decisions; -inf where nothing may be filled."""

    order: Tensor
    """log P_pol: (D, T)"""
    accept: Tensor | None
    """log a_j / (1 - a_j): (D, T), if the policy decides how many positions to fill."""

    def of_chosen(self, decisions: Decisions) -> Tensor:
        """(D,) log P of what was filled: of the position p_i, or of the set of positions."""
        chosen = decisions.chosen[:, None]
        of_position = self.order.gather(1, chosen).squeeze(1)
        if self.accept is None:
            return of_position
        assert decisions.filled is not None
        filled = torch.zeros_like(self.accept, dtype=torch.bool)
        filled.view(-1).index_copy_(0, decisions.positions, decisions.filled)
        odds = self.accept.masked_fill(self.accept == -torch.inf, _NEVER)
        none = F.logsigmoid(-odds).sum(1)
        one = none + torch.logaddexp(of_position, odds.gather(1, chosen).squeeze(1))
        # Each accepted position turns a factor 1 - a_j into a_j.
        return torch.where(filled.sum(1) == 1, one, none + (odds * filled).sum(1))

    def entropies(self) -> Tensor:
        """(D,) in nats: of the position to fill next, and of every decision to accept one."""
        # 0 log 0 is 0: positions that are not masked have log-probability -inf.
        entropy = -(self.order.exp() * self.order.masked_fill(self.order == -torch.inf, 0.0)).sum(1)
        if self.accept is None:
            return entropy
        odds = self.accept.masked_fill(self.accept == -torch.inf, _NEVER)
        yes, no = F.logsigmoid(odds), F.logsigmoid(-odds)
        return no.sum(1).exp() * entropy - (yes.exp() * yes + no.exp() * no).sum(1)


_NEVER = -1e4
"""Log-odds of what never happens, whose multiples are finite."""


@dataclass(frozen=True)
class _StepRecord:
    """What one step recorded for the sentences in which there was a choice."""

    inputs: PolicyInputs
    counts: np.ndarray
    """Masked positions of each sentence, on the host."""
    rollouts: np.ndarray
    """The rollout of each sentence, on the host."""
    where: Tensor
    """Those positions, as indices into the flattened (sentences, T)."""
    opening: Tensor | None
    reference: Tensor | None


class SamplingOrder(Order):
    """Samples from a learned order's distribution by adding Gumbel noise to its scores, and records what it saw.

    A policy that decides how many positions to fill also needs the schedule `SampledCount`.
    """

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
        self.decides_count = order.network.config.decides_count
        self._order, self._reference, self._reference_scale = order, reference, reference_scale
        self.needs = order.needs if reference is None or reference.needs in ("nothing", order.needs) else "both"
        self.needs_opening = with_opening
        self._records: list[_StepRecord] = []
        self._on_step = on_step
        self._rollouts = np.zeros(0, np.int64)
        self._speeds: Tensor | None = None
        self.accept: Tensor | None = None
        """(B, T) the log-odds that a position is filled in this step, if the policy decides how many."""

    def started(self, rollouts: int, speeds: Tensor | None) -> "SamplingOrder":
        """The same order, which has seen nothing yet, for a batch of so many rollouts.

        speeds: (rollouts,), if the policy decides how many positions to fill.
        """
        sampler = copy(self)
        sampler._records, sampler._rollouts, sampler._speeds = [], np.arange(rollouts), speeds
        return sampler

    def keep(self, sentences: Tensor) -> None:
        """Of the sentences, only these are unfinished, by index."""
        self._rollouts = self._rollouts[sentences.cpu().numpy()]
        if self._speeds is not None:
            self._speeds = self._speeds[sentences]

    def scores(self, state: State) -> Tensor:
        assert state.segments is not None
        assert state.segments.lengths is not None
        assert state.where is not None
        if self._records:
            self._on_step(len(self._records), int(self._records[0].counts[0]))
        inputs = self._order.inputs(state)
        if self._speeds is not None:
            inputs = replace(inputs, speed=self._speeds[state.where // state.masked.shape[1]])
        said = self._order.network(inputs, state.segments)
        self.accept = None if said.accept is None else state.spread(said.accept)
        counts = state.segments.lengths
        choices = np.flatnonzero(counts > 1)
        rows = ranges(starts_of(counts)[choices], counts[choices])
        some, at = _index(choices, state.where.device), _index(rows, state.where.device)
        where = state.where[at]
        if not isinstance(some, slice):  # the sentences without a choice are left out of the flattened (sentences, T)
            width = state.masked.shape[1]
            moved = to_device((np.arange(len(choices)) - choices).repeat(counts[choices]), where.device)
            where = where + moved * width
        reference = None
        if self._reference is not None:
            reference = self._reference_scale * self._reference.scores(state)[some]
            reference = reference.masked_fill(~state.masked[some], -torch.inf).log_softmax(1)
        opening = None if state.opening is None else state.opening[some]
        record = _StepRecord(inputs[at], counts[choices], self._rollouts[choices], where, opening, reference)
        self._records.append(record)
        # The largest of scores plus Gumbel noise is a sample of their softmax. The noise is a hash of the sentence's
        # key, the position and the step, so a rollout does not depend on its batch. It also decides between equal
        # scores, where decoding takes the leftmost position.
        return state.spread(said.order) + gumbel_noise(state.keys, state.positions + (state.step << 20))

    def decisions(self, steps: Tensor, lengths: Tensor) -> Decisions:
        """All decisions. steps: (N, T) the step at which decoding with this order filled each position."""
        records, (_, width), device = self._records, steps.shape, steps.device
        was_masked = length_mask(lengths, width) & (steps > 0)  # what was given is never chosen
        counts = np.array([len(record.counts) for record in records])
        rollout = np.concatenate([record.rollouts for record in records])
        of_rollout = to_device(rollout, device)
        step = to_device(np.repeat(np.arange(len(counts)), counts), device)
        first_decisions = zip(records, starts_of(counts).tolist(), strict=True)
        positions = torch.cat([record.where + first * width for record, first in first_decisions])
        filled_at = steps.masked_fill(~was_masked, 0)[of_rollout]  # (D, T)
        is_filled = filled_at == step[:, None] + 1
        return Decisions(
            inputs=PolicyInputs.cat([record.inputs for record in records]),
            segments=Segments.of(np.concatenate([record.counts for record in records]), device),
            positions=positions,
            width=width,
            chosen=is_filled.long().argmax(1),
            filled=is_filled.flatten()[positions] if self.decides_count else None,
            rollout=rollout,
            step=step,
            opening=cat_present([record.opening for record in records]),
            reference=cat_present([record.reference for record in records]),
            target_lengths=was_masked.sum(1)[of_rollout],
        )


def _index(numbers: np.ndarray, device: torch.device) -> slice | Tensor:
    """Ascending indices; a slice if they are a prefix, as where the longest sentences come first: nothing is copied."""
    is_prefix = len(numbers) == 0 or numbers[-1] == len(numbers) - 1
    return slice(len(numbers)) if is_prefix else to_device(numbers, device)


class SampledCount(AdaptiveSchedule):
    """Fills each position with the probability that the policy of a `SamplingOrder` gives it."""

    def __init__(self, sampler: SamplingOrder):
        self._sampler = sampler

    def accept(self, state: State, scores: Tensor) -> Tensor:
        accept = self._sampler.accept
        assert accept is not None
        uniform = hash_uniform(state.keys, _ACCEPTING + (state.step << 20) + state.positions)
        return uniform < accept.sigmoid()

    def keep(self, canvases: Tensor) -> None:
        self._sampler.keep(canvases)


_ACCEPTING = 1 << 62
"""An offset that keeps this noise apart from other noise."""


def roll_out(
    model: Model, batch: OrderBatch, sampler: SamplingOrder, halving: Halving | None = None
) -> tuple[Decisions, Outcome]:
    """Fill every sentence: one position per step, or as many as the policy decides. Where memory is too small for all,
    it takes fewer at a time; the result is the same. halving: remembers how many."""
    numbers = range(len(batch.reference_lengths))

    def run(part: Sequence[int]) -> tuple[Decisions, Outcome]:
        own = batch if len(part) == len(numbers) else batch.part(part[0], part[-1] + 1)
        return _roll_out(model, own, sampler)

    parts = (halving or Halving()).run(numbers, run)
    if len(parts) == 1:
        return parts[0]
    decisions, outcomes = zip(*parts, strict=True)
    together = {one.name: _together([getattr(outcome, one.name) for outcome in outcomes]) for one in fields(Outcome)}
    return Decisions.cat(decisions, [len(outcome.lengths) for outcome in outcomes]), Outcome(**together)


def _roll_out(model: Model, batch: OrderBatch, sampler: SamplingOrder) -> tuple[Decisions, Outcome]:
    sampler = sampler.started(len(batch.sentences.keys), batch.rollout_speeds(model.device))
    schedule = SampledCount(sampler) if sampler.decides_count else ONE
    state = run_decoding(model, batch.sentences, sampler, schedule)
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

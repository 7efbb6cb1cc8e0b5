"""Rollouts: a frozen model fills sentences in orders drawn from a policy; what its two small networks saw is kept.

The Transformer runs without gradients, so learning costs no more than decoding and two small networks.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.data.packing import starts_of
from anyorder.decoding.engine import DecodeBatch, fill
from anyorder.decoding.schedules import Fixed
from anyorder.models.attention import Segments, to_device
from anyorder.models.transformer import Linear
from anyorder.models.translation import TranslationModel
from anyorder.orders.base import Order, State
from anyorder.orders.fixed import hash_uniform
from anyorder.orders.learned import LearnedOrder, PolicyInputs, PolicyNetwork
from anyorder.training.rewards import Outcome, first


class ActorCritic(nn.Module):
    """The policy network, and beside it the value network where an algorithm wants one (paper, section 3.2)."""

    def __init__(self, scorer: PolicyNetwork, with_value: bool):
        super().__init__()
        self.scorer = scorer
        width = scorer.width
        self.value = nn.Sequential(Linear(width, width), nn.LeakyReLU(0.1), Linear(width, 1)) if with_value else None

    def log_probs(self, made: "Decisions") -> Tensor:
        """(D, T) log-probability of every position at every decision; -inf where nothing may be filled."""
        scores = torch.full((len(made.chosen) * made.width,), -torch.inf, device=made.chosen.device)
        scores = scores.index_copy(0, made.places, self.scorer(made.inputs, made.segments))
        return scores.view(-1, made.width).log_softmax(1)

    def values(self, made: "Decisions") -> Tensor:
        """(D,) what the value network expects."""
        assert self.value is not None
        assert made.opening is not None
        half = made.opening.dtype == torch.bfloat16
        with torch.autocast(made.opening.device.type, torch.bfloat16, enabled=half):
            return self.value(made.opening).squeeze(1).float()


@dataclass(frozen=True)
class Decisions:
    """D choices between two or more masked positions, of all rollouts, step by step. Last, forced choices are none."""

    inputs: PolicyInputs
    """(rows,) what was known of the masked positions, decision after decision."""
    segments: Segments
    """How many rows each decision has."""
    places: Tensor
    """(rows,) int64: where each row stands in the flattened (D, T)."""
    width: int
    """T"""
    chosen: Tensor
    """(D,) the position that was filled."""
    rollout: Tensor
    """(D,) whose decision it is."""
    owners: np.ndarray
    """The same, on the host."""
    step: Tensor
    """(D,) from 0."""
    opening: Tensor | None
    """(D, width of the model) what the value network reads: the delimiter before the target."""
    reference: Tensor | None
    """(D, T) log-probabilities of a reference order."""

    def only(self, which: np.ndarray) -> "Decisions":
        """Some of them, by number."""
        assert self.segments.lengths is not None
        device = self.chosen.device
        counts = self.segments.lengths[which]
        segments, at = Segments.of(counts, device), to_device(which, device)
        rows = int(counts.sum())
        number = torch.arange(len(which), device=device)
        number = number.repeat_interleave(to_device(counts, device), output_size=rows)
        moved = (self.segments.cu_seqlens[at] - segments.cu_seqlens[:-1])[number]
        old = torch.arange(rows, device=device) + moved
        return Decisions(
            inputs=self.inputs[old],
            segments=segments,
            places=number * self.width + self.places[old] % self.width,
            width=self.width,
            chosen=self.chosen[at],
            rollout=self.rollout[at],
            owners=self.owners[which],
            step=self.step[at],
            opening=None if self.opening is None else self.opening[at],
            reference=None if self.reference is None else self.reference[at],
        )


@dataclass(frozen=True)
class _Seen:
    """What one step showed of the sentences in which there was a choice."""

    inputs: PolicyInputs
    counts: np.ndarray
    """Masked positions of each, on the host."""
    where: Tensor
    """Those positions, as in `State`."""
    opening: Tensor | None
    reference: Tensor | None


class SamplingOrder(Order):
    """Draws from a learned order's distribution by adding Gumbel noise to its scores, and keeps what it saw."""

    def __init__(
        self, order: LearnedOrder, with_opening: bool, reference: Order | None = None, init_scale: float = 1.0
    ):
        self.name = f"sampled {order.name}"
        self._order, self._reference, self._sharpness = order, reference, init_scale
        self.needs = order.needs if reference is None or reference.needs in ("nothing", order.needs) else "both"
        self.wants_opening = with_opening
        self._seen: list[_Seen] = []

    def scores(self, state: State) -> Tensor:
        assert state.segments is not None
        assert state.segments.lengths is not None
        assert state.where is not None
        inputs = self._order.inputs(state)
        scores = state.spread(self._order.scorer(inputs, state.segments))
        counts = state.segments.lengths
        choices = int(np.count_nonzero(counts > 1))  # the longest come first: those with a choice are a prefix
        rows = int(counts[:choices].sum())
        reference = None
        if self._reference is not None:
            reference = self._sharpness * self._reference.scores(state)[:choices]
            reference = reference.masked_fill(~state.masked[:choices], -torch.inf).log_softmax(1)
        opening = None if state.opening is None else state.opening[:choices]
        self._seen.append(_Seen(inputs[:rows], counts[:choices], state.where[:rows], opening, reference))
        drawn = hash_uniform(state.keys, state.positions + (state.step << 20))
        return scores - (-(drawn + 2.0**-25).log()).log()

    def decisions(self, steps: Tensor, lengths: Tensor) -> Decisions:
        """All of them. steps: (N, T) when each position was filled, by the engine that asked for the scores."""
        width = steps.shape[1]
        position_at = steps.masked_fill(~first(lengths, width), width + 1).argsort(dim=1)
        number = np.array([len(seen.counts) for seen in self._seen])
        openings = [seen.opening for seen in self._seen if seen.opening is not None]
        references = [seen.reference for seen in self._seen if seen.reference is not None]
        step = np.repeat(np.arange(len(number)), number)
        rollout = np.concatenate([np.arange(one) for one in number])
        step_tensor, rollout_tensor = to_device(step, steps.device), to_device(rollout, steps.device)
        return Decisions(
            inputs=PolicyInputs.end_to_end([seen.inputs for seen in self._seen]),
            segments=Segments.of(np.concatenate([seen.counts for seen in self._seen]), steps.device),
            places=torch.cat(
                [seen.where + start * width for seen, start in zip(self._seen, starts_of(number).tolist(), strict=True)]
            ),
            width=width,
            chosen=position_at[rollout_tensor, step_tensor],
            rollout=rollout_tensor,
            owners=rollout,
            step=step_tensor,
            opening=torch.cat(openings) if openings else None,
            reference=torch.cat(references) if references else None,
        )


def roll_out(
    model: TranslationModel,
    work: DecodeBatch,
    sampler: SamplingOrder,
    references: np.ndarray,
    reference_lengths: np.ndarray,
) -> tuple[Decisions, Outcome]:
    """Fill every target once, one position a step. references: (sentences, R) padded ids."""
    canvas = fill(model, work, sampler, Fixed(1))
    ids, steps, logprobs = (value.clone() for value in canvas.finished())
    lengths = to_device(canvas.lengths, model.device)
    copies = work.copies
    outcome = Outcome(
        ids=ids,
        lengths=lengths,
        references=to_device(references, model.device).repeat_interleave(copies, 0),
        reference_lengths=to_device(reference_lengths, model.device).repeat_interleave(copies, 0),
        steps=steps,
        logprobs=logprobs,
    )
    return sampler.decisions(steps, lengths), outcome


def edges(steps: Tensor, lengths: Tensor) -> Tensor:
    """(N, T) bool: the position was the leftmost or the rightmost masked one when it was filled.

    It was the leftmost if nothing to its left came later.
    """
    inside = first(lengths, steps.shape[1])
    steps = steps.masked_fill(~inside, 0)
    from_left = steps.cummax(1).values
    from_right = steps.flip(1).cummax(1).values.flip(1)
    return ((steps == from_left) | (steps == from_right)) & inside

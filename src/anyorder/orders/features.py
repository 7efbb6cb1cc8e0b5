"""What a policy network sees at the masked positions: hidden states and features of the model's predictions.

The features do not depend on words or language, so an order that uses only them works with any model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.models.base import log_total, restrict, row_sums
from anyorder.orders.base import State

FEATURES = (
    "best", "margin", "entropy", "mask", "lead", "twin left", "twin right", "same left", "same right",
    "from left", "from right", "share masked", "filled left", "filled right", "leftmost", "rightmost",
    "gap left", "gap right",
)  # fmt: skip
"""The features of a masked position; see `extract_features` for each."""


@dataclass(frozen=True)
class PolicyInputs:
    """The policy network's inputs for M masked positions."""

    hidden: Tensor | None
    """(M, hidden_size)"""
    features: Tensor | None
    """(M, len(FEATURES)) float32"""

    @classmethod
    def cat(cls, parts: Sequence["PolicyInputs"]) -> "PolicyInputs":
        return cls(cat_present([part.hidden for part in parts]), cat_present([part.features for part in parts]))

    def __getitem__(self, rows: slice | Tensor) -> "PolicyInputs":
        return PolicyInputs(*(None if part is None else part[rows] for part in (self.hidden, self.features)))


def cat_present(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Tensors end to end; None if there are none. Either all are there or none is."""
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


class PredictionStats(NamedTuple):
    """Statistics of the logits, (M,) each; `best`, `second` (best token) and `mask` are log-probabilities."""

    best: Tensor
    second: Tensor
    entropy: Tensor
    """In nats."""
    mask: Tensor
    token: Tensor
    """The best token."""
    log_total: Tensor
    """The log of the softmax denominator."""


StatsFunction = Callable[[Tensor, int, Tensor | None, int], PredictionStats]


def prediction_stats(logits: Tensor, first: int, blocked: Tensor | None, mask_token: int) -> PredictionStats:
    """In a few passes over (M, vocab_size), as a compilable function. first, blocked: see `AllowedTokens`."""
    allowed = restrict(logits, first, blocked)
    best, index = allowed.max(-1)
    tokens = torch.arange(allowed.shape[1], device=logits.device)
    second = torch.where(tokens == index[:, None], -torch.inf, allowed).amax(-1)
    total = log_total(logits)
    logp = logits - total[:, None]
    entropy = -row_sums(logp.exp() * logp)
    mask = logits[:, mask_token] - total
    return PredictionStats(best - total, second - total, entropy, mask, index + first, total)


def extract_features(state: State, stats_function: StatsFunction = prediction_stats) -> Tensor:
    """(M, len(FEATURES)) features of the masked positions.

    best, margin, entropy, mask: the model's uncertainty. lead: best minus the sequence's highest. twin: the probability
    of the same token at the masked neighbor. same: the filled neighbor is that token. from left, from right: distance
    from the ends, as a share of the length. filled: the neighbor is filled (the ends count as filled). leftmost,
    rightmost: no masked position is further out. gap: one over the distance to the next filled position.
    """
    assert state.logits is not None
    assert state.where is not None
    assert state.tokens is not None
    where, masked, logits = state.where, state.masked, state.logits
    width = masked.shape[1]
    stats = stats_function(logits, state.allowed.first, state.allowed.blocked, state.mask_token)
    lead = stats.best - state.spread(stats.best).amax(1)[where // width]
    # Neighbors among the masked positions: where[i + 1] is right of where[i], and not the start of the next sequence.
    follows = F.pad((where[1:] == where[:-1] + 1) & (where[1:] % width != 0), (1, 1))
    # The probability of position i's best token at i + 1, and of i + 1's best token at i.
    right = (logits[1:].gather(1, stats.token[:-1, None]).squeeze(1) - stats.log_total[1:]).exp()
    left = (logits[:-1].gather(1, stats.token[1:, None]).squeeze(1) - stats.log_total[:-1]).exp()
    twin_left, twin_right = F.pad(left, (1, 0)) * follows[:-1], F.pad(right, (0, 1)) * follows[1:]
    tokens = state.tokens.masked_fill(masked | (state.positions >= state.lengths[:, None]), -1)
    around = F.pad(tokens, (1, 1), value=-1).unfold(1, 3, 1).reshape(-1, 3)[where]
    same_left, same_right = around[:, 0] == stats.token, around[:, 2] == stats.token
    of_predictions = (
        stats.best, stats.best.exp() - stats.second.exp(), stats.entropy, stats.mask, lead,
        twin_left, twin_right, same_left, same_right,
    )  # fmt: skip
    of_positions = _position_features(masked, state.positions, state.lengths).flatten(0, 1)[where]
    return torch.cat([torch.stack([value.float() for value in of_predictions], 1), of_positions], 1)


def _position_features(masked: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, 9): the features that do not depend on the model."""
    length = lengths[:, None].float()
    count = masked.cumsum(1)
    remaining = count[:, -1:]
    filled = F.pad(~masked, (1, 1), value=True)
    index = torch.arange(filled.shape[1], device=masked.device)
    before = torch.where(filled, index, -1).cummax(1).values[:, 1:-1]
    after = torch.where(filled, index, len(index)).flip(1).cummin(1).values.flip(1)[:, 1:-1]
    here = index[1:-1]
    features = (
        (positions + 1) / (length + 1), (length - positions) / (length + 1), (remaining / length).expand(masked.shape),
        filled[:, :-2], filled[:, 2:], count == 1, count == remaining,
        1 / (here - before).clamp(min=1), 1 / (after - here).clamp(min=1),
    )  # fmt: skip
    return torch.stack([value.float() for value in features], 2)

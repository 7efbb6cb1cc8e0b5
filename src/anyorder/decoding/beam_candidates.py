"""The children of hypotheses in beam search: which are tried, and which are kept.

A child fills one masked position of its parent. This module knows nothing about the loop or finished canvases.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.decoding.forward import HiddenAt, forward_step
from anyorder.decoding.state import DecodeState
from anyorder.device import to_device
from anyorder.models.base import AllowedTokens, Model, log_total
from anyorder.orders.base import Order
from anyorder.orders.positional import splitmix64


@dataclass(frozen=True)
class Candidates:
    """K children for each of B hypotheses. The first child always exists. Missing children have log-probability -inf
    and otherwise equal the first, so that every child fills a masked position."""

    positions: Tensor
    """(B, K) int64, from 0 in each canvas."""
    tokens: Tensor
    """(B, K) int64"""
    logprobs: Tensor
    """(B, K) float32"""

    @classmethod
    def of(cls, positions: Tensor, tokens: Tensor, logprobs: Tensor) -> "Candidates":
        exists = logprobs != -torch.inf
        positions, tokens = (torch.where(exists, values, values[:, :1]) for values in (positions, tokens))
        return cls(positions, tokens, logprobs)


def expand(
    model: Model, hidden_at: HiddenAt, state: DecodeState, order: Order, step: int, over: str, size: int
) -> Candidates:
    """The `size` best children of every hypothesis, in one forward pass. over: see `Beam`.

    The children of one hypothesis are distinct. So each of the `size` best distinct children of all hypotheses is also
    among the `size` best of its siblings, and trying more would change nothing.
    """
    return _EXPAND[over](model, hidden_at, state, order, step, size)


def _expand_tokens(
    model: Model, hidden_at: HiddenAt, state: DecodeState, order: Order, step: int, size: int
) -> Candidates:
    """The best tokens at the position that the order ranks first."""
    positions, logits = _first_ranked(model, hidden_at, state, order, step, np.ones_like(state.remaining))
    tokens, logprobs = _best_tokens(state.allowed, logits, size)
    return Candidates.of((positions % state.width)[:, None].expand_as(tokens), tokens, logprobs)


def _expand_positions(
    model: Model, hidden_at: HiddenAt, state: DecodeState, order: Order, step: int, size: int
) -> Candidates:
    """The best token at each of the positions that the order ranks first."""
    counts = np.minimum(state.remaining, size)
    positions, logits = _first_ranked(model, hidden_at, state, order, step, counts)
    tokens, logprobs = state.allowed.best(logits)
    shape = len(counts), int(counts.max())
    where = to_device(np.flatnonzero(np.arange(shape[1]) < counts[:, None]), positions.device)

    def padded(values: Tensor, empty: float) -> Tensor:
        return values.new_full(shape, empty).view(-1).index_copy_(0, where, values).view(shape)

    return Candidates.of(padded(positions % state.width, 0), padded(tokens, 0), padded(logprobs, -torch.inf))


def _expand_both(
    model: Model, hidden_at: HiddenAt, state: DecodeState, order: Order, step: int, size: int
) -> Candidates:
    """The best pairs of a position and a token."""
    output = forward_step(model, hidden_at, state, order, step, with_logits=True)
    assert output.logits is not None
    tokens, logprobs = _best_tokens(state.allowed, output.logits, size)
    hypotheses, each = len(state.remaining), tokens.shape[1]

    def spread(values: Tensor, empty: float) -> Tensor:
        everywhere = values.new_full((hypotheses * state.width, each), empty)
        return everywhere.index_copy_(0, output.masked, values).view(hypotheses, -1)

    ranked, index = spread(logprobs, -torch.inf).sort(dim=1, descending=True, stable=True)
    index = index[:, :size]
    return Candidates.of(index // each, spread(tokens, 0).gather(1, index), ranked[:, :size])


_EXPAND: dict[str, Callable[[Model, HiddenAt, DecodeState, Order, int, int], Candidates]] = {
    "tokens": _expand_tokens,
    "positions": _expand_positions,
    "joint": _expand_both,
}


def _first_ranked(
    model: Model, hidden_at: HiddenAt, state: DecodeState, order: Order, step: int, counts: np.ndarray
) -> tuple[Tensor, Tensor]:
    """The `counts[i]` positions of hypothesis i that the order ranks first, ascending, and the logits there."""
    if order.needs == "nothing":
        positions = state.top_positions(order, state.view(step), counts)
        return positions, model.logits(hidden_at(state.tokens, state.query(positions, counts)))
    output = forward_step(model, hidden_at, state, order, step)
    positions = state.top_positions(order, output.view, counts)
    return positions, output.logits_at(model, positions)


def _best_tokens(allowed: AllowedTokens, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most likely allowed tokens at each position, best first, and their log-probabilities: (N, K), (N, K)."""
    words = allowed.restrict(logits)
    best, index = words.topk(min(count, words.shape[1]), dim=-1)
    return index + allowed.first, best - log_total(logits)[:, None]


@dataclass(frozen=True)
class Chosen:
    """The children kept: N for each of G canvases, best first."""

    parents: Tensor
    """(G * N,) the index of each one's parent."""
    positions: Tensor
    """(G * N,) from 0 in each canvas."""
    tokens: Tensor
    """(G * N,)"""
    logprobs: Tensor
    """(G * N,)"""
    scores: Tensor
    """(G, N) summed log-probabilities; -inf for placeholders of missing ones."""
    hashes: Tensor
    """(G, N)"""


def select_best(scores: Tensor, hashes: Tensor, children: Candidates, vocab_size: int) -> Chosen:
    """The best distinct children of every canvas. scores, hashes: (G, N), of the parents.

    Children with the same tokens at the same positions are one hypothesis reached by different paths; the best path is
    kept. They are found by a 64-bit hash that does not depend on the path: a sum over the filled tokens.
    """
    canvases, size = scores.shape
    each = children.logprobs.shape[1]
    totals = (scores[:, :, None] + children.logprobs.view(canvases, size, each)).flatten(1)
    filled = splitmix64(children.positions * vocab_size + children.tokens + 1).view(canvases, size, each)
    new_hashes = (hashes[:, :, None] + filled).flatten(1)
    totals = totals.masked_fill(_repeated(totals, new_hashes), -torch.inf)
    ranked, index = totals.sort(dim=1, descending=True, stable=True)
    index = index[:, :size]
    canvas = torch.arange(canvases, device=index.device)[:, None]
    flat = (canvas * (size * each) + index).flatten()
    return Chosen(
        parents=flat // each,
        positions=children.positions.flatten()[flat],
        tokens=children.tokens.flatten()[flat],
        logprobs=children.logprobs.flatten()[flat],
        scores=ranked[:, :size],
        hashes=new_hashes.gather(1, index),
    )


def _repeated(totals: Tensor, hashes: Tensor) -> Tensor:
    """(G, C) bool: a child of the same canvas with the same hash has a higher total, or ties and comes first."""
    by_total = totals.argsort(dim=1, descending=True, stable=True)
    grouped = by_total.gather(1, hashes.gather(1, by_total).argsort(dim=1, stable=True))
    ordered = hashes.gather(1, grouped)
    repeated = F.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    return torch.zeros_like(repeated).scatter_(1, grouped, repeated)

"""Search: fill canvases greedily or with a beam. Several processes started by a launcher share the canvases.

In beam search, several hypotheses per canvas are filled in parallel, and only the best of their children are kept. A
step fills one position of every hypothesis, so the hypotheses of a canvas have the same number of tokens and their
summed log-probabilities are comparable. All hypotheses of all canvases share one forward pass per step, the host never
waits for the device inside the loop, and no canvas depends on its batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from anyorder.decoding.config import Beam, BoundDecoding
from anyorder.decoding.engine import (
    StepCallback,
    canvas_batches,
    decode,
    forward_step,
    predict_first_ranked,
    shared_first_step,
)
from anyorder.decoding.schedules import ONE
from anyorder.decoding.state import DecodeBatch, DecodeState, Hypothesis
from anyorder.device import report_lost_process, to_device
from anyorder.errors import InputError
from anyorder.memory import Halving
from anyorder.models.base import AllowedTokens, Canvas, Model, log_probability
from anyorder.orders.base import Order
from anyorder.orders.heuristics import splitmix64


def search(
    model: Model,
    canvases: Sequence[Canvas],
    decoding: BoundDecoding,
    on_progress: Callable[[int], None] = lambda canvases: None,
    on_step: StepCallback | None = None,
    n_best: int = 1,
    is_ended: Callable[[Canvas, np.ndarray], bool] | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of every canvas, best first: greedy decoding gives one, beam search at most `n_best`.

    is_ended: see `decode`; beam search fills everything.

    If there are several processes, each decodes its share and gets all results. They are the same as with one process,
    because no canvas depends on its batch.
    """
    model, order, beam = decoding.prepare(model), decoding.order, decoding.beam
    batch_tokens = decoding.batch_tokens

    def fill(own: Sequence[Canvas], on_progress: Callable[[int], None]) -> list[list[Hypothesis]]:
        if beam.size > 1:
            found = beam_search(model, own, order, beam, n_best, batch_tokens, on_progress)
        else:
            greedy = decode(
                model, own, order, decoding.schedule, decoding.revision, batch_tokens, on_progress, on_step,
                decoding.sampler, is_ended,
            )  # fmt: skip
            found = [[hypothesis] for hypothesis in greedy]
        if decoding.guidance:  # a step runs the model with and without the prompt
            found = [[replace(one, forwards=2 * one.forwards) for one in every] for every in found]
        return found

    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if on_step is not None and world > 1:
        raise InputError("steps cannot be followed where several processes share the sentences")
    if on_step is not None and beam.size > 1:
        raise beam.error("its steps cannot be followed one by one")
    if world == 1:
        return fill(canvases, on_progress)
    # Dealing out canvases by length gives every process about the same amount of work.
    by_length = sorted(range(len(canvases)), key=lambda i: -len(canvases[i].tokens))
    share = by_length[dist.get_rank() :: world]
    hypotheses = fill([canvases[i] for i in share], lambda count: on_progress(count * world))
    gathered: list[list[tuple[int, list[Hypothesis]]]] = [[] for _ in range(world)]
    with report_lost_process():
        dist.all_gather_object(gathered, list(zip(share, hypotheses, strict=True)))
    return [found for _, found in sorted((pair for part in gathered for pair in part), key=lambda pair: pair[0])]


def best_first(hypotheses: Sequence[Hypothesis], length_penalty: float = 1.0) -> list[Hypothesis]:
    """Rank the hypotheses of a sentence by summed log-probability / length ** length_penalty.

    A penalty of 1 gives the mean, 0 the sum; higher values favor longer hypotheses. If two are equal, the one whose
    length was proposed first wins: sorting is stable.
    """

    def score(hypothesis: Hypothesis) -> float:
        return float(hypothesis.logprobs.mean()) * len(hypothesis.ids) ** (1 - length_penalty)

    return sorted(hypotheses, key=score, reverse=True)


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
    found: dict[int, list[Hypothesis]] = {}
    halving = Halving()

    def fill(chosen: Sequence[int]) -> None:
        batch = DecodeBatch.of(model, [canvases[i] for i in chosen], beam.size)
        found.update(zip(chosen, _fill(model, batch, order, beam, n_best), strict=True))
        on_progress(len(chosen))

    for batch in canvas_batches(model, canvases, ONE, batch_tokens, beam.size):
        halving.run(batch, fill)
    return [found[i] for i in range(len(canvases))]


@torch.inference_mode()
def _fill(model: Model, batch: DecodeBatch, order: Order, beam: Beam, n_best: int) -> list[list[Hypothesis]]:
    """The best hypotheses of every canvas in a batch.

    A canvas always has as many as the beam size, best first. A score of -inf marks placeholders for missing ones:
    initially all but one, since an unfilled canvas has one hypothesis.
    """
    shared = model.context(batch.canvases)
    state = DecodeState(model, batch, shared)
    first_step = shared_first_step(model, batch, shared, order)
    scores = torch.full((len(batch.canvases.lengths), beam.size), -torch.inf, dtype=torch.float64, device=model.device)
    scores[:, 0].zero_()
    hashes = torch.zeros_like(scores, dtype=torch.int64)
    state.drop_finished(state.remaining)
    while len(state.remaining):
        now = len(state.remaining) // beam.size
        children = expand(state, order, beam, first_step)
        best, scores[:now], hashes[:now] = select_best(scores[:now], hashes[:now], children, model.vocab_size)
        positions, tokens, logprobs = (values.flatten()[best] for values in children)
        state.adopt(best // children.logprobs.shape[1])
        state.fill(torch.arange(len(best), device=model.device) * state.width + positions, tokens, logprobs)
        state.drop_finished(state.remaining - 1)
        first_step = None
    exists: Tensor = scores != -torch.inf  # NaN counts as existing: the caller rejects it
    exists[:, 0] = True
    filled, counts = state.hypotheses(), exists.sum(1).clamp(max=n_best).tolist()
    return [filled[i * beam.size : i * beam.size + count] for i, count in enumerate(counts)]


class Candidates(NamedTuple):
    """K children for each of B hypotheses: all are (B, K). The first child always exists. Missing children have
    log-probability -inf and otherwise equal the first, so that every child fills a masked position."""

    positions: Tensor
    """From 0 in each canvas."""
    tokens: Tensor
    logprobs: Tensor

    @classmethod
    def of(cls, positions: Tensor, tokens: Tensor, logprobs: Tensor) -> "Candidates":
        exists = logprobs != -torch.inf
        positions, tokens = (torch.where(exists, values, values[:, :1]) for values in (positions, tokens))
        return cls(positions, tokens, logprobs)


def expand(state: DecodeState, order: Order, beam: Beam, known: Tensor | None) -> Candidates:
    """The best children of every hypothesis, as many as the beam holds, in one forward pass.

    The children of one hypothesis are distinct. So each of the best distinct children of all hypotheses is also among
    the best of its siblings, and trying more would change nothing. known: see `forward_step`.
    """
    if beam.over == "joint":
        output = forward_step(state, order, known=known, with_logits=True)
        assert output.logits is not None
        return _best_pairs(state, output.masked, output.logits, beam.size)
    counts = np.minimum(state.remaining, 1 if beam.over == "tokens" else beam.size)
    positions, logits = predict_first_ranked(state, order, ONE, counts, known)
    if beam.over == "tokens":
        tokens, logprobs = _best_tokens(state.allowed, logits, beam.size)
        return Candidates.of((positions % state.width)[:, None].expand_as(tokens), tokens, logprobs)
    tokens, logprobs = state.allowed.best(logits)
    shape = len(counts), int(counts.max())
    where = to_device(np.flatnonzero(np.arange(shape[1]) < counts[:, None]), positions.device)

    def padded(values: Tensor, empty: float) -> Tensor:
        return values.new_full(shape, empty).view(-1).index_copy_(0, where, values).view(shape)

    return Candidates.of(padded(positions % state.width, 0), padded(tokens, 0), padded(logprobs, -torch.inf))


def _best_pairs(state: DecodeState, masked: Tensor, logits: Tensor, size: int) -> Candidates:
    """The best pairs of a masked position and a token."""
    tokens, logprobs = _best_tokens(state.allowed, logits, size)
    hypotheses, each = len(state.remaining), tokens.shape[1]

    def spread(values: Tensor, empty: float) -> Tensor:
        everywhere = values.new_full((hypotheses * state.width, each), empty)
        return everywhere.index_copy_(0, masked, values).view(hypotheses, -1)

    ranked, index = spread(logprobs, -torch.inf).sort(dim=1, descending=True, stable=True)
    index = index[:, :size]
    return Candidates.of(index // each, spread(tokens, 0).gather(1, index), ranked[:, :size])


def _best_tokens(allowed: AllowedTokens, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most likely allowed tokens at each position, best first, and their log-probabilities: (N, K), (N, K)."""
    words = allowed.restrict(logits)
    best, index = words.topk(min(count, words.shape[1]), dim=-1)
    return index + allowed.first, log_probability(logits, best)


def select_best(scores: Tensor, hashes: Tensor, children: Candidates, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best N distinct children of each of G canvases, best first. scores, hashes: (G, N), of the parents.

    Returns their indices among all children, (G * N,); their scores, (G, N): summed log-probabilities, -inf for
    placeholders of missing ones; and their hashes, (G, N).

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
    return (canvas * (size * each) + index).flatten(), ranked[:, :size], new_hashes.gather(1, index)


def _repeated(totals: Tensor, hashes: Tensor) -> Tensor:
    """(G, C) bool: a child of the same canvas with the same hash has a higher total, or ties and comes first."""
    by_total = totals.argsort(dim=1, descending=True, stable=True)
    grouped = by_total.gather(1, hashes.gather(1, by_total).argsort(dim=1, stable=True))
    ordered = hashes.gather(1, grouped)
    repeated = F.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    return torch.zeros_like(repeated).scatter_(1, grouped, repeated)

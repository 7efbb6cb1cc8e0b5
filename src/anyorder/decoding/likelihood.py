"""How likely a model finds given tokens: exactly, in the order in which they would be filled, or as a bound over all.

A masked model has no single probability of a text; it has one for every order. Filled one by one in an order that
depends only on what is filled already, the positions p_1, ..., p_L of a text x make a chain

        log P(x) = sum_i log P(x_(p_i) | x_(p_1), ..., x_(p_(i-1)))

whose probabilities sum to 1 over all x (`chain`). The mean of log P(x) over all orders is

        E_k E_M  L / k  sum_(p in M) log P(x_p | x outside of M)        k uniform in 1, ..., L; M any k positions

which is a lower bound of the log-likelihood of filling x in a random order, and which a few samples of M estimate
(`bound`; Nie et al. 2025, LLaDA, equation 6). On the CPU, no result depends on its batch, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from anyorder.decoding.engine import canvas_batches, predict_first_ranked
from anyorder.decoding.schedules import ONE, Schedule
from anyorder.decoding.state import DecodeBatch, DecodeState
from anyorder.device import to_device
from anyorder.models.base import Canvas, Model, token_log_probability
from anyorder.orders.base import Order
from anyorder.orders.heuristics import hash_uniform

OnProgress = Callable[[int], None]


def chain(
    model: Model,
    canvases: Sequence[Canvas],
    ids: Sequence[np.ndarray],
    order: Order,
    schedule: Schedule = ONE,
    batch_tokens: int | None = None,
    on_progress: OnProgress = lambda canvases: None,
) -> list[tuple[float, bool]]:
    """Of every canvas, the log-probability that `ids` fill it in this order, and whether greedy decoding would do so.

    ids: (T,) of each canvas: what its masked positions are to hold, and what the others do hold. schedule: one whose
        blocks are filled one after the other; a step fills one position all the same.
    """
    found: dict[int, tuple[float, bool]] = {}
    for chosen in canvas_batches(model, canvases, ONE, batch_tokens):
        batch = DecodeBatch.of(model, [canvases[i] for i in chosen])
        state, agrees = _fill_with(model, batch, [ids[i] for i in chosen], order, schedule)
        logprobs = [float(one.logprobs.sum(dtype=np.float64)) for one in state.hypotheses()]
        found.update(zip(chosen, zip(logprobs, agrees.tolist(), strict=True), strict=True))
        on_progress(len(chosen))
    return [found[i] for i in range(len(canvases))]


@torch.inference_mode()
def _fill_with(
    model: Model, batch: DecodeBatch, ids: Sequence[np.ndarray], order: Order, schedule: Schedule
) -> tuple[DecodeState, Tensor]:
    """The filled canvases, and (B,) bool: whether the model's best token was the given one at every step."""
    state = DecodeState(model, batch, model.context(batch.canvases))
    wanted = _padded(ids, state.width, model.device).flatten()
    agrees = torch.ones(len(ids), dtype=torch.bool, device=model.device)
    state.drop_finished(state.remaining)
    while len(state.remaining):
        counts = np.ones_like(state.remaining)
        positions, logits = predict_first_ranked(state, order, schedule, counts)
        tokens = wanted[positions]
        best, _ = state.allowed.best(logits)
        agrees[: len(tokens)] &= best == tokens
        state.fill(positions, tokens, token_log_probability(logits, tokens))
        state.drop_finished(state.remaining - counts)
    return state, agrees


@torch.inference_mode()
def bound(
    model: Model,
    canvases: Sequence[Canvas],
    ids: Sequence[np.ndarray],
    samples: int,
    batch_tokens: int | None = None,
    on_progress: OnProgress = lambda samples: None,
) -> list[float]:
    """Of every canvas, an estimate of the bound from this many samples. ids: see `chain`.

    The number of masked positions is stratified: the samples spread it evenly over 1, ..., L, from a random start. What
    is random hashes the canvas's key, so canvases that differ only in `ids` are compared on the same positions.
    """
    copies, owners, weights = [], [], []
    for owner, (canvas, tokens) in enumerate(zip(canvases, ids, strict=True)):
        places = np.flatnonzero(canvas.masked(model.mask_token))
        for masked in sample_masks(canvas.key, len(places), samples):
            fillable = np.zeros(len(tokens), bool)
            fillable[places[masked]] = True
            hidden = np.where(fillable, model.mask_token, tokens)
            copies.append(replace(canvas, tokens=hidden, fillable=fillable))
            owners.append(owner)
            weights.append(len(places) / int(masked.sum()) / samples)
    totals = np.zeros(len(copies))
    for chosen in canvas_batches(model, copies, ONE, batch_tokens):
        batch = DecodeBatch.of(model, [copies[i] for i in chosen])
        state = DecodeState(model, batch, model.context(batch.canvases))
        positions = state.masked_positions()
        logits = model.logits(state.context.hidden(state.tokens, state.query(positions, state.remaining)))
        wanted = _padded([ids[owners[i]] for i in chosen], state.width, model.device).flatten()
        logprobs = token_log_probability(logits, wanted[positions]).double().cpu().numpy()
        totals[chosen] = np.bincount((positions // state.width).cpu().numpy(), logprobs, len(chosen))
        on_progress(len(chosen))
    return np.bincount(owners, totals * weights, len(canvases)).tolist()


def sample_masks(key: int, length: int, samples: int) -> Iterator[np.ndarray]:
    """(length,) bool each: which positions a sample masks, at least one."""
    if not length:
        return
    keys = torch.tensor([key])
    start = int(hash_uniform(keys, torch.tensor([-1])) * length)
    for sample in range(samples):
        count = (start + sample * length // samples) % length + 1
        noise = hash_uniform(keys, (sample << 32) + torch.arange(length))[0].numpy()
        masked = np.zeros(length, bool)
        masked[np.argsort(noise, kind="stable")[:count]] = True
        yield masked


def _padded(ids: Sequence[np.ndarray], width: int, device: torch.device) -> Tensor:
    """(B, width) int64"""
    rows = np.zeros((len(ids), width), np.int64)
    for row, tokens in zip(rows, ids, strict=True):
        row[: len(tokens)] = tokens
    return to_device(rows, device)

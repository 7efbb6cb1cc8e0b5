"""A learned order in one file of plain PyTorch, for engines that decode without anyorder.

`scores` scores the masked positions of texts or blocks; the highest is filled first, and ties go left. If the order
decides how many positions a step fills, `accepts` says which. The weights are in the constants below; `anyorder
export-order` fills them in, in a copy of this file.
"""

import base64
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = ""
"""The order's name and the fingerprint of its weights."""
NEEDS = "logits"
"""What `scores` has to be given: logits, hidden, or both."""
SCALES: list[float] = []
"""Factors that scale each feature to about 1; empty if there are none."""
WEIGHTS: dict[str, tuple[tuple[int, ...], str]] = {}
"""Each tensor's shape, and its float32 numbers in base64."""


@torch.no_grad()
def scores(
    input_ids: Tensor,
    masked: Tensor,
    mask_id: int,
    logits: Tensor | None = None,
    hidden: Tensor | None = None,
    lengths: Tensor | None = None,
    allowed: Tensor | None = None,
    speed: float = 0.0,
) -> Tensor:
    """(B, T) float32: the score of every masked position, -inf elsewhere.

    Args:
        input_ids: (B, T) the current tokens.
        masked: (B, T) bool: what may be filled.
        mask_id: The id of the mask token.
        logits: (B, T, V), aligned with the positions that they predict; for orders that need logits or both.
        hidden: (B, T, hidden_size) the last hidden states, for orders that need hidden or both.
        lengths: (B,) where each text ends; by default, at T.
        allowed: (V,) bool: the tokens that may be filled in; by default, all but the mask.
        speed: From 0 (best) to 1 (fewest steps), for orders that decide how many positions to fill.
    """
    return _look(input_ids, masked, mask_id, logits, hidden, lengths, allowed, speed)[0]


@torch.no_grad()
def accepts(
    input_ids: Tensor,
    masked: Tensor,
    mask_id: int,
    logits: Tensor | None = None,
    hidden: Tensor | None = None,
    lengths: Tensor | None = None,
    allowed: Tensor | None = None,
    speed: float = 0.5,
) -> Tensor:
    """(B, T) bool: what to fill now; in a text where that is nothing, the highest score. See `scores`."""
    found = _look(input_ids, masked, mask_id, logits, hidden, lengths, allowed, speed)[1]
    assert found is not None, f"{NAME} does not decide how many positions to fill"
    return (found > 0) & masked


def _look(
    input_ids: Tensor, masked: Tensor, mask_id: int, logits: Tensor | None, hidden: Tensor | None,
    lengths: Tensor | None, allowed: Tensor | None, speed: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(B, T) scores, and the log-odds that a position is filled now; None if the order does not say."""
    weights = _weights(masked.device)
    features = None
    if NEEDS != "hidden":
        assert logits is not None, f"{NAME} needs logits"
        features = _features(input_ids, masked, mask_id, logits.float(), lengths, allowed)
    found = torch.zeros(masked.shape, device=masked.device)
    accept = None
    if "accept_linear" in weights:
        assert features is not None
        certainty = (features[..., 0] - (-torch.expm1(features[..., 0])).clamp(min=1e-12).log()).clamp(max=15)
        terms = torch.stack([certainty, torch.full_like(certainty, speed), torch.ones_like(certainty)], -1)
        accept = (terms * weights["accept_linear"]).sum(-1)
    if "out" in weights:
        states: Tensor | float = 0.0
        if NEEDS != "logits":
            assert hidden is not None, f"{NAME} needs hidden states"
            states = states + F.linear(hidden.float(), weights["read.weight"], weights["read.bias"])
        if features is not None:
            scaled = (features * torch.tensor(SCALES, device=masked.device)).clamp(-4, 4)
            states = states + F.linear(scaled, weights["read_features.weight"], weights["read_features.bias"])
        if accept is not None:
            states = states + speed * weights["read_speed"]
        assert isinstance(states, Tensor)
        states = F.leaky_relu(states, 0.1)
        found = found + (states * weights["out"]).sum(-1)
        if accept is not None:
            accept = accept + (states * weights["accept_out"]).sum(-1)
    if features is not None:
        found = found + (features * weights["linear"]).sum(-1)
    return found.masked_fill(~masked, -torch.inf), accept


@cache
def _weights(device: torch.device) -> dict[str, Tensor]:
    tensors = {}
    for name, (shape, text) in WEIGHTS.items():
        numbers = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32)
        tensors[name] = numbers.view(shape).to(device)
    return tensors


def _features(
    input_ids: Tensor, masked: Tensor, mask_id: int, logits: Tensor, lengths: Tensor | None, allowed: Tensor | None
) -> Tensor:
    """(B, T, features) what the network sees of every masked position; undefined elsewhere."""
    width, vocab_size = logits.shape[1:]
    positions = torch.arange(width, device=logits.device)
    ends = positions.new_full((len(logits), 1), width) if lengths is None else lengths[:, None]
    if allowed is None:
        allowed = torch.arange(vocab_size, device=logits.device) != mask_id

    # The model's uncertainty.
    highest, at = logits.max(-1, keepdim=True)
    others = (logits - highest).exp().scatter(-1, at, 0).sum(-1, keepdim=True)
    logp = logits - highest - others.log1p()  # precise near certainty
    token = logits.masked_fill(~allowed, -torch.inf).argmax(-1)
    best = logp.gather(-1, token[..., None]).squeeze(-1)
    second = logp.masked_fill(~allowed, -torch.inf).scatter(-1, token[..., None], -torch.inf).amax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    lead = best - best.masked_fill(~masked, -torch.inf).amax(1, keepdim=True)

    # Its neighbors: the probability of the same token where they are masked, the same token where they are filled.
    pairs = masked[:, 1:] & masked[:, :-1]
    right = logp[:, 1:].gather(2, token[:, :-1, None]).squeeze(2).exp() * pairs
    left = logp[:, :-1].gather(2, token[:, 1:, None]).squeeze(2).exp() * pairs
    around = F.pad(input_ids.masked_fill(masked | (positions >= ends), -1), (1, 1), value=-1)

    # Where it is, and what is filled around it; the ends count as filled.
    length, count = ends.float(), masked.cumsum(1)
    remaining = count[:, -1:]
    filled = F.pad(~masked, (1, 1), value=True)
    index = torch.arange(width + 2, device=logits.device)
    before = torch.where(filled, index, -1).cummax(1).values[:, 1:-1]
    after = torch.where(filled, index, len(index)).flip(1).cummin(1).values.flip(1)[:, 1:-1]
    here = index[1:-1]
    features = (
        best, best.exp() - second.exp(), entropy, logp[..., mask_id], lead,
        F.pad(left, (1, 0)), F.pad(right, (0, 1)), around[:, :-2] == token, around[:, 2:] == token,
        (positions + 1) / (length + 1), (length - positions) / (length + 1), (remaining / length).expand(masked.shape),
        filled[:, :-2], filled[:, 2:], count == 1, count == remaining,
        1 / (here - before).clamp(min=1), 1 / (after - here).clamp(min=1),
    )  # fmt: skip
    return torch.stack([value.float() for value in features], 2)

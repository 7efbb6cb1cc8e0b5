"""Token sampling: draw tokens from the model's distribution instead of taking the most likely one.

Also the hashed noise behind it, which revisions and rollouts use, too.

The noise is a hash of the canvas's key, the step, the position and the token. So a sample depends neither on its batch
nor on the devices that other canvases run on, and there is no random state.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from anyorder.errors import InputError, check_number
from anyorder.models.base import AllowedTokens, token_log_probability
from anyorder.orders.heuristics import hash_uniform

RankBy = Literal["best", "sampled"]
_CHUNK = 1 << 23
"""How many numbers to hash at once: noise for all positions and tokens would not fit into memory."""
_TOKENS, _REMASKING = 1 << 60, 1 << 61
"""Offsets that keep noise for different purposes separate."""


@dataclass(frozen=True)
class TokenSampler:
    """Draws tokens by the Gumbel-max trick: the highest noisy score is a sample from the softmax of the scores."""

    temperature: float = 1.0
    """Scores are divided by it; toward 0, the most likely token wins."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens whose total probability reaches this."""
    top_k: int = 0
    """Sample from so many most likely tokens; 0 for all. Applied before `top_p`."""
    rank_by: RankBy = "best"
    """Whose probability orders and schedules take for a position's: the best token's, or the sampled one's."""

    def choose(
        self, logits: Tensor, allowed: AllowedTokens, keys: Tensor, positions: Tensor, step: int
    ) -> tuple[Tensor, Tensor]:
        """One token per position and its log-probability under the model: (N,), (N,).

        logits: (N, vocab_size); keys: (N,) of the positions' canvases; positions: (N,) from 0 in each canvas.
        """
        rows = max(1, _CHUNK // logits.shape[1])
        numbers = _TOKENS + (step << 40) + (positions << 20)
        tokens, logprobs = [], []
        for own, key, number in zip(*(each.split(rows) for each in (logits, keys, numbers)), strict=True):
            tokens.append(self._sample(allowed.restrict(own), key, number) + allowed.first)
            logprobs.append(token_log_probability(own, tokens[-1]))
        return torch.cat(tokens), torch.cat(logprobs)

    def _sample(self, scores: Tensor, keys: Tensor, numbers: Tensor) -> Tensor:
        """(N, tokens) scores to (N,) tokens."""
        scores = (scores - scores.amax(-1, keepdim=True)) / self.temperature
        scores = nucleus(most_likely(scores, self.top_k), self.top_p)
        tokens = torch.arange(scores.shape[1], device=scores.device)
        return (scores + gumbel_noise(keys, numbers[:, None] + tokens)).argmax(-1)


def make_sampler(temperature: float, top_p: float, top_k: int = 0, rank_by: RankBy = "best") -> TokenSampler | None:
    """A sampler; None at temperature 0: always pick the most likely token."""
    check_number("temperature", temperature, at_least=0, at_most=100)
    check_number("top_p", top_p, above=0, at_most=1)
    check_number("top_k", top_k, at_least=0, whole=True)
    if rank_by not in get_args(RankBy):
        raise InputError(f"{rank_by}: expected {' or '.join(get_args(RankBy))}", "rank_by")
    if temperature > 0:
        return TokenSampler(temperature, top_p, top_k, rank_by)
    for name, value, default in (("top_p", top_p, 1), ("top_k", top_k or 0, 0), ("rank_by", rank_by, "best")):
        if value != default:
            raise InputError(f"{value}: needs sampled tokens, so a temperature above 0", name)
    return None


def most_likely(scores: Tensor, top_k: int) -> Tensor:
    """(N, tokens) scores, -inf outside the `top_k` highest; those equal to the last of them stay."""
    if not top_k or top_k >= scores.shape[1]:
        return scores
    return scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], -torch.inf)


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """(N, tokens) scores, -inf outside the smallest set of tokens whose total probability reaches `top_p`."""
    if top_p >= 1:
        return scores
    ranked, index = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
    outside = ranked.cumsum(-1) - ranked >= top_p
    return scores.masked_fill(torch.zeros_like(outside).scatter_(-1, index, outside), -torch.inf)


def gumbel_noise(keys: Tensor, numbers: Tensor) -> Tensor:
    """(N,) keys and (N, K) numbers to (N, K) samples of the standard Gumbel distribution."""
    uniform = (hash_uniform(keys, numbers) + 2.0**-25).clamp(max=1 - 2.0**-24)  # the largest would round to 1: infinity
    return -(-uniform.log()).log()


def remasking_noise(keys: Tensor, step: int, width: int) -> Tensor:
    """(B, T) floats in [0, 1) that decide what is masked again after a step. keys: (B,)"""
    return hash_uniform(keys, _REMASKING + (step << 20) + torch.arange(width, device=keys.device))

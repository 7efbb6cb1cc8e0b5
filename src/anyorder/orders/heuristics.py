"""Heuristic orders: by the model's predictions at the masked positions, or by the positions alone (and the seed)."""

from abc import abstractmethod

import torch
from torch import Tensor

from anyorder.errors import InputError
from anyorder.models.base import log_probability, row_sums
from anyorder.orders.base import Order, State, register_order
from anyorder.registry import check_count


class Confidence(Order):
    """Scores every masked position by the model's distribution there."""

    needs = "logits"
    is_local = True

    def scores(self, state: State) -> Tensor:
        assert state.logits is not None
        return state.spread(self.confidence(state.logits, state))

    @abstractmethod
    def confidence(self, logits: Tensor, state: State) -> Tensor:
        """(M, vocab_size) to (M,)."""


@register_order("max-prob")
class MaxProb(Confidence):
    """Where the best token is most probable."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return state.token_logprobs


@register_order("margin")
class Margin(Confidence):
    """Where the probability margin between the best and the second-best token is largest."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        words = state.allowed.restrict(logits)
        best, index = words.max(-1, keepdim=True)
        # The best token is masked by its index, so that a second one with an equal logit gives a margin of zero.
        second = words.scatter(-1, index, -torch.inf).amax(-1, keepdim=True)
        first, second = log_probability(logits, torch.cat([best, second], -1)).double().unbind(-1)
        return first.exp() - second.exp()  # in double precision, which does not round it to 1 near certainty


@register_order("entropy")
class Entropy(Confidence):
    """Where the predicted distribution has the lowest entropy."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return -entropy(logits)


@register_order("least-to-most")
class LeastToMost(Confidence):
    """Where the mask token is least likely (paper, section 4.2)."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return mask_surprisal(logits, state)


@register_order("easy-first")
class EasyFirst(Confidence):
    """Where logp * (-log p(mask)) + negent * (-entropy) is highest (paper, section 4.2)."""

    def __init__(self, logp: float = 1.0, negent: float = 1.0):
        self.logp = logp
        self.negent = negent

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return self.logp * mask_surprisal(logits, state) - self.negent * entropy(logits)


def mask_surprisal(logits: Tensor, state: State) -> Tensor:
    """-log p(mask). (M, vocab_size) to (M,)"""
    return -log_probability(logits, logits[:, state.mask_token])


def entropy(logits: Tensor) -> Tensor:
    """In nats. (M, vocab_size) to (M,)"""
    logp = log_probability(logits, logits)
    return -row_sums(logp.exp() * logp)


@register_order("left-to-right")
def left_to_right(state: State) -> Tensor:
    """First position first."""
    return -state.positions.float().expand(state.masked.shape)


@register_order("right-to-left")
def right_to_left(state: State) -> Tensor:
    """Last position first."""
    return state.positions.float().expand(state.masked.shape)


@register_order("outer-in")
class OuterIn(Order):
    """The leftmost `stride` positions, the rightmost `stride`, the next ones from the left, and so on inward.

    Blocks on the right are filled backwards, from the end (paper, section 5.1).
    """

    def __init__(self, stride: float = 1):
        if stride < 1 or stride != int(stride):
            raise InputError(f"stride {stride:g} is not a whole number from 1")
        self.stride = min(int(stride), 1 << 20)  # longer than any sentence; larger values could overflow a tensor

    def scores(self, state: State) -> Tensor:
        left = state.positions.expand(state.masked.shape)
        right = state.lengths[:, None] - 1 - left
        # If the sentence had no end: block b from the left has turn 2b, block b from the right turn 2b + 1.
        turn_left = left // self.stride * 2 * self.stride + left % self.stride
        turn_right = (right // self.stride * 2 + 1) * self.stride + right % self.stride
        return -torch.minimum(turn_left, turn_right).float()


@register_order("uniform")
def uniform(state: State) -> Tensor:
    """A uniformly random order; the same sentence, length and seed always give the same order."""
    return hash_uniform(state.keys, state.positions)


@register_order("dilated")
class Dilated(Order):
    """Increasingly fine grids over n positions: every (n / base)-th position, every (n / base^2)-th, and so on."""

    def __init__(self, base: float = 2):
        check_count("base", base, at_least=2)
        self.base = int(base)

    def scores(self, state: State) -> Tensor:
        return -grid_levels(state.lengths, state.masked.shape[1], self.base).float()


def grid_levels(lengths: Tensor, width: int, base: int) -> Tensor:
    """(B, width) the level, from 1, at which a grid over each of B lengths reaches a position.

    At level t every s-th position is on the grid, where s is length / base^t rounded down and at least 1.
    """
    positions = torch.arange(width, device=lengths.device)
    levels = torch.zeros(len(lengths), width, dtype=torch.int64, device=lengths.device)
    stride = lengths
    for level in range(1, max(width, 2).bit_length() + 1):
        stride = (stride // base).clamp(min=1)
        levels = torch.where((levels == 0) & (positions % stride[:, None] == 0), level, levels)
    return levels


_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as a signed integer


def hash_uniform(keys: Tensor, numbers: Tensor) -> Tensor:
    """(B,) keys and (T,) numbers hashed to (B, T) floats in [0, 1) by splitmix64, the same on every device."""
    numbers = splitmix64(keys[:, None] + numbers * _GOLDEN)
    # 24 bits, all that a float32 holds exactly: no device rounds. A shift of signed integers copies the sign: mask it.
    return ((numbers >> 40) & ((1 << 24) - 1)).float() / (1 << 24)


def splitmix64(numbers: Tensor) -> Tensor:
    """Map integers one-to-one to 64 random-looking bits, the same on every device (Steele et al. 2014)."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        numbers = (numbers ^ ((numbers >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return numbers ^ ((numbers >> 31) & ((1 << 33) - 1))

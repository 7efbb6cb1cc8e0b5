"""Orders that ignore the model: they depend on the sentence's length (and the seed)."""

import torch
from torch import Tensor

from anyorder.errors import InputError
from anyorder.orders.base import Order, State, register_order
from anyorder.registry import check_count


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

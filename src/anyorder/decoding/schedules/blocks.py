"""Semi-autoregressive decoding: blocks are filled from left to right; inside a block, any order and schedule applies.

A block is b of the initially masked positions, so given tokens, such as a prompt, belong to no block.
"""

import numpy as np
import torch
from torch import Tensor

from anyorder.decoding.schedules.base import (
    AdaptiveSchedule,
    FixedSchedule,
    Schedule,
    make_schedule,
    register_schedule,
)
from anyorder.errors import InputError
from anyorder.orders.base import State
from anyorder.registry import check_count, is_count


@register_schedule("blocks")
class Blocks(Schedule):
    """Blocks of b positions from left to right; the schedule after + applies within each: blocks:8+threshold:0.9."""

    def __init__(self, size: int, inner: Schedule):
        check_count("size of a block", size)
        if isinstance(inner, Blocks):
            raise InputError("there are no blocks inside blocks")
        self.size, self.inner = size, inner
        self.name = f"blocks:{size}+{inner.name}"

    @classmethod
    def parse(cls, options: str) -> "Blocks":
        size, plus, inner = (part.strip() for part in options.partition("+"))
        if not is_count(size):
            raise InputError(f"'{size}' is not a whole number from 1 to a thousand million")
        return in_blocks(int(size), make_schedule(inner if plus else "one"))

    def narrow(self, state: State, scores: Tensor) -> Tensor:
        block = self._blocks(state)
        current = block.masked_fill(~state.masked, block.shape[1]).amin(1, keepdim=True)
        return scores.masked_fill(block != current, -torch.inf)

    def reach(self, remaining: np.ndarray, total: np.ndarray) -> np.ndarray | None:
        if isinstance(self.inner, AdaptiveSchedule) and not self.inner.is_local:
            return None
        return np.minimum(remaining, self.size - (total - remaining) % self.size)

    def _blocks(self, state: State) -> Tensor:
        """(B, T) the block index of each position."""
        if state.fillable is None:
            return (state.positions // self.size).expand(state.masked.shape)
        return (state.fillable.cumsum(1) - 1).clamp(min=0) // self.size


class FixedBlocks(Blocks, FixedSchedule):
    """Blocks whose inner schedule is known in advance. It starts over with every block."""

    inner: FixedSchedule

    def __init__(self, size: int, inner: FixedSchedule):
        super().__init__(size, inner)
        self._counts: dict[int, np.ndarray] = {}

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        lengths, canvas = np.unique(total, return_inverse=True)
        now = [counts[step - 1] if step <= len(counts) else self.size for counts in map(self._of_length, lengths)]
        return np.array(now)[canvas]

    def _of_length(self, total: int) -> np.ndarray:
        """How many positions each step fills, block by block."""
        if total not in self._counts:
            whole, rest = divmod(int(total), self.size)
            last = self.inner.counts_by_step(rest)
            self._counts[total] = np.array([*(self.inner.counts_by_step(self.size) * whole if whole else []), *last])
        return self._counts[total]

    def steps(self, total: int) -> int:
        return len(self._of_length(total))


class AdaptiveBlocks(Blocks, AdaptiveSchedule):
    """Blocks whose inner schedule uses the predictions."""

    inner: AdaptiveSchedule

    def accept(self, state: State, scores: Tensor) -> Tensor:
        return self.inner.accept(state, scores)

    def start(self) -> "AdaptiveBlocks":
        fresh = AdaptiveBlocks(self.size, self.inner.start())
        fresh.name = self.name
        return fresh

    def keep(self, canvases: Tensor) -> None:
        self.inner.keep(canvases)


def in_blocks(size: int, inner: Schedule) -> Blocks:
    """`inner` applied per block."""
    if isinstance(inner, FixedSchedule):
        return FixedBlocks(size, inner)
    assert isinstance(inner, AdaptiveSchedule)
    return AdaptiveBlocks(size, inner)

"""Semi-autoregressive decoding: blocks are filled from left to right; inside a block, any order and schedule applies.

A block is b of the initially masked positions, so given tokens, such as a prompt, belong to no block.
"""

from copy import copy

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
        if isinstance(inner, Blocks):
            raise InputError("there are no blocks inside blocks")
        check_count("size of a block", size)
        self.size, self.inner = size, inner
        self.name = f"blocks:{size}+{inner.name}"

    @classmethod
    def parse(cls, options: str) -> "Blocks":
        size, plus, name = (part.strip() for part in options.partition("+"))
        if not is_count(size):
            raise InputError(f"'{size}' is not a whole number from 1 to a thousand million")
        inner = make_schedule(name if plus else "one")
        kind = FixedBlocks if isinstance(inner, FixedSchedule) else AdaptiveBlocks
        return kind(int(size), inner)

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

    def __init__(self, size: int, inner: Schedule):
        super().__init__(size, inner)
        self._known: dict[int, list[int]] = {}

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        lengths, canvas = np.unique(total, return_inverse=True)
        by_step = [self.counts_by_step(length) for length in lengths.tolist()]
        now = [counts[step - 1] if step <= len(counts) else self.size for counts in by_step]
        return np.array(now)[canvas]

    def counts_by_step(self, total: int) -> list[int]:
        if total not in self._known:
            whole, rest = divmod(total, self.size)
            block = self.inner.counts_by_step(self.size) if whole else []
            self._known[total] = block * whole + self.inner.counts_by_step(rest)
        return self._known[total]


class AdaptiveBlocks(Blocks, AdaptiveSchedule):
    """Blocks whose inner schedule uses the predictions."""

    inner: AdaptiveSchedule

    def accept(self, state: State, scores: Tensor) -> Tensor:
        return self.inner.accept(state, scores)

    def start(self) -> "AdaptiveBlocks":
        fresh = copy(self)
        fresh.inner = self.inner.start()
        return fresh

    def keep(self, canvases: Tensor) -> None:
        self.inner.keep(canvases)

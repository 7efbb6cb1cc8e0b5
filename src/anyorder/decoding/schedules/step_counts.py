"""Schedules that are known in advance: a number of steps, and how many positions are left after each."""

from abc import abstractmethod

import numpy as np
import torch

from anyorder.decoding.schedules.base import FixedSchedule, register_schedule
from anyorder.orders.positional import grid_levels
from anyorder.registry import check_count


@register_schedule("steps")
class EvenSteps(FixedSchedule):
    """T steps of equal size; if the positions do not divide evenly, the first steps fill one more."""

    def __init__(self, number: int = 10):
        check_count("number of steps", number)
        self.number = number

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        steps_left = max(self.number - step + 1, 1)
        return -(-remaining // steps_left)


class MaskedAfter(FixedSchedule):
    """Says how many positions are still masked after each of T steps."""

    def __init__(self, number: int = 10):
        check_count("number of steps", number)
        self.number = number

    @abstractmethod
    def masked_after(self, total: np.ndarray, step: int) -> np.ndarray:
        """(B,) positions. step: from 1 to `number`."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        return remaining - self.masked_after(total, min(step, self.number))


@register_schedule("linear")
class Linear(MaskedAfter):
    """T steps; after step t, n (1 - t/T) of n positions are masked."""

    def masked_after(self, total: np.ndarray, step: int) -> np.ndarray:
        return total * (self.number - step) // self.number


@register_schedule("cosine")
class Cosine(MaskedAfter):
    """T steps; after step t, n cos(t/T pi/2) of n positions are masked, so later steps fill more."""

    def masked_after(self, total: np.ndarray, step: int) -> np.ndarray:
        return np.floor(total * np.cos(np.pi / 2 * step / self.number)).astype(np.int64)


@register_schedule("dilated")
class Dilated(FixedSchedule):
    """As many positions as each grid of the order dilated adds; combined with that order, the grids themselves."""

    def __init__(self, base: int = 2):
        check_count("base", base, at_least=2)
        self.base = base

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        lengths, canvas = np.unique(total, return_inverse=True)
        width = int(lengths.max())
        levels = grid_levels(torch.from_numpy(lengths), width, self.base).numpy()
        later = (levels > step) & (np.arange(width) < lengths[:, None])
        return remaining - later.sum(1)[canvas]

"""Schedules that only count: how many positions a step fills depends on the step and on how many are left."""

import numpy as np
import torch

from anyorder.decoding.schedules.base import FixedSchedule, register_schedule
from anyorder.errors import InputError
from anyorder.orders.positional import grid_levels
from anyorder.registry import check_count


class NumberOfSteps(FixedSchedule):
    """At most T steps."""

    def __init__(self, number: int = 10):
        check_count("number of steps", number)
        self.number = number


@register_schedule("steps")
class EvenSteps(NumberOfSteps):
    """T steps of equal size; if the positions do not divide evenly, the first steps fill one more."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        steps_left = max(self.number - step + 1, 1)
        return -(-remaining // steps_left)


@register_schedule("linear")
class Linear(NumberOfSteps):
    """T steps; after step t, n (1 - t/T) of n positions are masked."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        return remaining - total * max(self.number - step, 0) // self.number


@register_schedule("cosine")
class Cosine(NumberOfSteps):
    """T steps; after step t, n cos(t/T pi/2) of n positions are masked, so later steps fill more."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        masked_after = total * np.cos(np.pi / 2 * min(step, self.number) / self.number)
        return remaining - np.floor(masked_after).astype(np.int64)


@register_schedule("timesteps")
class Timesteps(NumberOfSteps):
    """Dream's: T + 1 times from 1 down to eps; from time t to s, the share 1 - s/t of what is masked, rounded down.

    The last step fills the rest. Steps that would fill nothing are left out: the next one would see the same canvas.
    The counts are each sentence's own; Dream's code takes the mean over the batch.
    """

    def __init__(self, number: int = 10, eps: float = 0.001):
        check_count("number of steps", number, at_most=10_000)
        super().__init__(number)
        if not 0 < eps < 1:
            raise InputError(f"eps {eps:g}: expected a number between 0 and 1")
        times = torch.linspace(1, eps, int(number) + 1)  # in float32, as Dream's, whose rounding decides some counts
        self._shares = (1 - times[1:] / times[:-1]).numpy()
        self._left: dict[int, list[int]] = {}
        """See `_masked_after`, by length."""

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        lengths, canvas = np.unique(total, return_inverse=True)
        after = np.array([(self._masked_after(int(length))[step:] or [0])[0] for length in lengths])
        return remaining - after[canvas]

    def _masked_after(self, length: int) -> list[int]:
        """How many of so many positions are masked at first and after each step."""
        if length not in self._left:
            left = [length]
            for share in self._shares[:-1]:
                left.append(left[-1] - int(np.float32(left[-1]) * share))
            self._left[length] = [*dict.fromkeys(left), 0]
        return self._left[length]


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

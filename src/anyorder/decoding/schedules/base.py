"""What a schedule is: how many of the ranked positions a step fills. It never scores or fills positions.

A `FixedSchedule` depends on the step and on how many positions are left, so the host knows it in advance and
never waits for the device. An `AdaptiveSchedule` looks at the model's predictions. Schedules are looked up by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from anyorder.errors import InputError
from anyorder.orders.base import State
from anyorder.registry import from_name, is_count, is_number, register, split_names, with_numbers


class Schedule:
    """One way to decide how many positions a step fills."""

    name: str = ""
    """The name as the user wrote it, for tables and signatures."""

    @classmethod
    def parse(cls, options: str) -> "Schedule":
        """Build it from the numbers after the colon in its name, such as the `0.9` of `threshold:0.9`."""
        return with_numbers(cls, options)

    def narrow(self, state: State, scores: Tensor) -> Tensor:
        """(B, T) the order's scores, -inf at positions that may not be filled now; at least one per sequence may.

        scores: (B, T), -inf where nothing is masked.
        """
        return scores

    def reach(self, remaining: np.ndarray, total: np.ndarray) -> np.ndarray | None:
        """(B,) how many masked positions, from the left, `narrow` leaves in each sequence; None for all.

        Called only if filled positions are never masked again. remaining, total: see `FixedSchedule.counts`.
        """
        return None


class FixedSchedule(Schedule, ABC):
    """Known in advance."""

    @abstractmethod
    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        """(B,) positions to fill now. The engine clips it to [1, remaining].

        Args:
            remaining: (B,) positions still masked.
            total: (B,) positions that were initially masked.
            step: From 1.
        """

    def steps(self, total: int) -> int:
        """Number of steps for a canvas with `total` masked positions."""
        return len(self.counts_by_step(total))

    def counts_by_step(self, total: int) -> list[int]:
        """How many positions each step fills in a canvas with `total` masked positions."""
        found: list[int] = []
        remaining = total
        while remaining > 0:
            count = self.counts(np.array([remaining]), np.array([total]), len(found) + 1)
            found.append(int(count.clip(1, remaining)[0]))
            remaining -= found[-1]
        return found


class AdaptiveSchedule(Schedule, ABC):
    """Depends on the predictions: the engine computes the logits of every masked position and waits for the device."""

    is_local: bool = False
    """Whether it looks only at predictions of this step, and only at positions that `narrow` leaves. If the order is
    local too, the engine computes only those positions."""

    @abstractmethod
    def accept(self, state: State, scores: Tensor) -> Tensor:
        """(B, T) bool: positions to fill now. scores: (B, T), from the order, -inf where nothing may be filled.

        If it accepts no position of a sequence, the engine fills the position that the order ranks first.
        """

    def start(self) -> "AdaptiveSchedule":
        """The schedule for one batch of canvases. A schedule that remembers earlier steps returns a fresh copy."""
        return self

    def keep(self, canvases: Tensor) -> None:
        """Keep only these canvases, by index; a schedule that remembers earlier steps forgets the rest."""


SCHEDULES: dict[str, type[Schedule]] = {}


def register_schedule(name: str) -> Callable[[type[Schedule]], type[Schedule]]:
    """Class decorator: register the schedule under this name."""
    return register("a schedule", name, SCHEDULES)


class Constant(FixedSchedule):
    """`one` position per step (the paper), or `k`."""

    def __init__(self, size: int = 1):
        self.size = size
        self.name = "one" if size == 1 else str(size)

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        return np.minimum(self.size, remaining)

    def steps(self, total: int) -> int:
        return -(-total // self.size)


def make_schedule(name: str | int | Schedule) -> Schedule:
    """The schedule of that name: `one`, a whole number of positions per step, `threshold:0.9`, `blocks:8+cosine:4`."""
    if isinstance(name, Schedule):
        return name
    text = str(name).strip()
    if text == "one" or is_count(text):
        return Constant(1 if text == "one" else int(text))
    return from_name("schedule", text, SCHEDULES, also=("one", "a whole number from 1 to a thousand million"))


def split_schedules(names: str) -> list[str]:
    """A comma-separated list in which a schedule's own options may contain commas.

    >>> split_schedules("one,4,klass:0.9,0.01,blocks:8+factor:1")
    ['one', '4', 'klass:0.9,0.01', 'blocks:8+factor:1']
    """
    found = split_names(names, lambda part: is_number(part) and not is_count(part))
    if not found:
        raise InputError("is empty: name a schedule", "schedule")
    return found


def best_ranked(scores: Tensor) -> Tensor:
    """(B, T) bool: the position of each sequence with the highest score; ties go left."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.argmax(1, keepdim=True), True)

"""Schedules: how many of the ranked positions a step fills. They never score positions and never fill anything.

A `FixedSchedule` follows from how much is left, so the host knows it in advance and never waits for the device. An
`AdaptiveSchedule` looks at the model's predictions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from anyorder.errors import InputError
from anyorder.orders.base import State
from anyorder.registry import from_name, is_count, with_numbers


class Schedule:
    """One way to decide how many positions a step fills."""

    name: str = ""
    """As the user wrote it: it names the schedule in tables and signatures."""

    @classmethod
    def parse(cls, options: str) -> "Schedule":
        """From what stands after the colon of its name, numbers for its constructor: the `0.9` of `threshold:0.9`."""
        return with_numbers(cls, options)


class FixedSchedule(Schedule, ABC):
    """Known in advance."""

    @abstractmethod
    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        """(B,) positions to fill now. The engine fills between 1 and what remains.

        Args:
            remaining: (B,) positions still masked.
            total: (B,) positions that were masked at first.
            step: From 1.
        """

    def steps(self, total: int) -> int:
        """How many steps a canvas with so many masked positions takes."""
        step, remaining = 0, total
        while remaining > 0:
            step += 1
            remaining -= int(self.counts(np.array([remaining]), np.array([total]), step).clip(1, remaining)[0])
        return step


class AdaptiveSchedule(Schedule, ABC):
    """Depends on the predictions: the engine computes the logits of every masked position and waits for the device."""

    @abstractmethod
    def accept(self, state: State, scores: Tensor) -> Tensor:
        """(B, T) bool: the positions to fill now. scores: (B, T), the order's, -inf where nothing is masked.

        Where it accepts no position of a sequence, the engine fills the one that the order ranks first.
        """


@dataclass
class Constant(FixedSchedule):
    """`one` position a step (the paper), or `k`."""

    size: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        return "one" if self.size == 1 else str(self.size)

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        return np.minimum(self.size, remaining)

    def steps(self, total: int) -> int:
        return -(-total // self.size)


SCHEDULES: dict[str, type[Schedule]] = {}


def register_schedule(name: str) -> Callable[[type[Schedule]], type[Schedule]]:
    """Class decorator: the schedule is found under this name."""

    def add(schedule: type[Schedule]) -> type[Schedule]:
        SCHEDULES[name] = schedule
        return schedule

    return add


@register_schedule("threshold")
class Threshold(AdaptiveSchedule):
    """All positions whose best token has at least this probability; if there are none, the one ranked first."""

    DEFAULT: ClassVar[float] = 0.9

    def __init__(self, probability: float = DEFAULT):
        if not 0 < probability <= 1:
            raise InputError(f"{probability:g} is not a probability above 0")
        self.probability = probability

    def accept(self, state: State, scores: Tensor) -> Tensor:
        assert state.logits is not None
        best = state.allowed.restrict(state.logits).amax(-1) - state.logits.logsumexp(-1)
        return state.spread(best) >= float(np.log(self.probability))


def make_schedule(name: str | int | Schedule) -> Schedule:
    """The schedule of that name: `one`, a whole number of positions a step, `threshold:0.9`."""
    if isinstance(name, Schedule):
        return name
    text = str(name).strip()
    if text == "one":
        return Constant(1)
    if is_count(text):
        return Constant(int(text))
    return from_name("schedule", text, SCHEDULES, also=("one", "a whole number from 1 to a thousand million"))


def best_ranked(scores: Tensor) -> Tensor:
    """(B, T) bool: the position of each sequence with the highest score; ties go left."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.argmax(1, keepdim=True), True)

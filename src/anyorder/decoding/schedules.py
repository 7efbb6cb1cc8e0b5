"""How many positions a step fills."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from anyorder.errors import InputError


class Schedule(ABC):
    """Budgets known beforehand: what a step fills follows from how much is left, so the device is never asked."""

    name: str

    @abstractmethod
    def fills(self, remaining: np.ndarray) -> np.ndarray:
        """(B,) positions still masked to (B,) positions to fill now, between 1 and what remains."""

    def steps(self, length: int) -> int:
        """How many steps a sentence of this length takes."""
        count = 0
        while length > 0:
            length -= int(self.fills(np.array([length]))[0])
            count += 1
        return count


@dataclass(frozen=True)
class Fixed(Schedule):
    """`size` positions a step; one is the paper's."""

    size: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        return "one" if self.size == 1 else str(self.size)

    def fills(self, remaining: np.ndarray) -> np.ndarray:
        return np.minimum(self.size, remaining)

    def steps(self, length: int) -> int:
        return -(-length // self.size)


def make_schedule(name: str | int) -> Schedule:
    """`one`, or a whole number of positions."""
    text = "1" if name == "one" else str(name)
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"unknown budget '{name}': expected 'one' or a whole number from 1")
    return Fixed(int(text))

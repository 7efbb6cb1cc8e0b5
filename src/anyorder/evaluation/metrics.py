"""Metrics: scores of a test set that follow from sums of counts over its examples.

Because only sums matter, every score, interval and significance test is computed in the same way, whatever is counted.
Knows nothing about models, tables or files.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from anyorder.decoding.trajectory import Trajectory

Counts = NDArray[Any]
"""(N, K) what to sum over N examples."""
Interval = tuple[float, float]
NORMAL_95 = 1.959964
"""The normal distribution's quantile for 95%."""


class Metric(ABC):
    """One metric on one test set. To add one, count something per example, and score the sums."""

    name: ClassVar[str]
    """As in the JSON, such as `bleu`."""
    heading: ClassVar[str]
    """As in tables; empty if they leave it out."""
    digits: ClassVar[int] = 1
    """How many decimals tables show."""
    unit: ClassVar[str] = "line"
    """What an example is, such as `sentence`."""

    @abstractmethod
    def counts(self, trajectories: Sequence[Trajectory]) -> Counts:
        """(N, K), one row per example. Significance tests need whole numbers, so that sums are exact."""

    @abstractmethod
    def score(self, sums: Counts) -> NDArray[np.float64]:
        """(...) scores of many test sets at once, from their summed counts, (..., K)."""

    def value(self, sums: Counts) -> float | None:
        """The score of one test set, from (K,) sums; None if it has none."""
        return float(self.score(sums))

    def intervals(self, counts: Mapping[str, Counts], samples: int) -> dict[str, Interval]:
        """A 95% interval of each system's score; empty if the metric has none."""
        return {}

    def settings(self) -> dict[str, str]:
        """What the signature says about it."""
        return {}


class Share(Metric):
    """A percentage: of what may be right (the second count), how much is (the first)."""

    def score(self, sums: Counts) -> NDArray[np.float64]:
        return 100 * sums[..., 0] / sums[..., 1]

    def value(self, sums: Counts) -> float | None:
        return float(self.score(sums)) if sums[1] else None


def wilson_interval(right: int, count: int) -> Interval:
    """The 95% interval of a share, in percent (Wilson 1927); it stays within 0 and 100.

    >>> wilson_interval(0, 10)
    (0.0, 27.753280303)
    """
    share, spread = right / count, NORMAL_95**2 / count
    middle = share + spread / 2
    half = NORMAL_95 * math.sqrt((share * (1 - share) + spread / 4) / count)
    low, high = (100 * (middle + sign * half) / (1 + spread) for sign in (-1, 1))
    return round(max(low, 0.0), 9), round(min(high, 100.0), 9)  # 100, not 99.99999999999999

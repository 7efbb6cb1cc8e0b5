"""Metrics: scores of a test set that follow from sums of counts over its examples, and those of texts.

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
from anyorder.evaluation.significance import bootstrap_intervals

Counts = NDArray[Any]
"""(N, K) what to sum over N examples."""
Interval = tuple[float, float]
Systems = Mapping[str, Sequence[Trajectory]]
"""Trajectories of the same examples by the name of the system."""
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


class Recovered(Share):
    """Masked tokens that were filled as they had been. Tokens of one line depend on each other, so lines are resampled.

    targets: the masked tokens of each line, from left to right. share: of the tokens to be masked, for the signature.
    """

    name, heading = "recovered", "recovered %"

    def __init__(self, targets: Sequence[Sequence[str]], share: float | None = None):
        self._targets, self._share = targets, share

    def counts(self, trajectories: Sequence[Trajectory]) -> Counts:
        """(lines, 2): tokens recovered, tokens masked."""
        rows = [
            (sum(map(str.__eq__, run.tokens, expected)), len(expected))
            for run, expected in zip(trajectories, self._targets, strict=True)
        ]
        return np.array(rows, np.int64).reshape(-1, 2)

    def intervals(self, counts: Mapping[str, Counts], samples: int) -> dict[str, Interval]:
        return bootstrap_intervals(counts, self.score, samples)

    def settings(self) -> dict[str, str]:
        return {} if self._share is None else {"mask.share": f"{self._share:g}"}


class Exact(Recovered):
    """Lines in which every masked token was recovered."""

    name, heading = "exact", "exact %"

    def counts(self, trajectories: Sequence[Trajectory]) -> Counts:
        right, masked = super().counts(trajectories).T
        return np.stack([right == masked, np.ones_like(masked)], 1).astype(np.int64)

    def intervals(self, counts: Mapping[str, Counts], samples: int) -> dict[str, Interval]:
        return {}


class LogProbability(Metric):
    """The model's mean log-probability of the tokens it filled in: its own opinion of the result."""

    name, heading, digits = "logprob", "log p", 3

    def counts(self, trajectories: Sequence[Trajectory]) -> Counts:
        return np.array([(sum(run.logprobs), len(run.logprobs)) for run in trajectories]).reshape(-1, 2)

    def score(self, sums: Counts) -> NDArray[np.float64]:
        return sums[..., 0] / sums[..., 1]


class Tokens(Metric):
    """The number of masked tokens; tables leave it out."""

    name, heading = "tokens", ""

    def counts(self, trajectories: Sequence[Trajectory]) -> Counts:
        return np.array([[run.length] for run in trajectories], np.int64)

    def score(self, sums: Counts) -> NDArray[np.float64]:
        return sums[..., 0]

    def value(self, sums: Counts) -> int:
        return int(sums[0])


class Same(Share):
    """Texts that equal their references: the metric of tasks that have no other."""

    name, heading = "exact", "exact %"

    def __init__(self, references: Sequence[str]):
        self._references = references

    def counts(self, trajectories: Sequence[Trajectory]) -> Counts:
        pairs = zip(trajectories, self._references, strict=True)
        return np.array([(run.text.strip() == reference.strip(), 1) for run, reference in pairs], np.int64)

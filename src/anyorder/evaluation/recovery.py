"""How well texts are recovered: whole ones, and the tokens of texts that were masked at random."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anyorder.decoding.trajectory import Trajectory
from anyorder.evaluation.metrics import Counts, Interval, Metric, Share
from anyorder.evaluation.significance import bootstrap_intervals


class Recovered(Share):
    """Masked tokens that were filled as they had been. Tokens of one line depend on each other, so lines are resampled.

    Args:
        targets: The masked tokens of each line, from left to right.
        share: The share of tokens that was to be masked, for the signature.
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

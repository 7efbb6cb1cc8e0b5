"""What an analysis holds, and how metrics are estimated from sums over sentences. Knows nothing about orders or words.

The 95% interval is a bootstrap over sentences (percentiles of test sets sampled with replacement, the same sentences
for every system). The same samples give the interval of the difference from the first system, which is tighter than
comparing two intervals. The null interval comes from test sets with shuffled orders.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anyorder.analysis.order_metrics import Array, divide

SOLVED = "solved"
"""The metric that only puzzles have."""


@dataclass(frozen=True)
class Metric:
    """One number about a system. None where there is no such number."""

    value: float | None
    low: float | None
    """The 95% interval, from here to `high`."""
    high: float | None
    null: float | None
    """The value for random orders on the same sentences; None if the order cannot change this metric."""
    null_low: float | None
    null_high: float | None
    count: int
    """The number of sentences that the metric is computed from."""
    difference: float | None = None
    """Difference from the first system; None for the first."""
    difference_low: float | None = None
    difference_high: float | None = None


@dataclass(frozen=True)
class SystemAnalysis:
    """All measurements of one system."""

    name: str
    signature: str
    metrics: dict[str, Metric]
    labels: dict[str, float]
    """The share of sentences that have each label."""
    positions: dict[str, Any]
    """Heat map: at which time (rows) which part of the sentence (columns) was filled. Each row sums to 1."""
    jumps: dict[str, float]
    """The share of jumps by signed length."""
    by_tag: dict[str, Metric] | None
    """Relative step, from 0 to 1, by part of speech."""


@dataclass(frozen=True, repr=False)
class Analysis:
    """Several systems, measured on the same sentences."""

    sentences: int
    systems: list[SystemAnalysis]
    per_sentence: dict[str, list[list[float | None]]]
    """Metrics by system and sentence; `label` is an index into `order_metrics.LABELS`."""
    notes: list[str]
    """What could not be measured, and why."""

    def __repr__(self) -> str:
        return f"Analysis(sentences={self.sentences}, systems={[system.name for system in self.systems]})"

    @property
    def noun(self) -> str:
        """What was measured: `sentence` or `puzzle`."""
        return "puzzle" if any(SOLVED in system.metrics for system in self.systems) else "sentence"

    def as_json(self) -> dict[str, Any]:
        """Format 1, in which the metrics are called `figures`."""
        record = {"format": 1, **asdict(self)}
        record["systems"] = [
            {("figures" if key == "metrics" else key): value for key, value in system.items()}
            for system in record["systems"]
        ]
        return record


@dataclass(frozen=True)
class Statistic:
    """A metric as something to sum over sentences, for K orders of each."""

    columns: Array
    """(K, sentences, columns)"""
    finish: Callable[[Array, Array], Array]
    """From weighted sums (..., columns), and the sum of squared weights times the first column, to a metric (...)."""
    centered: bool = False
    """Shift the resampled metrics so that their mean is the metric: a test set that contains sentences twice is less
    varied, and its entropy is lower."""

    @classmethod
    def ratio(cls, numerators: Array, denominators: Array) -> "Statistic":
        """The sum of (K, sentences) numerators divided by that of (sentences,) denominators.

        A denominator is zero where a sentence has no such number.
        """
        columns = np.stack(np.broadcast_arrays(denominators, numerators), -1)
        return cls(columns, lambda sums, squares: divide(sums[..., 1], sums[..., 0]))

    def values(self) -> Array:
        """(K,): every sentence once."""
        sums = self.columns.sum(1, dtype=np.float64)
        return self.finish(sums, sums[:, 0])

    def resampled(self, weights: Array) -> Array:
        """(samples,): for the first of the K orders, sentences weighted by (samples, sentences) weights."""
        columns = self.columns[0]
        return self.finish(
            (weights @ columns.astype(np.float32)).astype(np.float64),
            (weights**2 @ columns[:, 0].astype(np.float32)).astype(np.float64),
        )

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.columns[0, :, 0]))


class MetricEstimator:
    """Estimates the metrics of systems, and compares them with those of the first one."""

    def __init__(self, sentences: int, samples: int, seed: int):
        random = np.random.default_rng(seed)
        drawn = random.multinomial(sentences, np.full(sentences, 1 / sentences), samples)
        self._weights = drawn.astype(np.float32)
        """(samples, sentences)"""
        self._first: dict[str, tuple[float, Array]] = {}
        """Value and resampled values of the first system, by metric; empty before it."""

    def metrics(self, statistics: Mapping[str, Statistic], nulls: Mapping[str, Sequence[Array]]) -> dict[str, Metric]:
        """The metrics of one system. nulls: Values of test sets with shuffled orders, in chunks, if any."""
        estimates, metrics = {}, {}
        for name, statistic in statistics.items():
            value, resampled = float(statistic.values()[0]), statistic.resampled(self._weights)
            if statistic.centered:
                resampled = resampled - resampled.mean() + value
            estimates[name] = value, resampled
            null = np.concatenate(nulls.get(name, [np.full(1, np.nan)]))
            difference: tuple[float | None, ...] = (None, None, None)
            if name in self._first:
                first_value, first_resampled = self._first[name]
                difference = _round(value - first_value), *_interval(resampled - first_resampled)
            metrics[name] = Metric(
                _round(value), *_interval(resampled), _round(float(np.mean(null))), *_interval(null),
                statistic.count, *difference,
            )  # fmt: skip
        self._first = self._first or estimates
        return metrics


def _interval(values: Array) -> tuple[float | None, float | None]:
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return None, None
    low, high = np.percentile(known, [2.5, 97.5])
    return _round(float(low)), _round(float(high))


def _round(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)

"""What an analysis holds: every metric of every system with its interval and its null. Computes nothing."""

from dataclasses import asdict, dataclass
from typing import Any

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
    """Metrics by system and sentence; `label` is an index into `order_labels.LABELS`."""
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

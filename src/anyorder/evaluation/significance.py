"""Significance: two-sided paired tests between systems on the same examples, and bootstrap intervals.

Takes counts per example and a function that scores their sums, so it knows nothing about BLEU or text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from anyorder.errors import check_number, unknown

Test = Literal["randomization", "bootstrap"]
SEED = 12345
SAMPLES = 10_000
MIN_SAMPLES = 20
"""With fewer resamples, no p-value could fall below 0.05."""
MAX_SAMPLES = 1_000_000
MIN_SENTENCES = 10
"""With fewer sentences there is no test: with five, no p-value of a two-sided test could fall below 0.05."""
_TIE = 1e-9
"""Scores closer than this are equal; they differ only by rounding."""
BLOCK_SIZE = 1 << 22
"""Numbers drawn at once, unless one sample needs more."""

SumScore = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From summed statistics (..., K) to scores (...)."""


@dataclass(frozen=True)
class Difference:
    """A system's score minus a baseline's."""

    value: float
    low: float
    high: float
    """A 95% interval: percentiles of paired bootstrap samples."""
    p_value: float
    """Two-sided."""


def check_test(test: str, samples: int) -> None:
    """Raise an `InputError` for a test that does not exist, or for too few or too many samples."""
    if test not in get_args(Test):
        raise unknown("test", test, get_args(Test))
    check_number("samples", samples, at_least=MIN_SAMPLES, at_most=MAX_SAMPLES)


def compare(
    statistics: Mapping[str, NDArray[np.int64]],
    baselines: Sequence[str],
    score: SumScore,
    test: Test = "randomization",
    samples: int = SAMPLES,
    seed: int = SEED,
) -> dict[str, dict[str, Difference]]:
    """Every system against every baseline but itself: differences by system, then by baseline.

    All pairs see the same draws, so a comparison does not depend on which other systems there are.

    Args:
        statistics: (sentences, K) for each system, by name; their sum over any resampled test set can be scored.
        test: `randomization`: outputs of the two systems are swapped at random, sentence by sentence; the p-value is
            the share of swaps whose absolute difference is at least the observed one. `bootstrap`: test sets are drawn
            with replacement; the p-value is the share of them whose difference is at least as far from the observed
            one as that is from zero. Both count the observed test set as one of the samples.
    """
    names = list(statistics)
    pairs = [(name, baseline) for name in names for baseline in baselines if name != baseline]
    sums = _Sums(statistics)
    observed = {name: float(score(total)) for name, total in sums.totals.items()}
    differences = {(name, other): observed[name] - observed[other] for name, other in pairs}
    resampled = _bootstrap_scores(sums, score, samples, seed) if pairs else {}
    if test == "randomization":
        extreme = _count_swaps(sums, differences, score, samples, seed)
    else:
        extreme = {
            (name, other): int((np.abs(resampled[name] - resampled[other] - value) >= abs(value) - _TIE).sum())
            for (name, other), value in differences.items()
        }
    found: dict[str, dict[str, Difference]] = {name: {} for name in names}
    for (name, other), value in differences.items():
        low, high = _percentiles(resampled[name] - resampled[other])
        p_value = (1 + extreme[name, other]) / (1 + samples)
        found[name][other] = Difference(value, low, high, p_value)
    return found


def bootstrap_intervals(
    statistics: Mapping[str, NDArray[np.int64]], score: SumScore, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, tuple[float, float]]:
    """A 95% interval of every system's score: percentiles of bootstrap samples. Arguments as in `compare`."""
    resampled = _bootstrap_scores(_Sums(statistics), score, samples, seed)
    return {name: _percentiles(scores) for name, scores in resampled.items()}


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for several comparisons.

    >>> holm({"a": 0.04, "b": 0.01, "c": 0.03})
    {'a': 0.06, 'b': 0.03, 'c': 0.06}
    """
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


class _Sums:
    """Sums of the statistics of all systems, over all sentences and over resampled ones."""

    def __init__(self, statistics: Mapping[str, NDArray[np.int64]]):
        self._names = list(statistics)
        self._columns = np.concatenate(list(statistics.values()), axis=1).astype(np.float64)
        self.sentences = len(self._columns)
        self.totals = self._split(self._columns.sum(0))

    def weighted(self, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """(samples, K) by system, for (samples, sentences) weights. Whole numbers, so the sums are exact."""
        return self._split(weights @ self._columns)

    def _split(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        parts = np.split(sums, len(self._names), axis=-1)
        return {name: np.ascontiguousarray(part) for name, part in zip(self._names, parts, strict=True)}


def _bootstrap_scores(sums: _Sums, score: SumScore, samples: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """(samples,) scores of each system on the same resampled test sets."""
    blocks = [
        {name: score(sample) for name, sample in sums.weighted(counts).items()}
        for counts in draw_bootstrap(sums.sentences, samples, seed)
    ]
    return {name: np.concatenate([block[name] for block in blocks]) for name in sums.totals}


def _percentiles(values: NDArray[np.float64]) -> tuple[float, float]:
    """The bounds of the middle 95%."""
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def _count_swaps(
    sums: _Sums, differences: Mapping[tuple[str, str], float], score: SumScore, samples: int, seed: int
) -> dict[tuple[str, str], int]:
    """How many random swaps give at least the observed difference, for each pair of systems."""
    extreme = dict.fromkeys(differences, 0)
    for swaps in draw_swaps(sums.sentences, samples, seed):
        swapped = sums.weighted(swaps)
        for (name, other), value in differences.items():
            first = swapped[name] + sums.totals[other] - swapped[other]
            second = sums.totals[name] + sums.totals[other] - first
            extreme[name, other] += int((np.abs(score(first) - score(second)) >= abs(value) - _TIE).sum())
    return extreme


# Random draws, in blocks of bounded memory. They depend on the seed and the number of sentences only: not on the
# systems, the blocks or the version of numpy.


def draw_swaps(sentences: int, samples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Blocks of (samples, sentences): 1 where two systems swap their outputs, else 0, with equal probability."""
    for words in _random_words(-(-sentences // 64), sentences, samples, seed):
        yield np.unpackbits(words.view(np.uint8), axis=1, count=sentences).astype(np.float64)


def draw_bootstrap(sentences: int, samples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Blocks of (samples, sentences): how often each sentence is in a test set drawn with replacement."""
    for words in _random_words(-(-sentences // 2), sentences, samples, seed):
        numbers = words.view("<u4")[:, :sentences].astype(np.uint64)
        chosen = ((numbers * np.uint64(sentences)) >> np.uint64(32)).astype(np.int64)
        chosen += sentences * np.arange(len(chosen))[:, None]
        yield np.bincount(chosen.ravel(), minlength=chosen.size).reshape(chosen.shape).astype(np.float64)


def _random_words(words: int, sentences: int, samples: int, seed: int) -> Iterator[NDArray[np.uint64]]:
    """Blocks of (samples, words): 64 random bits each. Every sample takes whole words."""
    bits = np.random.PCG64(seed)
    block = max(1, BLOCK_SIZE // sentences)
    for start in range(0, samples, block):
        count = min(block, samples - start)
        yield bits.random_raw(count * words).astype("<u8").reshape(count, words)

"""Per-sentence counts for BLEU, computed once: their sums give the BLEU of any resampled test set.

Knows nothing about systems or tests.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU


def sentence_statistics(
    metric: BLEU, systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[NDArray[np.int64]]:
    """For each system (sentences, 2 + 2N): its length, the reference's, N counts of matched n-grams, N of all n-grams.

    Args:
        metric: sacreBLEU's metric; it tokenizes and counts.
        systems: The hypotheses of each system.
        references: Sets of references, each with one per sentence.
    """
    # sacreBLEU's own paired tests start like this; its public functions return sums only.
    metric._ref_cache = metric._cache_references(references)
    counts = [metric._extract_corpus_statistics(hypotheses, None) for hypotheses in systems]
    return [np.array(rows, np.int64).reshape(-1, 2 + 2 * metric.max_ngram_order) for rows in counts]


def corpus_score(metric: BLEU, statistics: NDArray[np.int64]) -> float:
    """BLEU of all sentences, 0 to 100: exactly what `metric.corpus_score` gives. `statistics`: (sentences, 2 + 2N)."""
    produced, expected, *counts = (int(count) for count in statistics.sum(0))
    return metric.compute_bleu(
        correct=counts[: metric.max_ngram_order],
        total=counts[metric.max_ngram_order :],
        sys_len=produced,
        ref_len=expected,
        smooth_method=metric.smooth_method,
        smooth_value=metric.smooth_value,
        effective_order=metric.effective_order,
        max_ngram_order=metric.max_ngram_order,
    ).score


def bleu_of_sums(metric: BLEU, sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """BLEU of many test sets at once, (...), from their summed statistics, (..., 2 + 2N); smoothed as in the metric."""
    order = metric.max_ngram_order
    produced, expected = sums[..., 0], sums[..., 1]
    matched, total = sums[..., 2 : 2 + order], sums[..., 2 + order :]
    precisions, possible = _precisions(metric, matched, total)
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity_penalty = np.exp(np.minimum(0.0, 1 - expected / produced))
        logarithms = np.log(precisions)
    if metric.effective_order:
        mean = np.where(possible, logarithms, 0.0).sum(-1) / np.maximum(1, possible.sum(-1))
    else:
        mean = logarithms.mean(-1)
    return np.where(matched.any(-1), 100 * brevity_penalty * np.exp(mean), 0.0)


def _precisions(
    metric: BLEU, matched: NDArray[np.float64], total: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The smoothed precision of each n, and whether there are n-grams at all. Both (..., N)."""
    default = BLEU.SMOOTH_DEFAULTS[metric.smooth_method]
    value = default if metric.smooth_value is None else metric.smooth_value
    if metric.smooth_method == "add-k":
        added = value * (np.arange(metric.max_ngram_order) > 0)
        matched, total = matched + added, total + added
    possible = total > 0
    missing = possible & (matched == 0)
    if metric.smooth_method == "exp":
        matched = np.where(missing, 0.5 ** np.cumsum(missing, -1), matched)
    elif metric.smooth_method == "floor":
        matched = np.where(missing, value, matched)
    return matched / np.where(possible, total, 1), possible

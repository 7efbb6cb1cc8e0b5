"""All metrics of one system, for its own orders and for shuffled ones. Knows nothing about intervals or files."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from anyorder.analysis import linguistics, order_metrics
from anyorder.analysis.linguistics import Ranks, Text
from anyorder.analysis.order_labels import LABELS, labels
from anyorder.analysis.order_metrics import Array, RankedOrders
from anyorder.analysis.statistics import Ratio, Statistic, divide_columns, ratio_statistics

BINS = 20
"""Rows and columns of the heat map."""
MAX_JUMP = 10
"""Longer jumps are counted as this long."""
ARNESS_LENGTHS = (1, 2, 4)
PER_SENTENCE = (
    "kendall left-to-right",
    "kendall outer-in",
    "edge share",
    "adjacent share",
    "mean jump",
    "repetition rate",
    "sentence bleu",
    "solved",
)
"""Metrics that are also reported for every sentence."""
TOKENS_AT_ONCE = 400_000
"""Shuffled orders are measured together, up to about this many tokens."""

Groups = Sequence[tuple[Array, Array]]
"""Sentences of one length together: (m,) their indices, and (K, m, n) the steps of K orders of each."""


def measure(groups: Groups, text: Text, frequencies: Array) -> dict[str, Statistic]:
    """The metrics of K orders of what a system wrote. frequencies: see `Text.frequencies`"""
    number, count = len(groups[0][1]), len(text.sentences)
    ratios: dict[str, Ratio] = {}
    heat = np.zeros((number, count, 1 + BINS**2), np.float32)
    signs = np.zeros((number, count, 1 + BINS * (BINS - 1) // 2), np.float32)
    earlier = np.zeros((number, len(text.owner)), np.int32)
    until = np.zeros_like(earlier)
    for rows, steps in groups:
        orders = order_metrics.ranked(steps)
        for name, (numerators, denominators) in _sentence_ratios(orders, text.ends_in_punctuation[rows]).items():
            if name not in ratios:
                ratios[name] = np.zeros((number, count)), np.zeros(count)
            ratios[name][0][:, rows] = numerators
            ratios[name][1][rows] = denominators
        heat[:, rows, 0] = 1
        heat[:, rows, 1:] = order_metrics.heat_map(orders, BINS).reshape(*steps.shape[:2], -1)
        profile = order_metrics.profile_signs(orders, BINS)
        signs[:, rows, 0] = np.any(profile != 0, axis=-1)
        signs[:, rows, 1:] = profile
        token_indices = text.starts[rows][:, None] + np.arange(steps.shape[-1])
        earlier[:, token_indices], until[:, token_indices] = orders.earlier, orders.until
    ranks = Ranks(earlier, until, (earlier + until) / (2 * text.lengths[text.owner]))
    return {
        **ratio_statistics(ratios),
        "order entropy": Statistic(heat, _entropy, centered=True),
        "diversity": Statistic(signs, _diversity),
        **ratio_statistics(linguistics.suffixes_last(text, ranks)),
        **ratio_statistics(linguistics.constituents_at_once(text, ranks)),
        "frequency correlation": Statistic(linguistics.frequency_moments(text, ranks, frequencies), _correlation),
        **ratio_statistics(linguistics.steps_by_tag(text, ranks)),
    }


def shuffled_orders(groups: Groups, number: int, random: np.random.Generator) -> Iterator[Groups]:
    """The steps of every sentence shuffled, `number` times in all, in chunks of bounded memory."""
    tokens = sum(steps[0].size for _, steps in groups)
    at_once = max(1, min(number, TOKENS_AT_ONCE // tokens))
    for first in range(0, number, at_once):
        size = min(at_once, number - first)
        tiled = ((rows, np.broadcast_to(steps, (size, *steps.shape[1:]))) for rows, steps in groups)
        yield [(rows, random.permuted(steps, axis=-1)) for rows, steps in tiled]


def jump_shares(groups: Groups) -> dict[str, float]:
    """The share of jumps by signed length."""
    counts = np.zeros(2 * MAX_JUMP + 1, np.int64)
    for _, steps in groups:
        moves = np.clip(order_metrics.jumps(steps), -MAX_JUMP, MAX_JUMP) + MAX_JUMP
        counts += np.bincount(moves.ravel(), minlength=len(counts))
    shares = counts / max(1, counts.sum())
    return {str(i - MAX_JUMP): round(float(share), 6) for i, share in enumerate(shares) if i != MAX_JUMP}


def mean_heat_map(statistics: Mapping[str, Statistic]) -> list[list[float]]:
    """The heat map of the test set, row by row."""
    sums = statistics["order entropy"].columns[0].sum(0, dtype=np.float64)
    share = (sums[1:] / max(1.0, sums[0])).reshape(BINS, BINS)
    return np.round(share, 6).tolist()


def sentence_values(statistics: Mapping[str, Statistic]) -> dict[str, list[float | None]]:
    """The metrics of each sentence, and the index of its label."""
    values_by_metric: dict[str, list[float | None]] = {}
    for name in PER_SENTENCE:
        if name in statistics:
            columns = statistics[name].columns[0]
            values = divide_columns(columns, columns[:, 0])
            values_by_metric[name] = [None if np.isnan(value) else round(value, 4) for value in values.tolist()]
    is_label = np.stack([statistics[f"label {name}"].columns[0, :, 1] for name in LABELS], -1)
    values_by_metric["label"] = np.where(is_label.any(-1), is_label.argmax(-1), len(LABELS) - 1).tolist()
    return values_by_metric


def _sentence_ratios(orders: RankedOrders, ends_in_punctuation: Array) -> dict[str, tuple[Array, Array | float]]:
    """Metrics of (K, m, n) orders: (K, m) numerators and their denominators, zero where there is no such metric.

    Correlations, labels and shares of sentences count every sentence once; metrics of steps count every step once.
    """
    length = orders.length
    left_to_right, outer_in = order_metrics.left_to_right(length), order_metrics.outer_in(length)
    tau, rho = order_metrics.kendall(orders, left_to_right), order_metrics.spearman(orders, left_to_right)
    correlations = {
        "kendall left-to-right": tau,
        "kendall right-to-left": -tau,
        "kendall outer-in": order_metrics.kendall(orders, outer_in),
        "spearman left-to-right": rho,
        "spearman outer-in": order_metrics.spearman(orders, outer_in),
        "spearman right-to-left": -rho,
    }
    ratios: dict[str, tuple[Array, Array | float]] = {
        name: (np.nan_to_num(value), (~np.isnan(value[0])).astype(np.float64)) for name, value in correlations.items()
    }
    ratios["edge share"] = order_metrics.at_edge(orders).sum(-1), length
    distances = np.abs(order_metrics.jumps(orders))
    ratios["adjacent share"] = (distances == 1).sum(-1), length - 1
    ratios["mean jump"] = distances.sum(-1), length - 1
    for k in ARNESS_LENGTHS:
        ratios[f"local ar-ness@{k}"] = order_metrics.local_arness(orders, k).sum(-1), max(0, length - k)
        ratios[f"global ar-ness@{k}"] = order_metrics.global_arness(orders, k).sum(-1), length
    shapes = {
        "left-to-right share": order_metrics.is_left_to_right(orders),
        "punctuation first share": order_metrics.is_last_then_left_to_right(orders) * ends_in_punctuation,
        "nearly left-to-right share": order_metrics.is_nearly_left_to_right(orders, ends_in_punctuation),
    }
    has_order = float(length > 1)
    ratios |= {name: (is_such * has_order, has_order) for name, is_such in shapes.items()}
    label = labels(orders, tau)
    for index, name in enumerate(LABELS):
        ratios[f"label {name}"] = label == index, 1.0
    return ratios


def _entropy(sums: Array, squares: Array) -> Array:
    heat = sums[..., 1:] / np.maximum(sums[..., :1], 1)
    return order_metrics.order_entropy(heat.reshape(*heat.shape[:-1], BINS, BINS))


def _diversity(sums: Array, squares: Array) -> Array:
    return order_metrics.diversity(sums[..., 1:], sums[..., 0], squares)


def _correlation(sums: Array, squares: Array) -> Array:
    return linguistics.correlation(sums)

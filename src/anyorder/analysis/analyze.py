"""Measure systems on a test set: every metric with its confidence interval and its value for random orders.

The null is the same metric on the same sentences with the steps of each sentence shuffled: the mean and the 2.5 and
97.5 percentiles over `null_samples` such test sets. Metrics that do not depend on the order have no null, except for
repetitions, whose null shuffles the words of each sentence. Never decodes and needs no model.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from anyorder.analysis import linguistics, order_metrics
from anyorder.analysis.linguistics import TAG, Text
from anyorder.analysis.order_metrics import LABELS, Array, RankedOrders, by_length
from anyorder.analysis.parsers import Parser, Trees, annotate, choose_parser, read_trees
from anyorder.analysis.results import SOLVED, Analysis, MetricEstimator, Statistic, SystemAnalysis
from anyorder.decoding.trajectory import Trajectory, check_systems
from anyorder.errors import InputError, check_number
from anyorder.evaluation.bleu import sentence_bleu
from anyorder.evaluation.evaluate import name_systems
from anyorder.evaluation.metrics import Systems
from anyorder.evaluation.puzzles import only_puzzles, puzzle_task, solved_puzzles
from anyorder.tasks import PuzzleTask

OF_WORDS = ("suffix last share", "suffixes last", "frequency correlation", "punctuation first share")
"""Metrics that make no sense for the cells of a puzzle."""
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


def analyze(
    systems: Systems | Sequence[Trajectory],
    references: Sequence[str] | None = None,
    tagger: str | Parser = "auto",
    trees: Path | Trees | None = None,
    samples: int = 1000,
    null_samples: int = 50,
    seed: int = 1,
    on_progress: Callable[[int], None] = lambda systems: None,
) -> Analysis:
    """Measure the orders of systems that translated the same sentences.

    Args:
        systems: Trajectories by system name, or the trajectories of a single system.
        references: One plain reference per sentence; adds sentence BLEU. Puzzles need none: their rules decide whether
            they are solved. Word metrics, and lines that are not puzzles, are left out.
        tagger: Source of part-of-speech tags and constituents: `auto` (spaCy's small English model, if it is installed
            and the text looks English), `none`, the name of a spaCy model, a spaCy model plus a benepar model for
            constituents (`en_core_web_md+benepar_en3`), `stanza:LANGUAGE`, or a `Parser`.
        trees: Constituents that replace the tagger's: a file of bracketed trees, one per line, or its `read_trees`.
        samples: Bootstrap samples for the 95% confidence intervals, at least 20.
        null_samples: Number of random baselines: copies of the test set with shuffled orders.
        seed: Random seed for both.
        on_progress: Called with 1 after every system.
    """
    check_number("samples", samples, at_least=20, at_most=1_000_000)
    check_number("null_samples", null_samples, at_least=1, at_most=100_000)
    check_number("seed", seed, at_least=0)
    systems = name_systems(systems)
    count = check_systems(systems, references)
    notes: list[str] = []
    puzzle = puzzle_task(systems)
    if puzzle is not None:
        lines = count
        systems, references = only_puzzles(systems, puzzle, references)
        count = check_systems(systems, references)
        if count < lines:
            notes.append(f"left out {lines - count:,} of {lines:,} lines: not a puzzle of {puzzle.name}")
    trees = read_trees(trees) if isinstance(trees, Path) else trees
    every = [trajectory.tokens for trajectories in systems.values() for trajectory in trajectories]
    parser, why_none = choose_parser("none" if puzzle and tagger == "auto" else tagger, every)
    notes += why_none
    occurrences = Counter(token for tokens in every for token in tokens)
    estimator = MetricEstimator(count, samples, seed)
    measured: list[SystemAnalysis] = []
    per_sentence: dict[str, list[list[float | None]]] = {}
    with_tree = 0
    for name, trajectories in systems.items():
        sentences = [trajectory.tokens for trajectory in trajectories]
        text = Text(sentences, annotate(sentences, parser, trees))
        with_tree += sum(annotation.spans is not None for annotation in text.annotations)
        groups = [(rows, steps[None]) for rows, steps in by_length([trajectory.steps for trajectory in trajectories])]
        quality = _quality(trajectories, references, puzzle)
        statistics, nulls = _measure(groups, text, text.frequencies(occurrences), quality, null_samples, seed)
        metrics = estimator.metrics(statistics, nulls)
        by_tag = {metric.removeprefix(TAG): metrics.pop(metric) for metric in statistics if metric.startswith(TAG)}
        system = SystemAnalysis(
            name=name,
            signature=" + ".join(sorted({trajectory.signature for trajectory in trajectories} - {""})),
            metrics=metrics,
            labels={label: metrics[f"label {label}"].value or 0.0 for label in LABELS},
            positions={"bins": BINS, "share": _mean_heat_map(statistics)},
            jumps=_jump_shares(groups),
            by_tag=by_tag or None,
        )
        measured.append(system)
        for metric, values in _sentence_values(statistics).items():
            per_sentence.setdefault(metric, []).append(values)
        on_progress(1)
    if trees is not None and not with_tree:
        raise InputError("no tree has the words of any sentence")
    if trees is not None and with_tree < len(every):
        notes.append(f"only {with_tree:,} of {len(every):,} sentences have a tree")
    return Analysis(count, measured, per_sentence, notes)


def _measure(
    groups: Groups, text: Text, frequencies: Array, quality: dict[str, Array], null_samples: int, seed: int
) -> tuple[dict[str, Statistic], dict[str, list[Array]]]:
    """The metrics of a system, and their values for random orders, in chunks. quality: see `_quality`"""
    statistics = _of_orders(groups, text, frequencies)
    nulls: dict[str, list[Array]] = {name: [] for name in statistics}
    random = np.random.default_rng([seed, 1])
    for shuffled in _shuffled_orders(groups, null_samples, random):
        for name, statistic in _of_orders(shuffled, text, frequencies).items():
            nulls[name].append(statistic.values())
    if SOLVED in quality:
        statistics = {name: statistic for name, statistic in statistics.items() if name not in OF_WORDS}
    else:
        repeated, neighbors = linguistics.repetitions(text.words)
        statistics["repetition rate"] = Statistic.ratio(repeated[None], neighbors)
        repeated_by_chance = linguistics.shuffled_repetitions(text.words, null_samples, random)
        nulls["repetition rate"] = [repeated_by_chance.sum(1) / max(1.0, neighbors.sum())]
    statistics |= {name: Statistic.ratio(scores[None], np.ones(len(scores))) for name, scores in quality.items()}
    return statistics, nulls


def _quality(
    trajectories: Sequence[Trajectory], references: Sequence[str] | None, puzzle: PuzzleTask | None
) -> dict[str, Array]:
    """(sentences,) scores by the name of their metric; none if there is nothing to compare with."""
    if puzzle is not None:
        return {SOLVED: 100.0 * solved_puzzles(puzzle, trajectories)}
    if references is None:
        return {}
    pairs = zip(trajectories, references, strict=True)
    return {"sentence bleu": np.array([sentence_bleu(trajectory.text, reference) for trajectory, reference in pairs])}


def _of_orders(groups: Groups, text: Text, frequencies: Array) -> dict[str, Statistic]:
    """The metrics of K orders of what a system wrote. frequencies: see `Text.frequencies`"""
    number, count = len(groups[0][1]), len(text.sentences)
    ratios: dict[str, tuple[Array, Array]] = defaultdict(lambda: (np.zeros((number, count)), np.zeros(count)))
    heat = np.zeros((number, count, 1 + BINS**2), np.float32)
    signs = np.zeros((number, count, 1 + BINS * (BINS - 1) // 2), np.float32)
    earlier = np.zeros((number, len(text.owner)), np.int32)
    until = np.zeros_like(earlier)
    for rows, steps in groups:
        orders = order_metrics.ranked(steps)
        for name, (numerators, denominators) in _sentence_ratios(orders, text.ends_in_punctuation[rows]).items():
            ratios[name][0][:, rows] = numerators
            ratios[name][1][rows] = denominators
        heat[:, rows, 0] = 1
        heat[:, rows, 1:] = order_metrics.heat_map(orders, BINS).reshape(*steps.shape[:2], -1)
        profile = order_metrics.profile_signs(orders, BINS)
        signs[:, rows, 0] = np.any(profile != 0, axis=-1)
        signs[:, rows, 1:] = profile
        token_indices = text.starts[rows][:, None] + np.arange(steps.shape[-1])
        earlier[:, token_indices], until[:, token_indices] = orders.earlier, orders.until
    relative = (earlier + until) / (2 * text.lengths[text.owner])
    moments = linguistics.frequency_moments(text, relative, frequencies)
    return {
        **{name: Statistic.ratio(*columns) for name, columns in ratios.items()},
        "order entropy": Statistic(heat, _entropy, centered=True),
        "diversity": Statistic(signs, order_metrics.diversity),
        **linguistics.suffixes_last(text, earlier),
        **linguistics.constituents_at_once(text, earlier, until),
        "frequency correlation": Statistic(moments, lambda sums, squares: linguistics.correlation(sums)),
        **linguistics.steps_by_tag(text, relative),
    }


def _shuffled_orders(groups: Groups, number: int, random: np.random.Generator) -> Iterator[Groups]:
    """The steps of every sentence shuffled, `number` times in all, in chunks of bounded memory."""
    tokens = sum(steps[0].size for _, steps in groups)
    at_once = max(1, min(number, TOKENS_AT_ONCE // tokens))
    for first in range(0, number, at_once):
        size = min(at_once, number - first)
        tiled = ((rows, np.broadcast_to(steps, (size, *steps.shape[1:]))) for rows, steps in groups)
        yield [(rows, random.permuted(steps, axis=-1)) for rows, steps in tiled]


def _jump_shares(groups: Groups) -> dict[str, float]:
    """The share of jumps by signed length."""
    counts = np.zeros(2 * MAX_JUMP + 1, np.int64)
    for _, steps in groups:
        moves = np.clip(order_metrics.jumps(steps), -MAX_JUMP, MAX_JUMP) + MAX_JUMP
        counts += np.bincount(moves.ravel(), minlength=len(counts))
    shares = counts / max(1, counts.sum())
    return {str(i - MAX_JUMP): round(float(share), 6) for i, share in enumerate(shares) if i != MAX_JUMP}


def _mean_heat_map(statistics: Mapping[str, Statistic]) -> list[list[float]]:
    """The heat map of the test set, row by row."""
    sums = statistics["order entropy"].columns[0].sum(0, dtype=np.float64)
    share = (sums[1:] / max(1.0, sums[0])).reshape(BINS, BINS)
    return np.round(share, 6).tolist()


def _sentence_values(statistics: Mapping[str, Statistic]) -> dict[str, list[float | None]]:
    """The metrics of each sentence, and the index of its label."""
    values_by_metric: dict[str, list[float | None]] = {}
    for name in PER_SENTENCE:
        if name in statistics:
            columns = statistics[name].columns[0]
            values = order_metrics.divide(columns[:, 1], columns[:, 0])
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
    label = order_metrics.labels(orders)
    for index, name in enumerate(LABELS):
        ratios[f"label {name}"] = label == index, 1.0
    return ratios


def _entropy(sums: Array, squares: Array) -> Array:
    heat = sums[..., 1:] / np.maximum(sums[..., :1], 1)
    return order_metrics.order_entropy(heat.reshape(*heat.shape[:-1], BINS, BINS))

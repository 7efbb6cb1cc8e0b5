"""Measure systems on a test set: every metric with its confidence interval and its value for random orders.

The null is the same metric on the same sentences with the steps of each sentence shuffled: the mean and the 2.5 and
97.5 percentiles over `null_samples` such test sets. Metrics that do not depend on the order have no null, except for
repetitions, whose null shuffles the words of each sentence. Never decodes and needs no model.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from anyorder.analysis import linguistics, order_metrics
from anyorder.analysis.linguistics import Text
from anyorder.analysis.order_labels import LABELS
from anyorder.analysis.order_metrics import Array
from anyorder.analysis.parsers import Parser, Trees, annotate, choose_parser, read_trees
from anyorder.analysis.results import SOLVED, Analysis, Metric, SystemAnalysis
from anyorder.analysis.statistics import MetricEstimator, Statistic, ratio_statistic
from anyorder.analysis.system_metrics import (
    BINS,
    actual_orders,
    jump_shares,
    mean_heat_map,
    sentence_values,
    shuffled_orders,
)
from anyorder.decoding.trajectory import Trajectory, check_systems
from anyorder.errors import InputError, check_number
from anyorder.evaluation.bleu import sentence_bleu
from anyorder.evaluation.puzzles import solved_puzzles
from anyorder.evaluation.systems import Systems, name_systems, only_puzzles, puzzle_task
from anyorder.tasks import PuzzleTask

OF_WORDS = ("suffix last share", "suffixes last", "frequency correlation", "punctuation first share")
"""Metrics that make no sense for the cells of a puzzle."""

__all__ = ["Analysis", "Metric", "SystemAnalysis", "analyze"]


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
    lines = count = check_systems(systems, references)
    puzzle = puzzle_task(systems)
    if puzzle is not None:
        systems, references = only_puzzles(systems, puzzle, references)
        count = check_systems(systems, references)
    trees = read_trees(trees) if isinstance(trees, Path) else trees
    notes: list[str] = []
    parser = tagger if callable(tagger) else None
    if isinstance(tagger, str) and not (puzzle and tagger == "auto"):
        tokens = [trajectory.tokens for trajectories in systems.values() for trajectory in trajectories]
        parser, notes = choose_parser(tagger, tokens)
    estimator = MetricEstimator(count, samples, seed)
    occurrences = Counter(
        token for trajectories in systems.values() for trajectory in trajectories for token in trajectory.tokens
    )
    measured: list[SystemAnalysis] = []
    per_sentence: dict[str, list[list[float | None]]] = {}
    with_tree = 0
    for name, trajectories in systems.items():
        sentences = [trajectory.tokens for trajectory in trajectories]
        text = Text(sentences, annotate(sentences, parser, trees))
        if trees is not None and text.annotations is not None:
            with_tree += sum(annotation.spans is not None for annotation in text.annotations)
        quality = _quality(trajectories, references, puzzle)
        system, values_by_metric = _analyze_system(
            name, trajectories, text, text.frequencies(occurrences), quality, estimator, null_samples, seed
        )
        estimator.first_is_done = True
        measured.append(system)
        for metric, values in values_by_metric.items():
            per_sentence.setdefault(metric, []).append(values)
        on_progress(1)
    if trees is not None:
        notes = [*notes, *_tree_notes(with_tree, count * len(systems))]
    if puzzle is not None and count < lines:
        notes = [f"left out {lines - count:,} of {lines:,} lines: not a puzzle of {puzzle.name}", *notes]
    return Analysis(count, measured, per_sentence, notes)


def _tree_notes(with_tree: int, sentences: int) -> list[str]:
    if not with_tree:
        raise InputError("no tree has the words of any sentence")
    return [f"only {with_tree:,} of {sentences:,} sentences have a tree"] if with_tree < sentences else []


def _analyze_system(
    name: str,
    trajectories: Sequence[Trajectory],
    text: Text,
    frequencies: Array,
    quality: dict[str, Array],
    estimator: MetricEstimator,
    null_samples: int,
    seed: int,
) -> tuple[SystemAnalysis, dict[str, list[float | None]]]:
    """The metrics of a system, and those of each of its sentences. quality: see `_quality`"""
    groups = list(order_metrics.by_length([trajectory.steps for trajectory in trajectories]))
    statistics, by_tag = actual_orders(groups, text).statistics(frequencies)
    nulls: dict[str, list[Array]] = {}
    nulls_by_tag: dict[str, list[Array]] = {}
    random = np.random.default_rng([seed, 1])
    for shuffled in shuffled_orders(groups, text, null_samples, random):
        shuffled_statistics, shuffled_by_tag = shuffled.statistics(frequencies)
        _collect_values(shuffled_statistics, nulls)
        _collect_values(shuffled_by_tag, nulls_by_tag)
    if SOLVED in quality:
        statistics = {key: statistic for key, statistic in statistics.items() if key not in OF_WORDS}
    else:
        repeated, neighbors = linguistics.repetitions(text.words)
        statistics["repetition rate"] = ratio_statistic((repeated[None], neighbors))
        repeated_by_chance = linguistics.shuffled_repetitions(text.words, null_samples, random)
        nulls["repetition rate"] = [repeated_by_chance.sum(1) / max(1.0, neighbors.sum())]
    for key, scores in quality.items():
        statistics[key] = ratio_statistic((scores[None], np.ones(len(scores))))
    metrics = {key: estimator.metric(key, statistic, nulls.get(key)) for key, statistic in statistics.items()}
    metrics_by_tag = {
        tag: estimator.metric(f"tag {tag}", statistic, nulls_by_tag[tag]) for tag, statistic in by_tag.items()
    }
    system = SystemAnalysis(
        name=name,
        signature=_signature(trajectories),
        metrics=metrics,
        labels={label: metrics[f"label {label}"].value or 0.0 for label in LABELS},
        positions={"bins": BINS, "share": mean_heat_map(statistics)},
        jumps=jump_shares(groups),
        by_tag=metrics_by_tag or None,
    )
    return system, sentence_values(statistics)


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


def _collect_values(statistics: dict[str, Statistic], values: dict[str, list[Array]]) -> None:
    for key, statistic in statistics.items():
        values.setdefault(key, []).append(statistic.values())


def _signature(trajectories: Sequence[Trajectory]) -> str:
    """The decoding settings; several signatures if the trajectories have different ones."""
    return " + ".join(sorted({trajectory.signature for trajectory in trajectories if trajectory.signature}))

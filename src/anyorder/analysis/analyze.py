"""Measure systems on a test set: every metric with its confidence interval and its value for random orders.

The null is the same metric on the same sentences with the steps of each sentence shuffled: the mean and the 2.5 and
97.5 percentiles over `null_samples` such test sets. Metrics that do not depend on the order have no null, except for
repetitions, whose null shuffles the words of each sentence. Never decodes and needs no model.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from anyorder.analysis import linguistics, system_metrics
from anyorder.analysis.linguistics import TAG, Text
from anyorder.analysis.order_labels import LABELS
from anyorder.analysis.order_metrics import Array, by_length
from anyorder.analysis.parsers import Parser, Trees, annotate, choose_parser, read_trees
from anyorder.analysis.results import SOLVED, Analysis, SystemAnalysis
from anyorder.analysis.statistics import MetricEstimator, Statistic, ratio_statistics
from anyorder.analysis.system_metrics import Groups
from anyorder.decoding.trajectory import Trajectory, check_systems
from anyorder.errors import InputError, check_number
from anyorder.evaluation.bleu import sentence_bleu
from anyorder.evaluation.puzzles import solved_puzzles
from anyorder.evaluation.systems import Systems, name_systems, only_puzzles, puzzle_task
from anyorder.tasks import PuzzleTask

OF_WORDS = ("suffix last share", "suffixes last", "frequency correlation", "punctuation first share")
"""Metrics that make no sense for the cells of a puzzle."""


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
            positions={"bins": system_metrics.BINS, "share": system_metrics.mean_heat_map(statistics)},
            jumps=system_metrics.jump_shares(groups),
            by_tag=by_tag or None,
        )
        measured.append(system)
        for metric, values in system_metrics.sentence_values(statistics).items():
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
    statistics = system_metrics.measure(groups, text, frequencies)
    nulls: dict[str, list[Array]] = {name: [] for name in statistics}
    random = np.random.default_rng([seed, 1])
    for shuffled in system_metrics.shuffled_orders(groups, null_samples, random):
        for name, statistic in system_metrics.measure(shuffled, text, frequencies).items():
            nulls[name].append(statistic.values())
    if SOLVED in quality:
        statistics = {name: statistic for name, statistic in statistics.items() if name not in OF_WORDS}
    else:
        repeated, neighbors = linguistics.repetitions(text.words)
        statistics |= ratio_statistics({"repetition rate": (repeated[None], neighbors)})
        repeated_by_chance = linguistics.shuffled_repetitions(text.words, null_samples, random)
        nulls["repetition rate"] = [repeated_by_chance.sum(1) / max(1.0, neighbors.sum())]
    statistics |= ratio_statistics({name: (scores[None], np.ones(len(scores))) for name, scores in quality.items()})
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

"""Systems measured on a test set: every figure with its interval and with what random orders would give.

The interval is a 95% bootstrap over sentences (percentiles of `samples` test sets drawn with replacement, the same
sentences for every system). From the same draws comes the interval of a figure's difference from the first system's,
which is sharper than looking whether two intervals overlap. The null is the same figure on the same sentences with the
steps of each one shuffled: mean and 2.5 to 97.5 percentiles of `draws` such test sets. Figures that the order cannot
change have no null, but for repetitions: there the words of each sentence are shuffled.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anyorder.analysis import linguistics, order_metrics
from anyorder.analysis.linguistics import Ranks, Sum, Text
from anyorder.analysis.order_metrics import LABELS, Array, RankedOrders
from anyorder.analysis.parsers import Parser, Trees, annotate
from anyorder.decoding.trajectory import Trajectory, check_systems
from anyorder.errors import InputError

BINS = 20
FARTHEST = 10
"""Jumps beyond are counted as if they went so far."""
AR_NESS = (1, 2, 4)
PER_SENTENCE = (
    "kendall left-to-right",
    "kendall outer-in",
    "edge share",
    "adjacent share",
    "mean jump",
    "repetition rate",
    "sentence bleu",
)
"""Figures that are told of every sentence."""

Finish = Callable[[Array, Array], Array]
"""From weighted sums (..., columns) and the sum of squared weights times the first column (...) to a figure (...)."""


@dataclass(frozen=True)
class Metric:
    """A number about a system. None where there is no such number."""

    value: float | None
    low: float | None
    high: float | None
    null: float | None
    null_low: float | None
    null_high: float | None
    count: int
    """Sentences it rests on."""
    difference: float | None = None
    """Less the first system's; None for the first."""
    difference_low: float | None = None
    difference_high: float | None = None


@dataclass(frozen=True)
class System:
    """All about one system."""

    name: str
    signature: str
    figures: dict[str, Metric]
    labels: dict[str, float]
    """Share of sentences."""
    positions: dict[str, Any]
    """Heat map: when (rows) which part of the sentence (columns) was filled, each row summing to 1."""
    jumps: dict[str, float]
    """Share of jumps by signed length."""
    by_tag: dict[str, Metric] | None
    """Relative step, from 0 to 1, by part of speech."""


@dataclass(frozen=True)
class Analysis:
    sentences: int
    systems: list[System]
    per_sentence: dict[str, list[list[float | None]]]
    """Figures by system and sentence; `label` is a number in `LABELS`."""
    notes: list[str]
    """What could not be measured, and why."""

    def as_json(self) -> dict[str, Any]:
        return {"format": 1, **asdict(self)}


def analyze(
    systems: Mapping[str, Sequence[Trajectory]],
    references: Sequence[str] | None = None,
    trees: Trees | None = None,
    parser: Parser | None = None,
    samples: int = 1000,
    draws: int = 50,
    seed: int = 1,
    notes: Sequence[str] = (),
    advance: Callable[[int], None] = lambda systems: None,
) -> Analysis:
    """Measure systems that translated the same sentences.

    `references` (plain text) add sentence BLEU, a `parser` (see `parsers.choose_parser`) parts of speech and
    constituents, `trees` (see `parsers.read_trees`) constituents of the sentences that have one.
    `notes` are passed on.
    """
    count = check_systems(systems, references)
    random = np.random.default_rng(seed)
    compared = _Compared(random.multinomial(count, np.full(count, 1 / count), samples).astype(np.float32))
    occurrences = Counter(token for made in systems.values() for one in made for token in one.tokens)
    measured: list[System] = []
    rows: dict[str, list[list[float | None]]] = {}
    with_tree = 0
    for name, made in systems.items():
        tokens = [one.tokens for one in made]
        text = Text(tokens, annotate(tokens, parser, trees))
        if trees is not None and text.annotations is not None:
            with_tree += sum(one.spans is not None for one in text.annotations)
        one, own_rows = _system(name, made, text, text.frequencies(occurrences), references, compared, draws, seed)
        compared.with_first = True
        measured.append(one)
        for figure, values in own_rows.items():
            rows.setdefault(figure, []).append(values)
        advance(1)
    if trees is not None and not with_tree:
        raise InputError("no tree has the words of any sentence")
    everything = count * len(systems)
    missing = (
        [f"only {with_tree:,} of {everything:,} sentences have a tree"] if trees and with_tree < everything else []
    )
    return Analysis(count, measured, rows, [*notes, *missing])


# One system.


@dataclass(frozen=True)
class _Statistic:
    """A figure as something to sum over sentences."""

    columns: Array
    """(K, sentences, columns)"""
    finish: Finish
    centred: bool = False
    """Move the resampled figures so that their mean is the figure: a test set that holds sentences twice is less varied
    and its entropy smaller."""

    def values(self) -> Array:
        """(K,): every sentence once."""
        sums = self.columns.sum(1, dtype=np.float64)
        return self.finish(sums, sums[:, 0])

    def resampled(self, weights: Array) -> Array:
        """(samples,): for the first of the K, sentences as often as (samples, sentences) weights say."""
        columns = self.columns[0]
        return self.finish(
            (weights @ columns.astype(np.float32)).astype(np.float64),
            (weights**2 @ columns[:, 0].astype(np.float32)).astype(np.float64),
        )

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.columns[0, :, 0]))


def _share(sums: Array, squares: Array) -> Array:
    return np.divide(sums[..., 1], sums[..., 0], out=np.full(sums.shape[:-1], np.nan), where=sums[..., 0] > 0)


def _entropy(sums: Array, squares: Array) -> Array:
    heat = sums[..., 1:] / np.maximum(sums[..., :1], 1)
    return order_metrics.order_entropy(heat.reshape(*heat.shape[:-1], BINS, BINS))


def _diversity(sums: Array, squares: Array) -> Array:
    return order_metrics.diversity_of(sums[..., 1:], sums[..., 0], squares)


def _correlation(sums: Array, squares: Array) -> Array:
    return linguistics.correlation(sums)


def _ratio(own: Sum) -> _Statistic:
    numerators, denominators = own
    return _Statistic(np.stack(np.broadcast_arrays(denominators, numerators), -1), _share)


class _Orders:
    """K orders of every sentence, sentences of one length together."""

    def __init__(self, groups: Sequence[tuple[Array, Array]], text: Text):
        self.groups = groups
        """(m,) sentences and (K, m, n) steps."""
        self.text = text
        self.number = len(groups[0][1])

    def statistics(self, frequencies: Array) -> tuple[dict[str, _Statistic], dict[str, _Statistic]]:
        """Figures, and figures by tag."""
        text, count = self.text, len(self.text.sentences)
        size = self.number, count
        sums: dict[str, Sum] = {}
        heat = np.zeros((*size, 1 + BINS**2), np.float32)
        signs = np.zeros((*size, 1 + BINS * (BINS - 1) // 2), np.float32)
        earlier = np.zeros((self.number, len(text.owner)), np.int32)
        until = np.zeros_like(earlier)
        for rows, steps in self.groups:
            orders = order_metrics.ranked(steps)
            for name, (top, bottom) in _of_sentences(orders, text.ends_in_punctuation[rows]).items():
                if name not in sums:
                    sums[name] = np.zeros(size), np.zeros(count)
                sums[name][0][:, rows] = top
                sums[name][1][rows] = bottom
            heat[:, rows, 0] = 1
            heat[:, rows, 1:] = order_metrics.heat_map(orders, BINS).reshape(*steps.shape[:2], -1)
            own = order_metrics.profile_signs(orders, BINS)
            signs[:, rows, 0] = np.any(own != 0, axis=-1)
            signs[:, rows, 1:] = own
            places = text.starts[rows][:, None] + np.arange(steps.shape[-1])
            earlier[:, places], until[:, places] = orders.earlier, orders.until
        ranks = Ranks(earlier, until, (earlier + until) / (2 * text.lengths[text.owner]))
        made = {name: _ratio(own) for name, own in sums.items()}
        made["order entropy"] = _Statistic(heat, _entropy, centred=True)
        made["diversity"] = _Statistic(signs, _diversity)
        made["suffix last share"], made["suffixes last"] = map(_ratio, linguistics.suffixes_last(text, ranks))
        found = linguistics.constituents_at_once(text, ranks)
        if found:
            made["constituent sentence share"], made["constituent share"] = map(_ratio, found)
        moments = linguistics.frequency_moments(text, ranks, frequencies)
        made["frequency correlation"] = _Statistic(moments, _correlation)
        tags = {name: _ratio(own) for name, own in linguistics.steps_by_tag(text, ranks).items()}
        for kind in ("function", "content"):
            if kind in tags:
                made[f"{kind} word step"] = tags.pop(kind)
        return made, tags


def _of_sentences(orders: RankedOrders, punctuated: Array) -> dict[str, tuple[Array, Array | float]]:
    """Figures of (K, m, n) orders: (K, m) numerators and their denominators, nought where there is no such figure.

    Correlations, labels and shares of sentences count every sentence once; what is said of steps counts every step.
    """
    length = orders.length
    several = float(length > 1)
    along, inwards = (
        order_metrics.kendall(orders, reference(length))
        for reference in (order_metrics.left_to_right, order_metrics.outer_in)
    )
    correlations = {
        "kendall left-to-right": along,
        "kendall right-to-left": -along,
        "kendall outer-in": inwards,
        "spearman left-to-right": order_metrics.spearman(orders, order_metrics.left_to_right(length)),
        "spearman outer-in": order_metrics.spearman(orders, order_metrics.outer_in(length)),
    }
    correlations["spearman right-to-left"] = -correlations["spearman left-to-right"]
    made: dict[str, tuple[Array, Array | float]] = {
        name: (np.nan_to_num(value), (~np.isnan(value[0])).astype(np.float64)) for name, value in correlations.items()
    }
    moves = order_metrics.jumps(orders)
    distances = np.abs(moves)
    made["edge share"] = order_metrics.at_edge(orders).sum(-1), length
    made["adjacent share"] = (distances == 1).sum(-1), length - 1
    made["mean jump"] = distances.sum(-1), length - 1
    passed = order_metrics.passed_over(orders)
    for k in AR_NESS:
        made[f"local ar-ness@{k}"] = order_metrics.right_runs(moves, k).sum(-1), max(0, length - k)
        made[f"global ar-ness@{k}"] = (passed < k).sum(-1), length
    made["left-to-right share"] = order_metrics.is_left_to_right(orders) * several, several
    made["punctuation first share"] = order_metrics.is_last_then_left_to_right(orders) * punctuated * several, several
    found = order_metrics.label_of(along, inwards, length)
    for number, name in enumerate(LABELS):
        made[f"label {name}"] = found == number, 1.0
    return made


def _system(
    name: str,
    made: Sequence[Trajectory],
    text: Text,
    frequencies: Array,
    references: Sequence[str] | None,
    compared: "_Compared",
    draws: int,
    seed: int,
) -> tuple[System, dict[str, list[float | None]]]:
    """The figures of a system, and those of each of its sentences."""
    groups = list(order_metrics.by_length([one.steps for one in made]))
    actual = _Orders([(rows, steps[None]) for rows, steps in groups], text)
    statistics, tagged = actual.statistics(frequencies)
    nulls: dict[str, list[Array]] = {}
    null_tags: dict[str, list[Array]] = {}
    random = np.random.default_rng([seed, 1])
    for shuffled in _shuffled(groups, text, draws, random):
        for gathered, several in zip((nulls, null_tags), shuffled.statistics(frequencies), strict=True):
            for key, statistic in several.items():
                gathered.setdefault(key, []).append(statistic.values())
    words = linguistics.repetitions(text.words)
    statistics["repetition rate"] = _ratio((words[0][None], words[1]))
    by_chance = linguistics.shuffled_repetitions(text.words, draws, random)
    nulls["repetition rate"] = [by_chance.sum(1) / max(1.0, words[1].sum())]
    if references is not None:
        from anyorder.evaluation.bleu import sentence_bleu

        scores = np.array([sentence_bleu(one.text, reference) for one, reference in zip(made, references, strict=True)])
        statistics["sentence bleu"] = _ratio((scores[None], np.ones(len(scores))))
    figures = {key: compared.figure(key, one, nulls.get(key)) for key, one in statistics.items()}
    heat = statistics["order entropy"].columns[0].sum(0, dtype=np.float64)
    share = (heat[1:] / max(1.0, heat[0])).reshape(BINS, BINS)
    system = System(
        name=name,
        signature=_signature(made),
        figures=figures,
        labels={label: figures[f"label {label}"].value or 0.0 for label in LABELS},
        positions={"bins": BINS, "share": np.round(share, 6).tolist()},
        jumps=_jump_shares(groups),
        by_tag={key: compared.figure(f"tag {key}", one, null_tags[key]) for key, one in tagged.items()} or None,
    )
    return system, _rows(statistics)


def _signature(made: Sequence[Trajectory]) -> str:
    """How the sentences were made; several ways if they were made differently."""
    return " + ".join(sorted({one.signature for one in made if one.signature}))


def _shuffled(
    groups: Sequence[tuple[Array, Array]], text: Text, draws: int, random: np.random.Generator
) -> Iterator[_Orders]:
    """The steps of every sentence shuffled, `draws` times in all; several at once as memory allows."""
    several = max(1, min(draws, 400_000 // max(1, len(text.owner))))
    for first in range(0, draws, several):
        now = min(several, draws - first)
        tiled = ((rows, np.broadcast_to(steps, (now, *steps.shape))) for rows, steps in groups)
        yield _Orders([(rows, random.permuted(steps, axis=-1)) for rows, steps in tiled], text)


class _Compared:
    """Makes figures, first those of the first system, then those of the others, which are compared with it."""

    def __init__(self, weights: Array):
        self._weights = weights
        """(samples, sentences)"""
        self._first: dict[str, tuple[float, Array]] = {}
        """Value and resampled values by figure."""
        self.with_first = False
        """The first system is done."""

    def figure(self, name: str, statistic: _Statistic, null: Sequence[Array] | None) -> Metric:
        drawn = statistic.resampled(self._weights)
        value = float(statistic.values()[0])
        if statistic.centred:
            drawn = drawn - drawn.mean() + value
        random = np.full(1, np.nan) if null is None else np.concatenate(null)
        difference: tuple[float | None, ...] = (None, None, None)
        if not self.with_first:
            self._first[name] = value, drawn
        elif name in self._first:
            of_first, drawn_of_first = self._first[name]
            difference = _plain(value - of_first), *_percentiles(drawn - drawn_of_first)
        return Metric(
            _plain(value), *_percentiles(drawn), _plain(float(np.mean(random))), *_percentiles(random),
            statistic.count, *difference,
        )  # fmt: skip


def _percentiles(values: Array) -> tuple[float | None, float | None]:
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return None, None
    low, high = np.percentile(known, [2.5, 97.5])
    return _plain(float(low)), _plain(float(high))


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)


def _jump_shares(groups: Sequence[tuple[Array, Array]]) -> dict[str, float]:
    counts = np.zeros(2 * FARTHEST + 1, np.int64)
    for _, steps in groups:
        moves = np.clip(order_metrics.jumps(steps), -FARTHEST, FARTHEST) + FARTHEST
        counts += np.bincount(moves.ravel(), minlength=len(counts))
    shares = counts / max(1, counts.sum())
    return {str(i - FARTHEST): round(float(share), 6) for i, share in enumerate(shares) if i != FARTHEST}


def _rows(statistics: Mapping[str, _Statistic]) -> dict[str, list[float | None]]:
    rows: dict[str, list[float | None]] = {}
    for name in PER_SENTENCE:
        if name in statistics:
            columns = statistics[name].columns[0]
            values = _share(columns, columns[:, 0])
            rows[name] = [None if np.isnan(value) else round(value, 4) for value in values.tolist()]
    labels = np.stack([statistics[f"label {name}"].columns[0, :, 1] for name in LABELS], -1)
    nothing = ~labels.any(-1)
    rows["label"] = np.where(nothing, len(LABELS) - 1, labels.argmax(-1)).tolist()
    return rows

"""Score systems: trajectories in, one row per system out. Never decodes and needs no model.

A test set has metrics. Systems are compared by the first of them. All are computed in the same way, from
sums of counts per example, so there is one table, one test and one JSON whatever the task is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from anyorder.data.line_problems import LineNote
from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import Trajectory, check_systems
from anyorder.errors import InputError
from anyorder.evaluation.bleu import Bleu, ChrF, SacreBLEUScorer, Scorer, default_tokenizer
from anyorder.evaluation.metrics import Interval, Metric, Systems
from anyorder.evaluation.puzzles import puzzle_metrics, puzzle_task
from anyorder.evaluation.significance import MIN_SENTENCES, SAMPLES, SEED, Difference, Test, check_test, compare, holm
from anyorder.tasks import PuzzleTask
from anyorder.tasks.puzzles import read_puzzles

DIGITS = 4
"""Digits that scores are rounded to, except those of existing translations, which are sacreBLEU's."""
UNKNOWN = "unknown"
References = Sequence[str] | Sequence[Sequence[str]]
"""One reference per sentence; or, for several references, a list of such lists, each with one per sentence."""


@dataclass(frozen=True)
class Score:
    """The scores of one system on the examples within one length limit.

    Scores, their intervals and the number of examples are attributes, too: `row.bleu`, `row.accuracy_interval`,
    `row.sentences`.
    """

    system: str
    """The name of the system, such as an order."""
    order: str
    max_length: int | None
    """Maximum number of subwords on both sides; None for all examples."""
    unit: str
    """What was counted, such as `sentence`."""
    count: int
    """The number of examples."""
    scores: dict[str, float | None]
    """By metric, None where there is no such number; differences are about the first one."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    """95% intervals, by metric, where it has one."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """Differences from each other baseline, by name. Empty if there are too few examples."""
    schedule: str = ""
    """The name of the schedule; empty if not recorded."""
    revision: str = ""
    """The name of the revision; empty if not recorded."""
    forwards: float = 0.0
    """Mean number of forward passes per example, for the hypothesis that was kept."""
    seconds: float | None = None
    """Time spent decoding these examples; None for existing trajectories."""

    @property
    def p_values(self) -> dict[str, float]:
        """Two-sided p-values against each other baseline, by name."""
        return {name: one.p_value for name, one in self.differences.items()}

    @property
    def p_values_holm(self) -> dict[str, float]:
        """The same after Holm's correction for comparing with several baselines."""
        return holm(self.p_values)

    def __getattr__(self, name: str) -> Any:
        values = self._measured() if "scores" in self.__dict__ else {}  # while unpickled, it has no fields yet
        if name not in values:
            raise AttributeError(f"a score has no '{name}' (it has {', '.join(values)})")
        return values[name]

    def _measured(self) -> dict[str, Any]:
        values: dict[str, Any] = {f"{self.unit}s": self.count}
        for name, value in self.scores.items():
            values[name] = value
            if name in self.intervals:
                values[f"{name}_interval"] = self.intervals[name]
        return values

    def rounded(self, digits: int = DIGITS) -> "Score":
        """The same with scores, intervals, differences and forward passes rounded."""
        return replace(
            self,
            scores={name: None if value is None else round(value, digits) for name, value in self.scores.items()},
            intervals={name: (round(low, digits), round(high, digits)) for name, (low, high) in self.intervals.items()},
            differences={
                name: Difference(round(one.value, digits), round(one.low, digits), round(one.high, digits), one.p_value)
                for name, one in self.differences.items()
            },
            forwards=round(self.forwards, digits),
        )

    def as_json(self) -> dict[str, Any]:
        """Everything except the time."""
        metric = next(iter(self.scores))
        differences = {
            name: {metric: one.value, "low": one.low, "high": one.high} for name, one in self.differences.items()
        }
        return {
            **{name: getattr(self, name) for name in ("system", "order", "max_length")},
            **self._measured(),
            **{name: getattr(self, name) for name in ("p_values", "p_values_holm")},
            "differences": differences,
            **{name: getattr(self, name) for name in ("schedule", "revision", "forwards")},
        }


@dataclass(frozen=True)
class Evaluation:
    """A table of scores, and the settings behind them."""

    signature: str
    """`Signature.parse` reads it."""
    task: str
    """The task recorded in the trajectories, such as a direction; empty if there is none."""
    rows: list[Score]
    metrics: Sequence[Metric] = field(repr=False, compare=False)
    """What was measured; the first metric is what systems are compared by."""
    notes: list[str] = field(default_factory=list)
    """Notes for readers of the table, one sentence each."""
    lines: list[LineNote] = field(default_factory=list)
    """The lines of the test set that were left out or changed before decoding."""

    def __str__(self) -> str:
        """The scores, one system and limit a line; the command prints more."""
        limits = {row.max_length for row in self.rows}
        lines = []
        for row in self.rows:
            limit = f" ≤{row.max_length}" if len(limits) > 1 and row.max_length else ""
            scores = [f"{name} –" if value is None else f"{name} {value:.2f}" for name, value in row.scores.items()]
            p_values = [f"p {value:.3f} against {name}" for name, value in row.p_values_holm.items()]
            lines.append((f"{row.system}{limit}", ", ".join([*scores, *p_values])))
        width = max((len(name) for name, _ in lines), default=0)
        head = f"{self.task} ({self.rows[0].count} {self.rows[0].unit}s)" if len(limits) == 1 else self.task
        return "\n".join([head, *(f"{name:{width}}  {scores}" for name, scores in lines), *self.notes, self.signature])

    def as_json(self) -> dict[str, Any]:
        """Everything except timings, so that the same evaluation gives the same record."""
        return {
            **self._head(),
            "rows": [row.as_json() for row in self.rows],
            "notes": list(self.notes),
            "lines": [vars(line) for line in self.lines],
        }

    def timings(self) -> dict[str, Any]:
        """The decoding time of every row."""
        names = ("system", "max_length", f"{self.metrics[0].unit}s", "seconds")
        return {**self._head(), "rows": [{name: getattr(row, name) for name in names} for row in self.rows]}

    def _head(self) -> dict[str, str]:
        return {"signature": self.signature, "direction" if self.metrics[0].name == "bleu" else "task": self.task}


def evaluate(
    systems: Systems | Sequence[Trajectory],
    references: References | None = None,
    tokenize: str | Scorer | None = None,
    against: Sequence[str] = (),
    test: Test = "randomization",
    samples: int = SAMPLES,
) -> Evaluation:
    """Score systems that translated the same sentences, or solved the same puzzles.

    >>> trajectories = [Trajectory("", "A b c d.", ["A", "b", "c", "d", "."], [1, 2, 3, 4, 5], [], "", 5, "")]
    >>> round(evaluate({"ours": trajectories}, ["A b c d."]).rows[0].bleu, 2)
    100.0

    Args:
        systems: Trajectories by system name, or the trajectories of a single system.
        references: One plain reference per sentence. With several references per sentence, a list of such lists:
            `[[first of sentence 1, first of sentence 2, ...], [second of sentence 1, ...]]`, as sacreBLEU takes them.
            For puzzles their solutions, which are optional.
        tokenize: The sacreBLEU tokenizer for BLEU (`13a`, `zh`, `char`, `intl`, `none`, ...), or a `Scorer`. By default
            `zh` if the trajectories' target language is Chinese, else `13a`.
        against: Names of the baseline systems for the p-values; by default the first system.
        test: `randomization` (paired approximate randomization) or `bootstrap` (paired bootstrap resampling), both
            two-sided. Fewer than 10 examples are not tested, and a note says so.
        samples: Resamples for the test and the intervals, 20 to 1,000,000.
    """
    systems = name_systems(systems)
    sets = [] if references is None else reference_sets(references)
    task = puzzle_task(systems)
    if task is not None:
        if tokenize is not None:
            raise InputError("is for translation, not for puzzles", "tokenize")
        return _evaluate_puzzles(task, systems, sets, against, test, samples)
    if references is None:
        raise InputError("are missing: translations are scored against them", "references")
    for one in sets:
        check_systems(systems, one)
    direction = distinct(run.task for runs in systems.values() for run in runs)
    if tokenize is None:
        tokenize = default_tokenizer(direction.rpartition("-")[2], "13a")
    scorer = SacreBLEUScorer(tokenize) if isinstance(tokenize, str) else tokenize
    return score_systems(systems, [Bleu(scorer, sets), ChrF(sets)], direction, against, test, samples)


def _evaluate_puzzles(
    task: PuzzleTask, systems: Systems, solutions: list[list[str]], against: Sequence[str], test: Test, samples: int
) -> Evaluation:
    """The puzzles are the sources; other lines are left out."""
    if len(solutions) > 1:
        raise InputError("must be one list: a puzzle has one solution", "references")
    check_systems(systems, *solutions)
    first, runs = next(iter(systems.items()))
    read = read_puzzles(task, [run.source for run in runs], solutions[0] if solutions else None, [first, "reference"])
    kept = {name: [own[i] for i in read.usable] for name, own in systems.items()}
    scored = score_systems(kept, puzzle_metrics(task, read, read.usable), task.name, against, test, samples)
    notes = [LineNote(i, one.note, scored=False) for i, one in enumerate(read.problems, start=1) if one]
    return replace(scored, rows=[row.rounded() for row in scored.rows], lines=notes)


def score_systems(
    systems: Systems,
    metrics: Sequence[Metric],
    task: str,
    against: Sequence[str] = (),
    test: Test = "randomization",
    samples: int = SAMPLES,
    within: Mapping[int | None, Sequence[int]] | None = None,
) -> Evaluation:
    """Score systems by any metrics; systems are compared by the first one.

    Args:
        systems: Trajectories of the same examples by system name.
        metrics: What to measure.
        task: The name of the task.
        against: See `evaluate`, as for `test` and `samples`.
        within: The indices of the examples within each length limit; by default all examples, without a limit.
    """
    baselines = check_against(against, list(systems))
    check_test(test, samples)
    main, unit = metrics[0], metrics[0].unit
    all_counts = {metric.name: {name: metric.counts(runs) for name, runs in systems.items()} for metric in metrics}
    rows, notes = [], []
    for limit, indices in (within or {None: range(len(next(iter(systems.values()))))}).items():
        chosen = np.array(indices)
        counts = {key: {name: own[chosen] for name, own in of.items()} for key, of in all_counts.items()}
        differences: dict[str, dict[str, Difference]] = {}
        if len(chosen) >= MIN_SENTENCES:
            differences = compare(counts[main.name], baselines, main.score, test, samples)
        elif len(systems) > 1:
            few = f"1 {unit} is" if len(chosen) == 1 else f"{len(chosen)} {unit}s are"
            note = f"{few} too few for a significance test (at least {MIN_SENTENCES}): no p-values."
            notes.append(note if limit is None else f"≤{limit}: {note}")
        intervals = {metric.name: metric.intervals(counts[metric.name], samples) for metric in metrics}
        for name, runs in systems.items():
            of_limit = [runs[i] for i in indices]
            settings = [_parse(text) for text in dict.fromkeys(run.signature for run in of_limit)]
            rows.append(
                Score(
                    system=name,
                    order=distinct(run.order for run in of_limit),
                    max_length=limit,
                    unit=unit,
                    count=len(of_limit),
                    scores={metric.name: metric.value(counts[metric.name][name].sum(0)) for metric in metrics},
                    intervals={key: found[name] for key, found in intervals.items() if found},
                    differences=differences.get(name, {}),
                    schedule=distinct(one.get("schedule") for one in settings),
                    revision=distinct(one.get("revision") for one in settings),
                    forwards=sum(run.forwards for run in of_limit) / len(of_limit),
                )
            )
    measured = {key: value for metric in metrics for key, value in metric.settings().items()}
    signature = common_signature(systems).with_settings(**measured, test=test, sides=2, samples=samples)
    signature = signature.with_settings("test.", seed=SEED).with_settings(against=",".join(baselines))
    return Evaluation(str(signature), task, rows, metrics, notes)


def name_systems(systems: Systems | Sequence[Trajectory]) -> Systems:
    """The systems by name; trajectories alone are one system, named after their order."""
    if isinstance(systems, Mapping):
        return systems
    return {distinct(run.order for run in systems) or "system": systems}


def distinct(values: Iterable[str | None]) -> str:
    """The different values, separated by commas; empty if none is recorded."""
    return ", ".join(dict.fromkeys(value for value in values if value))


def common_signature(systems: Systems) -> Signature:
    """The settings that the trajectories were decoded with.

    `order` is `*`, because each system has its own, followed by what identifies a learned order. A setting that
    differs between trajectories lists its values; `unknown` is one of them if a trajectory records none.
    """
    runs = [run for own in systems.values() for run in own]
    recorded = {text: _parse(text) for text in dict.fromkeys(run.signature for run in runs)}
    identities = [recorded[run.signature].get("order", run.order) for run in runs]
    orders = dict.fromkeys(identity for identity, run in zip(identities, runs, strict=True) if identity != run.order)
    settings: dict[str, str] = {}
    for key in dict.fromkeys(key for signature in recorded.values() for key in signature):
        values = dict.fromkeys(signature.get(key, UNKNOWN) for signature in recorded.values())
        settings[key] = ",".join(["*", *orders] if key == "order" else values)
    return Signature(settings)


def _parse(text: str) -> Signature:
    """The signature; empty if a file from elsewhere has text in another format."""
    try:
        return Signature.parse(text)
    except InputError:
        return Signature()


def check_against(against: Sequence[str], names: Sequence[str]) -> list[str]:
    """The baselines, by default the first system; an `InputError` for one that is not a system."""
    for name in against:
        if name not in names:
            raise InputError(f"'{name}': is not one of the systems ({', '.join(names)})", "against")
    return list(dict.fromkeys(against)) or [names[0]]


def reference_sets(references: References) -> list[list[str]]:
    """The references as a list of lists, one list if there is one reference per sentence.

    >>> reference_sets(["Good morning!", "Thanks."])
    [['Good morning!', 'Thanks.']]
    >>> reference_sets([["Good morning!", "Thanks."], ["Morning!", "Thank you."]])
    [['Good morning!', 'Thanks.'], ['Morning!', 'Thank you.']]
    """
    several = references and not isinstance(references[0], str)
    sets = cast(Sequence[Sequence[str]], references if several else [references])
    if any(isinstance(one, str) or not all(isinstance(text, str) for text in one) for one in sets):
        raise InputError("expected a list of sentences, or several such lists", "references")
    return [list(one) for one in sets]

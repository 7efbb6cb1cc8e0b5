"""Score systems: trajectories and references in, one row per system out. Never decodes and knows no model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, get_args

from anyorder.data.lines import LineNote
from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import Trajectory, check_systems
from anyorder.errors import InputError, check_number, unknown
from anyorder.evaluation.bleu import corpus_chrf
from anyorder.evaluation.references import References, reference_sets
from anyorder.evaluation.scorers import SacreBLEUScorer, Scorer, default_tokenizer
from anyorder.evaluation.significance import (
    MAX_SAMPLES,
    MIN_SAMPLES,
    SAMPLES,
    SEED,
    Test,
    compare_if_enough,
    holm,
)
from anyorder.evaluation.sufficient_statistics import bleu_of_sums, corpus_score, sentence_statistics
from anyorder.evaluation.systems import (
    Systems,
    common_order,
    common_setting,
    common_signature,
    common_task,
    name_systems,
)


@dataclass(frozen=True)
class Difference:
    """A system's BLEU less a baseline's, with a 95% interval (percentiles of paired bootstrap samples)."""

    bleu: float
    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """One system on the sentences within one length limit."""

    system: str
    """The name of the system; for orders that were decoded for the evaluation, the order's."""
    order: str
    max_length: int | None
    """At most so many subwords on both sides; None: all sentences."""
    sentences: int
    bleu: float
    chrf: float
    p_values: dict[str, float] = field(default_factory=dict)
    """Two-sided, against each baseline, by its name; not against itself. Empty if there are too few sentences."""
    p_values_holm: dict[str, float] = field(default_factory=dict)
    """The same after Holm's correction for comparing with several baselines."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """From each baseline, by its name."""
    schedule: str = ""
    """How many positions a step filled, by name; empty if nobody recorded it."""
    revision: str = ""
    """Which positions were masked again, by name; empty if nobody recorded it."""
    forwards: float = 0.0
    """Mean forward passes of the model per sentence: those of the hypothesis that was kept."""
    seconds: float | None = None
    """Time spent decoding these sentences; None if the trajectories were given."""

    def rounded(self, digits: int) -> "Score":
        """With BLEU, chrF, the differences in BLEU and the forward passes rounded."""
        differences = {
            name: Difference(*(round(value, digits) for value in (one.bleu, one.low, one.high)))
            for name, one in self.differences.items()
        }
        numbers = {name: round(getattr(self, name), digits) for name in ("bleu", "chrf", "forwards")}
        return replace(self, differences=differences, **numbers)


@dataclass(frozen=True)
class Evaluation:
    """A table of scores, and the settings behind them."""

    signature: str
    """`Signature.parse` reads it."""
    direction: str
    """The task that the trajectories record; empty if they record none."""
    rows: list[Score]
    notes: list[str] = field(default_factory=list)
    """What a reader of the table should know, one sentence each."""
    lines: list[LineNote] = field(default_factory=list)
    """The lines of the test set that were left out or not translated as they are."""

    def as_json(self) -> dict[str, Any]:
        """Everything but the time it took: the same evaluation gives the same record."""
        record = asdict(self)
        for row in record["rows"]:
            del row["seconds"]
        return record

    def timings(self) -> dict[str, Any]:
        """The time that decoding took, row by row."""
        names = ("system", "max_length", "sentences", "seconds")
        rows = [{name: getattr(row, name) for name in names} for row in self.rows]
        return {"signature": self.signature, "direction": self.direction, "rows": rows}


def evaluate(
    systems: Systems | Sequence[Trajectory],
    references: References,
    tokenize: str | Scorer | None = None,
    against: Sequence[str] = (),
    test: Test = "randomization",
    samples: int = SAMPLES,
) -> Evaluation:
    """Score systems that translated the same sentences.

    >>> trajectories = [Trajectory("", "A b c d.", ["A", "b", "c", "d", "."], [1, 2, 3, 4, 5], [], "", 5, "")]
    >>> round(evaluate({"ours": trajectories}, ["A b c d."]).rows[0].bleu, 2)
    100.0

    Args:
        systems: Trajectories by the name of their system, or those of a single system.
        references: One plain reference per sentence. With several references per sentence, a list of such lists:
            `[[first of sentence 1, first of sentence 2, ...], [second of sentence 1, ...]]`, as sacreBLEU takes them.
        tokenize: The tokenizer of sacreBLEU that BLEU uses (`13a`, `zh`, `char`, `intl`, `none`, ...), or a `Scorer`.
            If not given, `zh` for trajectories that say that they are into Chinese, else `13a`.
        against: Names of the systems that p-values compare with; the first system if none is named.
        test: `randomization` (paired approximate randomization) or `bootstrap` (paired bootstrap resampling), both
            two-sided. Fewer than 10 sentences are not tested, and a note says so.
        samples: Resamplings of the test and of the intervals, 20 to 1,000,000.
    """
    systems = name_systems(systems)
    sets = reference_sets(references)
    count = min(check_systems(systems, one) for one in sets)
    if tokenize is None:
        tokenize = default_tokenizer(common_task(systems).rpartition("-")[2], "13a")
    scorer = SacreBLEUScorer(tokenize) if isinstance(tokenize, str) else tokenize
    baselines = check_against(against, list(systems))
    check_test(test, samples)
    metric = scorer.metric()
    texts = [[trajectory.text for trajectory in trajectories] for trajectories in systems.values()]
    chrf = dict(zip(systems, corpus_chrf(texts, sets), strict=True))
    hypotheses = [scorer.hypotheses(trajectories) for trajectories in systems.values()]
    counted = sentence_statistics(metric, hypotheses, [scorer.references(one) for one in sets])
    statistics = dict(zip(systems, counted, strict=True))
    bleu = partial(bleu_of_sums, metric)
    comparisons, notes = compare_if_enough(statistics, baselines, bleu, test, samples, "sentence")
    rows = []
    for name, trajectories in systems.items():
        p_values = {baseline: found.p_value for baseline, found in comparisons[name].items()}
        rows.append(
            Score(
                system=name,
                order=common_order(trajectories),
                max_length=None,
                sentences=count,
                bleu=corpus_score(metric, statistics[name]),
                chrf=chrf[name],
                p_values=p_values,
                p_values_holm=holm(p_values),
                differences={
                    baseline: Difference(found.difference, found.low, found.high)
                    for baseline, found in comparisons[name].items()
                },
                schedule=common_setting(trajectories, "schedule"),
                revision=common_setting(trajectories, "revision"),
                forwards=sum(trajectory.forwards for trajectory in trajectories) / count,
            )
        )
    signature = common_signature(systems).with_settings("bleu.", **scorer.settings(len(sets)))
    return Evaluation(str(with_test(signature, test, samples, baselines)), common_task(systems), rows, notes)


def with_test(signature: Signature, test: Test, samples: int, baselines: Sequence[str]) -> Signature:
    """The signature with the settings of the significance test."""
    signature = signature.with_settings(test=test, sides=2, samples=samples)
    return signature.with_settings("test.", seed=SEED).with_settings(against=",".join(baselines))


def check_against(against: Sequence[str], names: Sequence[str]) -> list[str]:
    """The baselines, the first system if none is named; an `InputError` for one that is not a system."""
    for name in against:
        if name not in names:
            raise InputError(f"'{name}': is not one of the systems ({', '.join(names)})", "against")
    return list(dict.fromkeys(against)) or [names[0]]


def check_test(test: str, samples: int) -> None:
    """An `InputError` for a test that does not exist, or for too few or too many samples."""
    if test not in get_args(Test):
        raise unknown("test", test, get_args(Test))
    check_number("samples", samples, at_least=MIN_SAMPLES, at_most=MAX_SAMPLES)

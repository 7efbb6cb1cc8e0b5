"""Score systems: trajectories and references in, one row per system out. Never decodes and needs no model."""

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
    """A system's BLEU minus a baseline's, with a 95% interval (percentiles of paired bootstrap samples)."""

    bleu: float
    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """The scores of one system on the sentences within one length limit."""

    system: str
    """The name of the system, such as an order."""
    order: str
    max_length: int | None
    """Maximum number of subwords on both sides; None for all sentences."""
    sentences: int
    bleu: float
    chrf: float
    p_values: dict[str, float] = field(default_factory=dict)
    """Two-sided p-values against each other baseline, by name. Empty if there are too few sentences."""
    p_values_holm: dict[str, float] = field(default_factory=dict)
    """The same after Holm's correction for comparing with several baselines."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """Differences from each baseline, by name."""
    schedule: str = ""
    """The name of the schedule; empty if not recorded."""
    revision: str = ""
    """The name of the revision; empty if not recorded."""
    forwards: float = 0.0
    """Mean number of forward passes per sentence, for the hypothesis that was kept."""
    seconds: float | None = None
    """Time spent decoding these sentences; None for existing trajectories."""

    def rounded(self, digits: int) -> "Score":
        """The same with BLEU, chrF, differences in BLEU and forward passes rounded."""
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
    """The task recorded in the trajectories; empty if there is none."""
    rows: list[Score]
    notes: list[str] = field(default_factory=list)
    """Notes for readers of the table, one sentence each."""
    lines: list[LineNote] = field(default_factory=list)
    """The lines of the test set that were left out or changed before translation."""

    def as_json(self) -> dict[str, Any]:
        """Everything except timings, so that the same evaluation gives the same record."""
        record = asdict(self)
        for row in record["rows"]:
            del row["seconds"]
        return record

    def timings(self) -> dict[str, Any]:
        """The decoding time of every row."""
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
        systems: Trajectories by system name, or the trajectories of a single system.
        references: One plain reference per sentence. With several references per sentence, a list of such lists:
            `[[first of sentence 1, first of sentence 2, ...], [second of sentence 1, ...]]`, as sacreBLEU takes them.
        tokenize: The sacreBLEU tokenizer for BLEU (`13a`, `zh`, `char`, `intl`, `none`, ...), or a `Scorer`. By default
            `zh` if the trajectories' target language is Chinese, else `13a`.
        against: Names of the baseline systems for the p-values; by default the first system.
        test: `randomization` (paired approximate randomization) or `bootstrap` (paired bootstrap resampling), both
            two-sided. Fewer than 10 sentences are not tested, and a note says so.
        samples: Resamples for the test and the intervals, 20 to 1,000,000.
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
    """The baselines, by default the first system; an `InputError` for one that is not a system."""
    for name in against:
        if name not in names:
            raise InputError(f"'{name}': is not one of the systems ({', '.join(names)})", "against")
    return list(dict.fromkeys(against)) or [names[0]]


def check_test(test: str, samples: int) -> None:
    """Raise an `InputError` for a test that does not exist, or for too few or too many samples."""
    if test not in get_args(Test):
        raise unknown("test", test, get_args(Test))
    check_number("samples", samples, at_least=MIN_SAMPLES, at_most=MAX_SAMPLES)

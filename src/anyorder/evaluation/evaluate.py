"""Score systems: trajectories and references in, one row per system out. Never decodes and knows no model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anyorder.decoding.trajectory import Trajectory, check_systems
from anyorder.errors import InputError, check_number
from anyorder.evaluation.bleu import corpus_bleu, corpus_chrf
from anyorder.evaluation.scorers import SacreBLEUScorer, Scorer
from anyorder.evaluation.significance import Test, p_values
from anyorder.evaluation.systems import Systems, common_order, common_signature, common_task, name_systems

MIN_SAMPLES = 20
"""With fewer resamplings no p-value could fall below 0.05."""


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
    p_values: dict[str, float]
    """Against each baseline, by its name; not against itself."""
    seconds: float | None = None
    """Time spent decoding these sentences; None if the trajectories were given."""


@dataclass(frozen=True)
class Evaluation:
    """A table of scores, and the settings behind them."""

    signature: str
    """`Signature.parse` reads it."""
    direction: str
    """The task that the trajectories record; empty if they record none."""
    rows: list[Score]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    systems: Systems | Sequence[Trajectory],
    references: Sequence[str],
    tokenize: str | Scorer = "13a",
    against: Sequence[str] = (),
    test: Test = "bootstrap",
    samples: int = 1000,
) -> Evaluation:
    """Score systems that translated the same sentences.

    >>> trajectories = [Trajectory("", "A b c d.", ["A", "b", "c", "d", "."], [1, 2, 3, 4, 5], [], "", 5, "")]
    >>> round(evaluate({"ours": trajectories}, ["A b c d."]).rows[0].bleu, 2)
    100.0

    Args:
        systems: Trajectories by the name of their system, or those of a single system.
        references: One plain reference per sentence.
        tokenize: The tokenizer of sacreBLEU that BLEU uses (`13a`, `zh`, `char`, `intl`, `none`, ...), or a `Scorer`.
        against: Names of the systems that p-values compare with; the first system if none is named.
        test: `bootstrap` (paired bootstrap resampling) or `randomization` (paired approximate randomization).
        samples: Resamplings of the test, at least 20.
    """
    systems = name_systems(systems)
    count = check_systems(systems, references)
    scorer = SacreBLEUScorer(tokenize) if isinstance(tokenize, str) else tokenize
    baselines = check_against(against, list(systems))
    check_number("samples", samples, at_least=MIN_SAMPLES)
    expected = scorer.references(references)
    hypotheses = {name: scorer.hypotheses(trajectories) for name, trajectories in systems.items()}
    p_by_system: dict[str, dict[str, float]] = {name: {} for name in systems}
    for baseline in baselines:
        others = [name for name in systems if name != baseline]
        found = p_values(
            hypotheses[baseline],
            [hypotheses[name] for name in others],
            expected,
            test,
            samples,
            metric=scorer.metric(warn=False),
        )
        for name, value in zip(others, found, strict=True):
            p_by_system[name][baseline] = value
    rows = [
        Score(
            system=name,
            order=common_order(trajectories),
            max_length=None,
            sentences=count,
            bleu=corpus_bleu(hypotheses[name], expected, scorer.metric()),
            chrf=corpus_chrf([trajectory.text for trajectory in trajectories], references),
            p_values=p_by_system[name],
        )
        for name, trajectories in systems.items()
    ]
    signature = common_signature(systems).with_settings("bleu.", **scorer.settings())
    signature = signature.with_settings(test=test, samples=samples, against=",".join(baselines))
    return Evaluation(str(signature), common_task(systems), rows)


def check_against(against: Sequence[str], names: Sequence[str]) -> list[str]:
    """The baselines, the first system if none is named; an `InputError` for one that is not a system."""
    for name in against:
        if name not in names:
            raise InputError(f"'{name}': is not one of the systems ({', '.join(names)})", "against")
    return list(dict.fromkeys(against)) or [names[0]]

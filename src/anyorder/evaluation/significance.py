"""Is the difference real: sacreBLEU's own paired tests between systems that translated the same sentences."""

import math
import os
from collections.abc import Sequence
from typing import Literal

from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from anyorder.evaluation.bleu import multi_bleu

Test = Literal["bootstrap", "randomization"]


def p_values(
    baseline: Sequence[str],
    others: Sequence[Sequence[str]],
    references: Sequence[str],
    test: Test = "bootstrap",
    samples: int = 1000,
    seed: int = 12345,
    metric: BLEU | None = None,
) -> list[float]:
    """The p-value of every other system's BLEU against the baseline's; `multi_bleu` if no metric is given.

    Systems with the same score get 1. sacreBLEU counts the resamplings that lie beyond the observed difference; if
    they are all zero, too, none does, and it would report its smallest p-value.
    """
    different = [list(hypotheses) for hypotheses in others if list(hypotheses) != list(baseline)]
    if not different:
        return [1.0] * len(others)
    seed_before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)  # the only way that sacreBLEU takes a seed
    try:
        systems = [("baseline", list(baseline))]
        systems += [(f"system {i}", hypotheses) for i, hypotheses in enumerate(different)]
        paired = PairedTest(
            systems,
            {"BLEU": metric or multi_bleu()},
            [list(references)],
            test_type={"bootstrap": "bs", "randomization": "ar"}[test],
            n_samples=samples,
        )
        _, results = paired()
    finally:
        if seed_before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = seed_before
    of_baseline, *of_others = results["BLEU"]
    found = iter(
        1.0 if math.isclose(result.score, of_baseline.score, abs_tol=1e-9) else float(result.p_value)
        for result in of_others
    )
    return [1.0 if list(hypotheses) == list(baseline) else next(found) for hypotheses in others]

"""Is the difference real: sacreBLEU's own paired tests between systems that translated the same sentences."""

import math
import os
from collections.abc import Sequence
from typing import Literal

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
) -> list[float]:
    """The p-value of every other system's BLEU against the baseline's. All are lines of words.

    Where the two scores are the same it is 1. sacreBLEU counts the resamplings that lie beyond the observed difference,
    and where they all are nought, too, none does: it would call that the surest of all differences.
    """
    compared = [list(lines) for lines in others if list(lines) != list(baseline)]
    if not compared:
        return [1.0] * len(others)
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)  # the only way that sacreBLEU takes a seed
    try:
        systems = [("baseline", list(baseline))]
        systems += [(f"system {i}", lines) for i, lines in enumerate(compared)]
        paired = PairedTest(
            systems,
            {"BLEU": multi_bleu()},
            [list(references)],
            test_type={"bootstrap": "bs", "randomization": "ar"}[test],
            n_samples=samples,
        )
        _, results = paired()
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
    own, *found = results["BLEU"]
    values = iter(1.0 if math.isclose(one.score, own.score, abs_tol=1e-9) else float(one.p_value) for one in found)
    return [1.0 if list(lines) == list(baseline) else next(values) for lines in others]

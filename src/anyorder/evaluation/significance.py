"""Is the difference real: sacreBLEU's own paired tests between systems that translated the same sentences."""

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
    """The p-value of every other system's BLEU against the baseline's. All are lines of words."""
    # The tests count resamplings beyond the observed difference; for the very same lines there are none to count.
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
    found = iter(results["BLEU"][1:])
    return [1.0 if list(lines) == list(baseline) else float(next(found).p_value) for lines in others]

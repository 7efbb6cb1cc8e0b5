"""What a run of learning an order has shown: whether the order is better than the heuristics it was compared with."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyorder.training.run_folder import LOG
from anyorder.training.validation import Validation

LEARNED = "the learned order"
USUAL_STEPS = 400
"""About so many steps it takes until an order changes much."""
ALPHA = 0.05
Counts = Mapping[str, np.ndarray]
"""What scores are computed from, by order; see `Validation.counts`."""


def verdict(
    out: Path, steps: int, metric: str, unit: str, validations: Mapping[str, Validation], heuristics: Sequence[str],
    counts: Mapping[str, Counts], selected_by: str | None = None,
) -> str:  # fmt: skip
    """One sentence on a run, from its log.

    counts: by task, as far as this session knows them; for a p-value. selected_by: the score by which the order that
    was saved was selected, if not by the metric.
    """
    if steps == 0:
        return "nothing was learned: no step was finished"
    if not validations:
        return "it was not compared with other orders: there is nothing to validate on"
    lines = (out / LOG).read_text(encoding="utf-8").splitlines() if (out / LOG).exists() else []
    log = [json.loads(line) for line in lines if line.strip()]
    learned = _best(log, metric, validations, selected_by or metric)
    scores = {name: _best(log, name, validations, name) for name in heuristics}
    compared = {name: score for name, score in scores.items() if score is not None}
    if learned is None or not compared:
        why = "there was too little time" if heuristics else "no orders to compare with were given"
        return f"it was not compared with other orders: {why}"
    best = max(compared, key=lambda name: compared[name])
    of_best = compared[best]
    examples = sum(len(validation) for validation in validations.values())
    percent = "%" if metric != "bleu" else " BLEU"
    found = f"{learned:.2f} and {of_best:.2f}{percent} on {examples:,} {unit}"
    p_value = None
    if len(validations) == 1:
        [(task, validation)] = validations.items()
        known = counts.get(task, {})
        if LEARNED in known and best in known:
            p_value = validation.p_value(known[LEARNED], known[best])
    if p_value is not None:
        found += f" (p {'< 0.001' if p_value < 0.001 else f'= {p_value:.3f}'})"
    rest = f", the best of {len(compared)} orders" if len(compared) > 1 else ""
    if learned > of_best and (p_value is None or p_value < ALPHA):
        return f"better than {best}{rest}: {found}"
    result = f"no better than {best}{rest}" if learned <= of_best else f"not significantly better than {best}{rest}"
    more = f"; {steps:,} steps were made, about {USUAL_STEPS} are usual" if steps < USUAL_STEPS else ""
    return f"{result}: {found}{more}"


def _best(log: Sequence[Mapping[str, Any]], score: str, tasks: Iterable[str], selected_by: str) -> float | None:
    """The mean of a score over the tasks where that of another is best, at last if there are several such; None if
    there is none in the log."""
    wanted, others = ([f"{name} {task}" for task in tasks] for name in (score, selected_by))
    known = [entry for entry in reversed(log) if all(entry.get(name) is not None for name in (*wanted, *others))]
    if not known:
        return None
    best = max(known, key=lambda entry: sum(entry[name] for name in others))
    return float(np.mean([best[name] for name in wanted]))

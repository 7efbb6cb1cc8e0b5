"""Quality against forward passes: every order with every schedule and every revision, on one test set.

    python benchmarks/regimes.py --model de-en --direction de-en --source FILE --reference FILE --json FILE
    python benchmarks/regimes.py --model runs/sudoku-9x9/model --source PUZZLES [--reference SOLUTIONS] --json FILE
    python benchmarks/regimes.py --merge PART.json PART.json --json FILE

Translations have the length of their references unless --length says otherwise, and are scored by BLEU; puzzles by the
share that is entirely right. Every row has a 95% interval (bootstrap for BLEU, Wilson's for a share), and its
difference from the best row that fills one position a step, with its bootstrap interval and its p-value. If a step
fills everything, the order does not matter: such a regime is run once, in the first order.

FILE is written after every order, and beside it an .npz file with what every sentence contributes to the scores. So a
run that is stopped keeps what is done, and several processes can share the work: give each its own --orders and merge
the parts. scripts/plot_regimes.py makes the figures and tables of docs/regimes.md from the result.
"""

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import anyorder
from anyorder.data.corpus import read_parallel
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.evaluation.bleu import bleu_of_sums, multi_bleu
from anyorder.evaluation.metrics import wilson_interval
from anyorder.evaluation.significance import SumScore, bootstrap_intervals, compare
from anyorder.evaluation.test_set import TestSet, read_test_set
from anyorder.files import write_json
from anyorder.orders import split_orders

ORDERS = (
    "uniform,left-to-right,right-to-left,outer-in:stride=1,dilated,least-to-most,easy-first,entropy,max-prob,margin,"
    "learned,learned:confidence,learned:hidden"
)
PUZZLE_ORDERS = "uniform,left-to-right,right-to-left,dilated,least-to-most,easy-first,entropy,max-prob,margin"
SCHEDULES = (
    *("one", "2", "3", "4", "steps:4", "steps:6", "steps:8", "steps:10", "steps:14", "linear:10"),
    *("cosine:6", "cosine:10", "cosine:14", "dilated:2"),
    *("threshold:0.3", "threshold:0.4", "threshold:0.5", "threshold:0.6", "threshold:0.8"),
    *("factor:1", "factor:2", "factor:3", "entropy-bound:1", "entropy-bound:3", "entropy-bound:6"),
    *("klass:0.5,0.1", "klass", "blocks:8", "blocks:8+threshold:0.5", "blocks:8+steps:3"),
)
PUZZLE_SCHEDULES = (
    *("one", "2", "4", "8", "steps:10", "steps:20", "linear:20", "cosine:10", "cosine:20", "dilated:2"),
    *("threshold:0.7", "threshold:0.9", "threshold:0.95", "threshold:0.99", "threshold:0.999"),
    *("factor:0.1", "factor:0.5", "factor:1", "entropy-bound:0.01", "entropy-bound:0.1", "entropy-bound:0.5"),
    *("klass", "klass:0.99,0.001", "blocks:9", "blocks:9+threshold:0.95", "blocks:9+steps:3"),
)
AT_ONCE = ("mask-predict:4", "mask-predict:6", "mask-predict:10", "p2:4", "p2:6", "p2:10", "refine:4")
"""Revisions whose own schedule fills everything in a step."""
REVISED = (
    *(("one", "gibbs:1"), ("3", "gibbs:1"), ("3", "mask-predict:2"), ("3", "p2:2"), ("steps:8", "p2:2")),
    *(("threshold:0.5", "mask-predict:2"), ("threshold:0.5", "p2:2")),
    *(("linear:10", "remdm:10"), ("linear:10", "remdm-rescale:10"), ("linear:10", "remdm-conf:10")),
)
"""Pairs of a schedule and a revision in which the order matters."""
SAMPLES = 2000
SCORES: dict[str, SumScore] = {
    "BLEU": partial(bleu_of_sums, multi_bleu()),
    "accuracy": lambda sums: 100 * sums[..., 0] / sums[..., 1],
}
"""From what sentences or puzzles contribute, summed, to the score of all, 0 to 100."""


def regimes_of(order: str, is_first: bool, schedules: Sequence[str], length: str) -> list[DecodingConfig]:
    """The regimes of one order."""
    found = [DecodingConfig(order, schedule, length=length) for schedule in schedules]
    found += [DecodingConfig(order, schedule, revision, length) for schedule, revision in REVISED]
    if is_first:
        found += [DecodingConfig(order, revision=revision, length=length) for revision in AT_ONCE]
    return found


def measure(test_set: TestSet, config: DecodingConfig) -> tuple[dict[str, Any], NDArray[np.int64], str]:
    """A row, the statistics behind it, and the signature."""
    indices = test_set.within()
    metric = test_set.metrics(indices)[0]
    start = time.perf_counter()
    trajectories = test_set.decode(config, indices)
    seconds = time.perf_counter() - start
    statistics = metric.counts(trajectories)
    row = {
        "order": "any" if config.schedule == AUTO else config.order,
        "schedule": config.schedule,
        "revision": config.revision,
        "forwards": round(float(np.mean([trajectory.forwards for trajectory in trajectories])), 3),
        "quality": round(float(metric.score(statistics.sum(0).astype(np.float64))), 4),
        "seconds": round(seconds, 3),
    }
    return row, statistics, trajectories[0].signature


def add_intervals(result: dict[str, Any], statistics: Sequence[NDArray[np.int64]]) -> None:
    """Complete the rows, and say with which of them they are compared."""
    rows, score = result["rows"], SCORES[result["metric"]]
    by_name = {_name(row): counts for row, counts in zip(rows, statistics, strict=True)}
    one_by_one = [row for row in rows if (row["schedule"], row["revision"]) == ("one", "none")]
    best = result["compared_with"] = _name(max(one_by_one, key=lambda row: row["quality"]))
    if result["metric"] == "accuracy":
        intervals = {name: wilson_interval(*counts.sum(0).tolist()) for name, counts in by_name.items()}
    else:
        intervals = bootstrap_intervals(by_name, score, SAMPLES)
    comparisons = compare(by_name, [best], score, samples=SAMPLES)
    for row in rows:
        name = _name(row)
        row["interval"] = _rounded(intervals[name])
        if found := comparisons[name].get(best):
            row["difference"] = round(found.value, 4)
            row["difference_interval"] = _rounded((found.low, found.high))
            row["p_value"] = round(found.p_value, 5)


def merge(parts: Sequence[Path]) -> tuple[dict[str, Any], list[NDArray[np.int64]]]:
    """Results of several processes as one, and the statistics of all rows; a row that comes again is left out."""
    loaded = [json.loads(part.read_text()) for part in parts]
    for name in ("model", "direction", "source", "size", "metric"):
        if len({str(result[name]) for result in loaded}) > 1:
            raise SystemExit(f"{name} differs: these are not parts of one result")
    rows: dict[str, dict[str, Any]] = {}
    statistics: dict[str, NDArray[np.int64]] = {}
    for part, result in zip(parts, loaded, strict=True):
        counts = np.load(part.with_suffix(".npz"))["arr_0"].astype(np.int64)
        for row, own in zip(result["rows"], counts, strict=True):
            if row["schedule"] == AUTO:
                row["order"] = "any"
            rows.setdefault(_name(row), row)
            statistics.setdefault(_name(row), own)
    merged = {key: value for result in reversed(loaded) for key, value in result.items()}
    return {**merged, "rows": list(rows.values())}, list(statistics.values())


def common_signature(signature: str) -> str:
    """What the signatures of all rows agree in."""
    parts = signature.split("|")
    return "|".join(part for part in parts if part.partition(":")[0] not in ("order", "schedule", "revision"))


def _name(row: dict[str, Any]) -> str:
    return f"{row['order']} {row['schedule']} {row['revision']}"


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [round(value, 4) for value in interval]


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[NDArray[np.int64]]]:
    """Decode and score every regime; the result without intervals, and the statistics of its rows."""
    test_set = open_test_set(options)
    orders = split_orders(options.orders or (ORDERS if options.direction else PUZZLE_ORDERS))
    usual = SCHEDULES if options.direction else PUZZLE_SCHEDULES
    schedules = options.schedules.split() if options.schedules else usual
    statistics: list[NDArray[np.int64]] = []
    result: dict[str, Any] = {
        "model": options.model,
        "direction": options.direction,
        "source": options.source.name,
        "size": len(test_set.within()),
        "metric": "BLEU" if options.direction else "accuracy",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "rows": [],
    }
    for order in orders:
        for config in regimes_of(order, order == orders[0], schedules, options.length):
            row, counts, signature = measure(test_set, config)
            result["rows"].append(row)
            result["signature"] = common_signature(signature)
            statistics.append(counts)
            print(
                f"{_name(row):55} {row['quality']:6.2f} {row['forwards']:6.2f} forwards {row['seconds']:7.2f} s",
                flush=True,
            )
        write_json(options.json, result)
        np.savez_compressed(options.json.with_suffix(".npz"), np.stack(statistics).astype(np.int16))
    return result, statistics


def open_test_set(options: argparse.Namespace) -> TestSet:
    decoder = anyorder.load(options.model, task=options.direction)
    files = [file for file in (options.source, options.reference) if file]
    lines = islice(read_parallel(files), options.limit)
    sources, *references = (list(column) for column in zip(*lines, strict=True))
    return read_test_set(decoder, sources, references or None, is_gold=options.length == "gold")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--direction", help="of translations, such as de-en; without it the model solves puzzles")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--orders")
    parser.add_argument("--schedules", help="separated by spaces")
    parser.add_argument("--length", default="gold")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--merge", type=Path, nargs="+", help="results of several processes, instead of decoding")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    if not options.merge and not (options.model and options.source):
        parser.error("--model and --source are needed, or --merge")
    result, statistics = merge(options.merge) if options.merge else run(options)
    add_intervals(result, statistics)
    write_json(options.json, result)


if __name__ == "__main__":
    main()

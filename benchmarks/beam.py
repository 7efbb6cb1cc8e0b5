"""BLEU and speed of beam search, beside greedy decoding of the same sentences in the same orders.

    python benchmarks/beam.py --model MODEL --direction de-en --source FILE --reference FILE
        [--orders left-to-right,margin,learned] [--beams 1,4] [--length candidates:4] [--limit N] [--json FILE]

BLEU is what `anyorder evaluate` prints. Every beam is compared with the first one in the same order: the difference in
BLEU, its 95% interval and its p-value. A beam joint:N goes with the order max-prob only and is run in that order alone.
Before the clock starts, the first sentences are decoded once, which compiles and tunes the kernels.
"""

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import anyorder
from anyorder.data.corpus import read_parallel
from anyorder.decoder import Decoder
from anyorder.decoding.config import JOINT_ORDER, DecodingConfig, make_beam
from anyorder.decoding.trajectory import Trajectory
from anyorder.evaluation.bleu import MosesScorer
from anyorder.evaluation.evaluate import evaluate
from anyorder.orders import split_orders

WARM_UP = 512


def decode(translator: Decoder, sources: list[str], config: DecodingConfig) -> tuple[list[Trajectory], float]:
    """The trajectories, and the seconds that they took."""
    list(translator.stream(sources[:WARM_UP], config))
    start = time.perf_counter()
    trajectories = list(translator.stream(sources, config))
    return trajectories, time.perf_counter() - start


def mean_logprob(trajectories: list[Trajectory]) -> float:
    """Of a token; what the search maximizes."""
    values = [value for trajectory in trajectories for value in trajectory.logprobs]
    return sum(values) / max(1, len(values))


def compare_beams(
    translator: Decoder,
    sources: list[str],
    references: list[str],
    direction: str,
    order: str,
    beams: list[str],
    length: str,
) -> list[dict[str, Any]]:
    """One row a beam."""
    systems, seconds = {}, {}
    for beam in beams:
        config = DecodingConfig(order, length=length, beam=beam)
        systems[beam], seconds[beam] = decode(translator.with_task(direction), sources, config)
    target = translator.model.languages(direction)[1]
    scorer = MosesScorer(lambda texts: translator.model.words(texts, target))
    scored = evaluate(systems, references, scorer, against=beams[:1])
    rows = []
    for row in scored.rows:
        difference = row.differences.get(beams[0])
        rows.append(
            {
                "order": order,
                "beam": row.system,
                "sentences": row.sentences,
                "bleu": row.bleu,
                "difference": difference and difference.value,
                "interval": difference and [difference.low, difference.high],
                "p_value": row.p_values.get(beams[0]),
                "mean_logprob": mean_logprob(systems[row.system]),
                "seconds": seconds[row.system],
                "per_second": row.sentences / seconds[row.system],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--direction", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--orders", default="left-to-right,margin,learned")
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--length", default="candidates:4")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    translator = anyorder.load(options.model)
    pairs = list(islice(read_parallel([options.source, options.reference]), options.limit))
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    beams = options.beams.split(",")
    joint = [beam for beam in beams if make_beam(beam).over == "joint"]
    plain = [beam for beam in beams if beam not in joint]
    tried = {order: plain for order in split_orders(options.orders) if plain}
    if joint:
        tried[JOINT_ORDER] = list(dict.fromkeys(["1", *tried.get(JOINT_ORDER, []), *joint]))
    rows = []
    for order, own in tried.items():
        for row in compare_beams(translator, sources, references, options.direction, order, own, options.length):
            rows.append(row)
            change = "" if row["difference"] is None else f"{row['difference']:+.2f} (p = {row['p_value']:.4f})"
            print(
                f"{order:15} {row['beam']:>12} {row['bleu']:6.2f} BLEU {change:20} "
                f"{row['mean_logprob']:8.4f} log-probability {row['per_second']:8.1f} sentences/s",
                flush=True,
            )
    if options.json:
        device = torch.cuda.get_device_name() if translator.model.device.type == "cuda" else "cpu"
        result = {"device": device, "model": options.model, "length": options.length, "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

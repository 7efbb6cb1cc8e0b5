"""Checks the paired tests of `anyorder evaluate` by simulation and times them.

    python benchmarks/significance.py [--simulations 500] [--sentences 500] [--samples 1000] [--json FILE]

Every simulation draws a fresh test set from a large population of sentences and two systems that translate it. Words
follow Zipf's law; each sentence has its own difficulty, and a third of its outputs are the same in both systems, as
they are in practice. A system is a draw from ten outputs per sentence, so two systems of the same quality differ by
chance only.

- calibration: p-values of equal systems against the uniform distribution (Kolmogorov-Smirnov; p > .05 is wanted)
- power: how often a true difference is found, at the thresholds that reject 5% of the equal systems; beside it the test
  of version 0.1, sacreBLEU's paired bootstrap, which counts one tail
- few sentences: how often equal systems give p < .05 on small test sets
- speed: ten systems against four baselines on 2,000 sentences, beside sacreBLEU's own paired tests
"""

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from anyorder.evaluation.bleu import bleu_of_sums, sentence_counts
from anyorder.evaluation.significance import Test, compare, draw_bootstrap

TESTS: tuple[Test, ...] = get_args(Test)
OUTPUTS = 10
METRIC = BLEU(tokenize="none", force=True)
SCORE = partial(bleu_of_sums, METRIC)


class Population(NamedTuple):
    """Sentences and their possible outputs."""

    references: list[str]
    outputs: list[list[str]]
    """For each of ten outputs, one per sentence."""
    statistics: NDArray[np.int64]
    """(outputs, sentences, K)"""


def make_population(sentences: int, quality: float, seed: int) -> Population:
    """Outputs keep a word with a probability of about `quality`; the references depend on the seed only."""
    draw = random.Random(seed)
    words = [f"w{rank}" for rank in range(3000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    references = [
        draw.choices(words, weights, k=min(60, max(4, round(draw.lognormvariate(2.8, 0.5))))) for _ in range(sentences)
    ]
    difficulties = [draw.uniform(-0.25, 0.25) for _ in references]
    outputs = [
        [
            " ".join(
                word if draw.random() < quality - difficulty else draw.choice(words)
                for word in reference
                if draw.random() > 0.03
            )
            for reference, difficulty in zip(references, difficulties, strict=True)
        ]
        for _ in range(OUTPUTS)
    ]
    lines = [" ".join(reference) for reference in references]
    return Population(lines, outputs, np.stack([sentence_counts(METRIC, one, [lines]) for one in outputs]))


def draw_systems(
    first: Population, second: Population, sentences: int, random_numbers: np.random.Generator
) -> dict[str, NDArray[np.int64]]:
    """Statistics of two systems, one from each population, on the same random sentences."""
    chosen = random_numbers.integers(first.statistics.shape[1], size=sentences)
    ours, theirs = random_numbers.integers(OUTPUTS, size=(2, sentences))
    # Where the populations are the same, so are these outputs.
    theirs = np.where(random_numbers.random(sentences) < 1 / 3, ours, theirs)
    return {"a": first.statistics[ours, chosen], "b": second.statistics[theirs, chosen]}


def simulate(
    first: Population, second: Population, test: Test | None, simulations: int, sentences: int, samples: int, seed: int
) -> NDArray[np.float64]:
    """(simulations,) p-values; those of version 0.1 if no test is given."""
    random_numbers = np.random.default_rng(seed)
    found = []
    for number in range(simulations):
        systems = draw_systems(first, second, sentences, random_numbers)
        if test is None:
            found.append(one_sided_p_value(systems["a"], systems["b"], samples, seed=number))
        else:
            found.append(compare(systems, ["a"], SCORE, test, samples, seed=number)["b"]["a"].p_value)
    return np.array(found)


def one_sided_p_value(a: NDArray[np.int64], b: NDArray[np.int64], samples: int, seed: int) -> float:
    """sacreBLEU's paired bootstrap, which version 0.1 used: absolute differences, centered at their own mean."""
    (counts,) = draw_bootstrap(len(a), samples, seed)
    differences = np.abs(SCORE(counts @ a) - SCORE(counts @ b))
    observed = abs(SCORE(a.sum(0)) - SCORE(b.sum(0)))
    return float((1 + (differences - differences.mean() > observed).sum()) / (1 + samples))


def uniform_p_value(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The p-value of the Kolmogorov-Smirnov test against the uniform distribution (with Stephens' correction)."""
    ordered = np.sort(values)
    count = len(ordered)
    ranks = np.arange(count)
    distance = max((ordered - ranks / count).max(), ((ranks + 1) / count - ordered).max())
    scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * distance
    if scaled < 0.2:
        return 1.0
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101)))


def measure_tests(simulations: int, sentences: int, samples: int) -> dict[str, Any]:
    """Calibration of every test, and its power at a true difference."""
    population, better = (make_population(5000, quality, seed=1) for quality in (0.62, 0.636))
    differences = [[SCORE(output.sum(0)) for output in kind.statistics] for kind in (population, better)]
    measured: dict[str, Any] = {"true_difference": round(float(np.mean(differences[1]) - np.mean(differences[0])), 2)}
    for test in (*TESTS, None):
        equal = simulate(population, population, test, simulations, sentences, samples, seed=1)
        different = simulate(population, better, test, simulations, sentences, samples, seed=2)
        threshold = float(np.quantile(equal, 0.05))
        measured[test or "version 0.1"] = {
            "uniform_p": round(uniform_p_value(equal), 4),
            "rejected_at_.05": round(float((equal < 0.05).mean()), 3),
            "threshold_of_level_.05": round(threshold, 4),
            "power_at_level_.05": round(float((different <= threshold).mean()), 3),
        }
    return measured


def measure_small_test_sets(simulations: int, samples: int) -> dict[str, dict[int, float]]:
    """How often equal systems give p < .05, by the number of sentences."""
    population = make_population(5000, 0.62, seed=1)
    return {
        test: {
            sentences: round(
                float((simulate(population, population, test, simulations, sentences, samples, seed=3) < 0.05).mean()),
                3,
            )
            for sentences in (6, 10, 20, 50, 100)
        }
        for test in TESTS
    }


def measure_speed(samples: int, systems: int = 10, baselines: int = 4, sentences: int = 2000) -> dict[str, float]:
    """Seconds for all comparisons, with counting n-grams."""
    population = make_population(sentences, 0.62, seed=2)
    seconds: dict[str, float] = {}
    names = [f"system {i}" for i in range(systems)]
    for test, code in zip(TESTS, ("ar", "bs"), strict=True):
        start = time.perf_counter()
        counted = [sentence_counts(METRIC, one, [population.references]) for one in population.outputs[:systems]]
        compare(dict(zip(names, counted, strict=True)), names[:baselines], SCORE, test, samples)
        seconds[test] = round(time.perf_counter() - start, 2)
        named = list(zip(names, population.outputs, strict=True))
        start = time.perf_counter()
        for i in range(baselines):
            order = [named[i], *named[:i], *named[i + 1 :]]
            PairedTest(order, {"BLEU": METRIC}, [population.references], test_type=code, n_samples=samples)()
        seconds[f"sacreBLEU's {test}"] = round(time.perf_counter() - start, 2)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = {
        "simulations": options.simulations,
        "sentences": options.sentences,
        "samples": options.samples,
        "tests": measure_tests(options.simulations, options.sentences, options.samples),
        "rejected_on_small_test_sets": measure_small_test_sets(options.simulations, options.samples),
        "seconds": measure_speed(options.samples),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

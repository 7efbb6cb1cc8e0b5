"""Paired tests against their definitions, written down with sacreBLEU and lists of sentences."""

import itertools
import random
import runpy
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from anyorder.evaluation import significance
from anyorder.evaluation.bleu import bleu_of_sums, sentence_counts
from anyorder.evaluation.significance import (
    Difference,
    Test,
    bootstrap_intervals,
    compare,
    draw_bootstrap,
    draw_swaps,
    holm,
)
from tests.conftest import toy_pairs

TESTS = get_args(Test)
METRIC = BLEU(force=True)
SCORE = partial(bleu_of_sums, METRIC)
REFERENCES = [english for _, english in toy_pairs(40, seed=2)]
SIMULATION = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "significance.py"))


def damaged(share: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(word for word in line.split() if draw.random() > share) for line in REFERENCES]


SYSTEMS = {"a": damaged(0.1, 1), "b": damaged(0.15, 2), "c": damaged(0.4, 3)}


def comparisons(systems: dict[str, list[str]], *baselines: str, **options: Any) -> dict[str, dict[str, Difference]]:
    counted = [sentence_counts(METRIC, texts, [REFERENCES[: len(texts)]]) for texts in systems.values()]
    return compare(dict(zip(systems, counted, strict=True)), baselines, SCORE, **options)


def score(lines: list[str], references: list[str] = REFERENCES) -> float:
    return float(METRIC.corpus_score(lines, [references]).score)


def test_randomization_swaps_the_outputs_of_sentences() -> None:
    found = comparisons(SYSTEMS, "a", samples=200, seed=5)["b"]["a"]
    assert found.value == pytest.approx(score(SYSTEMS["b"]) - score(SYSTEMS["a"]))
    (swaps,) = draw_swaps(40, 200, seed=5)
    beyond = 0
    for swap in swaps:
        pairs = list(zip(SYSTEMS["a"], SYSTEMS["b"], swap, strict=True))
        first, second = [b if yes else a for a, b, yes in pairs], [a if yes else b for a, b, yes in pairs]
        beyond += abs(score(first) - score(second)) >= abs(found.value) - 1e-9
    assert 0 < beyond < 200
    assert found.p_value == (1 + beyond) / 201


def test_bootstrap_is_centered_at_the_observed_difference() -> None:
    found = comparisons(SYSTEMS, "a", test="bootstrap", samples=200, seed=5)["b"]["a"]
    (counts,) = draw_bootstrap(40, 200, seed=5)
    differences = []
    for count in counts.astype(int):
        chosen = np.repeat(np.arange(40), count)
        references = [REFERENCES[i] for i in chosen]
        a, b = (score([SYSTEMS[name][i] for i in chosen], references) for name in "ab")
        differences.append(b - a)
    beyond = sum(abs(value - found.value) >= abs(found.value) for value in differences)
    assert 0 < beyond < 200
    assert found.p_value == (1 + beyond) / 201
    assert [found.low, found.high] == pytest.approx(np.quantile(differences, [0.025, 0.975]))
    randomized = comparisons(SYSTEMS, "a", samples=200, seed=5)["b"]["a"]
    assert (randomized.low, randomized.high) == (found.low, found.high)


def test_randomization_against_every_possible_swap() -> None:
    systems = {name: lines[:10] for name, lines in SYSTEMS.items()}
    found = comparisons(systems, "a", samples=10_000)
    pairs = [sentence_counts(METRIC, systems[name], [REFERENCES[:10]]) for name in "ab"]
    swaps = np.array(list(itertools.product((0.0, 1.0), repeat=10)))
    first = swaps @ pairs[0] + (1 - swaps) @ pairs[1]
    second = (1 - swaps) @ pairs[0] + swaps @ pairs[1]
    beyond = np.abs(SCORE(first) - SCORE(second)) >= abs(found["b"]["a"].value) - 1e-9
    assert found["b"]["a"].p_value == pytest.approx(beyond.mean(), abs=0.015)


def test_sacrebleu_finds_about_the_same() -> None:
    named = [(name, SYSTEMS[name]) for name in "abc"]
    _, results = PairedTest(named, {"BLEU": METRIC}, [REFERENCES], test_type="ar", n_samples=1000)()
    found = comparisons(SYSTEMS, "a")
    assert found["b"]["a"].p_value == pytest.approx(results["BLEU"][1].p_value, abs=0.05)
    assert found["c"]["a"].p_value < 0.001
    assert results["BLEU"][2].p_value < 0.002


@pytest.mark.parametrize("test", TESTS)
def test_comparisons_depend_on_the_two_systems_only(test: Test) -> None:
    found = comparisons(SYSTEMS, "a", "b", test=test, samples=500)
    assert {name: list(others) for name, others in found.items()} == {"a": ["b"], "b": ["a"], "c": ["a", "b"]}
    alone = comparisons({"b": SYSTEMS["b"], "a": SYSTEMS["a"]}, "a", test=test, samples=500)
    assert alone["b"]["a"] == found["b"]["a"]
    assert comparisons(SYSTEMS, "a", "b", test=test, samples=500) == found
    there, back = found["a"]["b"], found["b"]["a"]
    assert there.p_value == back.p_value
    assert [there.value, there.low, there.high] == pytest.approx([-back.value, -back.high, -back.low])


@pytest.mark.parametrize("test", TESTS)
def test_systems_with_the_same_score_do_not_differ(test: Test) -> None:
    other_errors = [f"{line} {'?' if i % 2 else '!'}" for i, line in enumerate(REFERENCES)]
    same_score = [line.translate(str.maketrans("?!", "!?")) for line in other_errors]
    found = comparisons({"a": SYSTEMS["a"], "copy": SYSTEMS["a"]}, "a", test=test, samples=50)["copy"]["a"]
    assert found == Difference(0.0, 0.0, 0.0, 1.0)
    found = comparisons({"a": other_errors, "b": same_score}, "a", test=test, samples=50)["b"]["a"]
    assert (found.value, found.p_value) == (0.0, 1.0)


def test_intervals_of_scores() -> None:
    """The share of solved puzzles: the bootstrap agrees with the binomial distribution."""
    solved = np.arange(400) < 300
    statistics = {"a": np.stack([solved, np.ones(400)], 1).astype(np.int64), "b": np.ones((400, 2), np.int64)}
    found = bootstrap_intervals(statistics, lambda sums: 100 * sums[..., 0] / sums[..., 1], samples=4000)
    half = 1.96 * (75 * 25 / 400) ** 0.5
    assert found["a"] == pytest.approx((75 - half, 75 + half), abs=0.4)
    assert found["b"] == (100, 100)


def test_draws() -> None:
    (swaps,), (counts,) = draw_swaps(100, 2000, seed=1), draw_bootstrap(101, 2000, seed=1)
    assert set(np.unique(swaps)) == {0.0, 1.0}
    assert np.abs(swaps.mean(0) - 0.5).max() < 0.05
    assert (counts.sum(1) == 101).all()
    assert np.abs(counts.mean(0) - 1).max() < 0.1
    assert counts.var() == pytest.approx(1, abs=0.05)
    assert not np.array_equal(next(draw_swaps(100, 2000, seed=2)), swaps)


def test_draws_do_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [next(draw(70, 50, 3)) for draw in (draw_swaps, draw_bootstrap)]
    monkeypatch.setattr(significance, "BLOCK_SIZE", 70 * 8)
    for draw, expected in zip((draw_swaps, draw_bootstrap), whole, strict=True):
        blocks = list(draw(70, 50, 3))
        assert [len(block) for block in blocks] == [8] * 6 + [2]
        assert np.array_equal(np.concatenate(blocks), expected)


def test_holm() -> None:
    p_values = {"c": 0.03, "a": 0.01, "e": 0.05, "b": 0.02, "d": 0.04}
    assert holm(p_values) == pytest.approx({"c": 0.09, "a": 0.05, "e": 0.09, "b": 0.08, "d": 0.09})
    assert list(holm(p_values)) == list(p_values)
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({"a": 0.04}) == {"a": 0.04}
    assert holm({}) == {}


def test_p_values_of_equal_systems_are_uniform() -> None:
    """The short version of benchmarks/significance.py. The test of version 0.1, which counts one tail, fails it."""
    population = SIMULATION["make_population"](400, 0.62, seed=1)
    run = partial(SIMULATION["simulate"], population, population, simulations=150, sentences=100, samples=200, seed=1)
    uniform = SIMULATION["uniform_p_value"]
    for test in TESTS:
        assert uniform(run(test=test)) > 0.05
    assert uniform(run(test=None)) < 0.001


def test_kolmogorov_smirnov() -> None:
    uniform = SIMULATION["uniform_p_value"]
    grid = (np.arange(500) + 0.5) / 500
    assert uniform(grid) == 1.0
    assert uniform(grid * (1 - 0.0594)) == pytest.approx(0.05, abs=0.001)  # 0.0604 is the critical distance of 5%
    assert uniform(grid**2) < 1e-9

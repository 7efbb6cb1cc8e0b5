"""Whole test sets: values against sums by hand, intervals and nulls that cover what they should, the JSON format."""

import json
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from anyorder.analysis import linguistics, order_metrics
from anyorder.analysis.analyze import BINS, analyze
from anyorder.analysis.linguistics import Annotation
from anyorder.analysis.order_metrics import LABELS
from anyorder.analysis.results import Analysis
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from tests.analysis.paper import AFFLECK, MOSTLY_LEFT_TO_RIGHT, TEARGAS
from tests.report.conftest import make_answers

FIELDS = ["value", "low", "high", "null", "null_low", "null_high", "count"]
FIELDS += ["difference", "difference_low", "difference_high"]
NAMES = """
    kendall left-to-right, spearman left-to-right, kendall outer-in, edge share, adjacent share, mean jump, local ar-ness@1,
    local ar-ness@2, local ar-ness@4, global ar-ness@1, global ar-ness@2, global ar-ness@4, left-to-right share, nearly left-to-right share,
    punctuation first share, order entropy, diversity, suffix last share, repetition rate, frequency correlation
"""
WORDS = ["the", "gas", "of", "use@@", "ful", "and", "tear", "people", "are", "cry@@", "ing", "after", "it"]


measure = partial(analyze, tagger="none")


def sentence(steps: list[int], tokens: list[str] | None = None, source: str = "s") -> Trajectory:
    tokens = tokens or [*(WORDS[i % len(WORDS)] for i in range(len(steps) - 1)), "."]
    text = " ".join(tokens).replace("@@ ", "")
    return Trajectory(source, text, tokens, steps, [-1.0] * len(steps), "some", len(steps), "order:some")


def corpus(count: int, order: str, seed: int = 0) -> list[Trajectory]:
    random = np.random.default_rng(seed)
    trajectories = []
    for length in random.integers(2, 30, count):
        steps = random.permutation(length) + 1 if order == "random" else getattr(order_metrics, order)(length)
        tokens = [*random.choice(WORDS, length - 1).tolist(), "."]
        trajectories.append(sentence(steps.tolist(), tokens))
    return trajectories


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    systems = {name: corpus(120, name) for name in ("left_to_right", "outer_in", "random")}
    return measure(systems, references=["the gas of useful people ."] * 120, samples=300, null_samples=40)


def test_json_has_the_agreed_format(analysis: Analysis) -> None:
    record = json.loads(json.dumps(analysis.as_json(), allow_nan=False))
    assert (record["format"], record["sentences"]) == (1, 120)
    assert repr(analysis) == "Analysis(sentences=120, systems=['left_to_right', 'outer_in', 'random'])"
    assert [one["name"] for one in record["systems"]] == ["left_to_right", "outer_in", "random"]
    for one in record["systems"]:
        assert one["signature"] == "order:some"
        assert {name.strip() for name in NAMES.split(",")} <= set(one["figures"])
        for name, figure in one["figures"].items():
            assert list(figure) == FIELDS
            assert figure["low"] - 1e-6 <= figure["value"] <= figure["high"] + 1e-6, name
            assert (figure["null"] is None) == (name == "sentence bleu")
        assert list(one["labels"]) == list(LABELS)
        assert sum(one["labels"].values()) == pytest.approx(1, abs=1e-5)
        assert one["positions"]["bins"] == BINS
        assert np.sum(one["positions"]["share"], 1) == pytest.approx(np.ones(BINS), abs=1e-4)
        assert list(one["jumps"]) == [str(i) for i in range(-10, 11) if i]
        assert sum(one["jumps"].values()) == pytest.approx(1, abs=1e-4)
        assert one["by_tag"] is None
    for name, systems in record["per_sentence"].items():
        assert [len(values) for values in systems] == [120] * 3, name
    assert {"label", "edge share", "kendall outer-in", "sentence bleu"} <= set(record["per_sentence"])


def test_pure_orders_have_the_expected_metrics(analysis: Analysis) -> None:
    left, outer, random = (one.metrics for one in analysis.systems)
    for name in ("kendall left-to-right", "spearman left-to-right", "edge share", "adjacent share", "mean jump",
                 "local ar-ness@4", "global ar-ness@1", "left-to-right share"):  # fmt: skip
        assert (left[name].value, left[name].low, left[name].high) == (1, 1, 1), name
    assert left["kendall right-to-left"].value == -1
    assert left["diversity"].value == pytest.approx(0, abs=1e-5)
    assert (outer["kendall outer-in"].value, outer["edge share"].value) == (1, 1)
    assert analysis.systems[0].jumps["1"] == 1
    labels = analysis.systems[1].labels
    assert labels["outer-to-inner"] + labels["left-to-right"] == pytest.approx(1, abs=1e-5)
    assert labels["outer-to-inner"] > 0.9  # the two are one order where there are two positions
    # Orders that are random lie within what random orders give, and the others do not.
    near = ("kendall left-to-right", "kendall outer-in", "edge share", "adjacent share", "mean jump", "diversity")
    for name in near:
        low, high = random[name].null_low, random[name].null_high
        room = high - low
        assert low - room / 2 <= random[name].value <= high + room / 2, name
        assert not left[name].null_low <= left[name].value <= left[name].null_high


def test_null_equals_the_expectation_over_random_orders() -> None:
    trajectories = [sentence(order_metrics.left_to_right(6).tolist()) for _ in range(200)]
    metrics = measure({"six": trajectories}, samples=50, null_samples=60).systems[0].metrics
    expected = {
        "kendall left-to-right": 0,
        "spearman outer-in": 0,
        "adjacent share": 2 / 6,  # 2 (n - 1) of n (n - 1) ordered pairs
        "mean jump": 7 / 3,  # (n + 1) / 3
        "local ar-ness@1": 1 / 6,
        "global ar-ness@1": sum(1 / i for i in range(1, 7)) / 6,
        "global ar-ness@2": (1 + sum(2 / i for i in range(2, 7))) / 6,
        "edge share": (2 * sum(1 / i for i in range(1, 7)) - 1) / 6,  # the last one is at both edges
        "diversity": 1,
        "suffixes last": 1 / 3,
    }
    for name, value in expected.items():
        figure = metrics[name]
        assert figure.null == pytest.approx(value, abs=0.02), name
        assert figure.null_low <= figure.null <= figure.null_high


def test_counts_steps_or_sentences() -> None:
    trajectories = [sentence(one.steps, one.tokens) for one in (TEARGAS, AFFLECK, MOSTLY_LEFT_TO_RIGHT)]
    one = measure({"paper": trajectories}, samples=50, null_samples=5)
    metrics = one.systems[0].metrics
    assert metrics["edge share"].value == pytest.approx((19 + 14 + 14) / 62, abs=1e-6)
    taus = [float(order_metrics.kendall(s.steps, order_metrics.outer_in(s.length))) for s in trajectories]
    assert metrics["kendall outer-in"].value == pytest.approx(sum(taus) / 3, abs=1e-6)
    assert one.systems[0].labels == {"outer-to-inner": pytest.approx(2 / 3, abs=1e-5), "left-to-right": pytest.approx(1 / 3, abs=1e-5),
                                     "right-to-left": 0, "inner-to-outer": 0, "other": 0}  # fmt: skip
    assert one.per_sentence["label"] == [[0, 0, 1]]
    assert one.per_sentence["edge share"][0] == pytest.approx([19 / 20, 14 / 22, 14 / 20], abs=1e-4)
    assert (metrics["suffix last share"].value, metrics["suffix last share"].count) == (0.5, 2)
    assert metrics["punctuation first share"].value == 0


def test_final_punctuation_first() -> None:
    trajectories = [sentence([2, 3, 1]), sentence([2, 3, 1], ["a", "b", "c"]), sentence([1, 2, 3]), sentence([1])]
    metrics = measure({"one": trajectories}, samples=20, null_samples=5).systems[0].metrics
    assert (metrics["punctuation first share"].value, metrics["punctuation first share"].count) == (
        pytest.approx(1 / 3, abs=1e-6),
        3,
    )
    assert metrics["left-to-right share"].value == pytest.approx(1 / 3, abs=1e-6)
    assert metrics["nearly left-to-right share"].value == pytest.approx(2 / 3, abs=1e-6)
    assert metrics["nearly left-to-right share"].count == 3


def test_the_interval_is_the_standard_error_of_the_mean() -> None:
    random = np.random.default_rng(1)
    trajectories = [sentence((random.permutation(10) + 1).tolist()) for _ in range(400)]
    figure = measure({"one": trajectories}, samples=2000, null_samples=2).systems[0].metrics["kendall left-to-right"]
    taus = [float(order_metrics.kendall(one.steps, order_metrics.left_to_right(10))) for one in trajectories]
    half = 1.96 * np.std(taus) / np.sqrt(len(taus))
    assert figure.high - figure.low == pytest.approx(2 * half, rel=0.1)


def test_systems_are_compared_sentence_by_sentence() -> None:
    """The interval of a difference is that of the mean of the sentences' differences, not of two separate means."""
    random = np.random.default_rng(1)
    one = [sentence((random.permutation(10) + 1).tolist()) for _ in range(400)]
    two = [sentence(trajectory.steps if i % 4 else list(range(1, 11))) for i, trajectory in enumerate(one)]
    first, second, same = measure({"one": one, "two": two, "same": one}, samples=2000, null_samples=2).systems
    figure = second.metrics["kendall left-to-right"]
    taus = [
        [float(order_metrics.kendall(trajectory.steps, order_metrics.left_to_right(10))) for trajectory in system]
        for system in (one, two)
    ]
    apart = np.subtract(*taus[::-1])
    half = 1.96 * np.std(apart) / np.sqrt(len(apart))
    assert figure.difference == pytest.approx(np.mean(apart), abs=1e-5)
    assert figure.difference_high - figure.difference_low == pytest.approx(2 * half, rel=0.1)
    assert first.metrics["edge share"].difference is None
    for metric in same.metrics.values():
        assert (metric.difference, metric.difference_low, metric.difference_high) in ((0, 0, 0), (None, None, None))


def test_results_are_determined_by_the_seed() -> None:
    systems = {"a": corpus(30, "random")}
    first, again, other = (measure(systems, samples=50, null_samples=5, seed=seed).as_json() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_metrics_do_not_depend_on_the_other_systems() -> None:
    one, two = corpus(30, "random"), corpus(30, "outer_in")
    alone, together = (
        measure({"a": one}, samples=50, null_samples=5),
        measure({"b": two, "a": one}, samples=50, null_samples=5),
    )
    skip = "frequency correlation"  # of all outputs together
    nothing = {"difference": None, "difference_low": None, "difference_high": None}
    assert {k: v for k, v in alone.systems[0].metrics.items() if k != skip} == {
        k: replace(v, **nothing) for k, v in together.systems[1].metrics.items() if k != skip
    }


def test_degenerate_sentences() -> None:
    trajectories = [
        sentence([1], ["."]),
        Trajectory("s", "", [], [], [], "o", 0, ""),
        sentence([1, 1, 1]),
        sentence([1]),
    ]
    record = measure({"one": trajectories}, references=["a"] * 4, samples=20, null_samples=3).as_json()
    json.dumps(record, allow_nan=False)
    metrics = record["systems"][0]["figures"]
    assert metrics["kendall left-to-right"] == {**dict.fromkeys(metrics["edge share"]), "count": 0}
    assert record["per_sentence"]["kendall left-to-right"] == [[None] * 4]
    assert record["per_sentence"]["label"] == [[4] * 4]
    with pytest.raises(InputError, match="one has no sentences but empty ones"):
        measure({"one": trajectories[1:2]}, samples=20, null_samples=3)


def test_tags_and_constituents_are_measured_where_there_is_a_parser() -> None:
    def parser(sentences: list[list[str]]) -> list[Annotation]:
        return [Annotation(["NOUN"] * 2 + ["PUNCT"], [(0, 2)]) for _ in sentences]

    trajectories = [sentence([1, 2, 3], ["a", "b", "."]), sentence([1, 3, 2], ["a", "b", "."])]
    result = analyze({"one": trajectories}, tagger=parser, samples=20, null_samples=200)
    metrics, by_tag = result.systems[0].metrics, result.systems[0].by_tag
    assert metrics["constituent share"].value == 0.5
    assert metrics["constituent share"].null == pytest.approx(2 / 3, abs=0.1)
    assert by_tag is not None
    assert by_tag["PUNCT"].value == pytest.approx((5 / 6 + 3 / 6) / 2, abs=1e-5)
    assert metrics["content word step"].value == pytest.approx((1 + 3 + 1 + 5) / 6 / 4, abs=1e-5)
    assert result.notes == []


def test_the_tagger_is_chosen_by_name() -> None:
    german = [sentence([1, 2, 3], ["das", "Ende", "."])]
    result = analyze({"one": german}, samples=20, null_samples=2)
    assert result.systems[0].by_tag is None
    assert "does not look English" in result.notes[0]
    assert measure({"one": german}, samples=20, null_samples=2).notes == []
    with pytest.raises(InputError, match="tagger xx_nothing: "):
        analyze({"one": german}, tagger="xx_nothing", samples=20, null_samples=2)


def test_one_system_needs_no_name() -> None:
    trajectories = corpus(5, "outer_in")
    named = measure({"some": trajectories}, samples=20, null_samples=2)
    assert measure(trajectories, samples=20, null_samples=2) == named


@pytest.mark.parametrize(("option", "value"), [("samples", 19), ("null_samples", 0)])
def test_numbers_out_of_bounds(option: str, value: int) -> None:
    with pytest.raises(InputError, match=rf"^{option} {value}: expected a number of at least"):
        measure(corpus(3, "random"), **{option: value})


def test_trees_of_some_sentences() -> None:
    trajectories = [sentence([1, 2, 3], ["a", "b", "."]), sentence([1, 3, 2], ["c", "b", "."])]
    result = measure({"one": trajectories}, trees={"ab.": frozenset({(0, 2)})}, samples=20, null_samples=3)
    assert result.systems[0].metrics["constituent share"].count == 1
    assert result.notes == ["only 1 of 2 sentences have a tree"]
    with pytest.raises(InputError, match="no tree has the words of any sentence"):
        measure({"one": trajectories}, trees={"x": frozenset()}, samples=20, null_samples=3)


def test_systems_that_do_not_fit_together() -> None:
    one = [sentence([1, 2]), sentence([1, 2], source="t")]
    for systems, references, expected in [
        ({}, None, "no system"),
        ({"a": []}, None, "a has no sentences"),
        ({"a": one, "b": one[:1]}, None, "a has 2 sentences but b has 1"),
        (
            {"a": one, "b": [one[0], sentence([1, 2], source="other")]},
            None,
            "a and b translate different sentences in line 2",
        ),
        ({"a": one}, ["x"], "a has 2 sentences but there are 1 references"),
    ]:
        with pytest.raises(InputError, match=expected):
            measure(systems, references)
    measure(
        {"a": one, "b": [sentence([1, 2], source="")] * 2}, samples=20, null_samples=2
    )  # a trajectory without a source may be of any sentence


@pytest.mark.slow
def test_three_thousand_sentences_take_seconds() -> None:
    trajectories = corpus(3000, "random")
    start = time.process_time()
    measure({"one": trajectories})
    assert time.process_time() - start < 8


def test_puzzles_are_solved_or_not_and_have_no_words() -> None:
    puzzle, right, wrong = "1234432121433410", "2", "3"
    trajectories = [
        Trajectory(
            puzzle, puzzle[:-1] + answer, [answer], [1], [-1.0], "margin", 1, "order:margin", task="sudoku-4x4",
            canvas=[*puzzle[:-1], None],
        )
        for answer in (right, wrong, right, right)
    ]  # fmt: skip
    found = analyze(trajectories)
    [system] = found.systems
    assert system.metrics["solved"].value == 75
    assert "sentence bleu" not in system.metrics
    assert not {"suffix last share", "frequency correlation", "repetition rate"} & set(system.metrics)
    assert found.notes == []
    assert found.per_sentence["solved"] == [[100, 0, 100, 100]]


def test_lines_that_are_not_puzzles_are_left_out() -> None:
    systems, solutions = make_answers(4)
    texts = [
        Trajectory(f"a [MASK] {i}", f"a b {i}", ["b"], [1], [-1.0], "margin", 1, "", task="infill") for i in range(2)
    ]
    mixed = {name: [texts[0], *runs, texts[1]] for name, runs in systems.items()}
    found = measure(mixed, ["", *solutions, ""], samples=20, null_samples=2)
    expected = measure(systems, solutions, samples=20, null_samples=2)
    assert found.notes == ["left out 2 of 6 lines: not a puzzle of sudoku-4x4"]
    assert replace(found, notes=[]) == expected
    assert (found.sentences, found.noun) == (4, "puzzle")


def test_repetitions_of_puzzles_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(linguistics, "repetitions", refuse)
    monkeypatch.setattr(linguistics, "shuffled_repetitions", refuse)
    systems, _ = make_answers(3)
    found = measure(systems, samples=20, null_samples=2)
    assert [system.metrics["solved"].value for system in found.systems] == [100, 0]

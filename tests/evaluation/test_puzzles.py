"""Accuracy: intervals and p-values against formulas, answers from trajectories."""

import math
from dataclasses import replace

import numpy as np
import pytest

from anyorder.decoding.trajectory import INFILL, Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.evaluate import evaluate
from anyorder.evaluation.metrics import wilson_interval
from anyorder.evaluation.puzzles import answers_of, only_puzzles, puzzle_task, solved_puzzles
from anyorder.report.tables import evaluation_table
from anyorder.tasks import make_puzzle
from tests.report.conftest import make_answers, make_systems


def trajectory(task_puzzle: str, answer: str, forwards: int = 0) -> Trajectory:
    """A puzzle that was filled from the left."""
    canvas = [None if cell == "0" else cell for cell in task_puzzle]
    tokens = [answer[i] for i, cell in enumerate(canvas) if cell is None]
    steps = list(range(1, len(tokens) + 1))
    return Trajectory(
        task_puzzle,
        answer,
        tokens,
        steps,
        [],
        "left-to-right",
        len(tokens),
        "",
        task="sudoku-4x4",
        canvas=canvas,
        forwards=forwards,
    )


def test_wilson_interval() -> None:
    """The bounds p solve (share - p)^2 = z^2 p (1 - p) / n."""
    for right, count in ((0, 10), (3, 10), (10, 10), (97, 200)):
        low, high = wilson_interval(right, count)
        share = right / count
        for bound in (low / 100, high / 100):
            assert (share - bound) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / count, abs=1e-6)
        assert 0 <= low <= 100 * share <= high <= 100
    assert wilson_interval(0, 10)[0] == 0
    assert wilson_interval(10, 10)[1] == 100


def test_answers_come_from_canvas_and_tokens() -> None:
    task = make_puzzle("sudoku-4x4")
    puzzle, answer = "1000000000000000", "1234341221434321"
    assert task.write(answers_of(task, [trajectory(puzzle, answer)])[0]) == answer
    odd = trajectory(puzzle, answer.replace("2", "?"))
    assert (answers_of(task, [odd])[0] == 0).sum() == 4
    short = Trajectory("", "", ["1"], [1], [], "", 1, "")
    assert (answers_of(task, [short]) == 0).all()


def test_scores_and_significance() -> None:
    """The p-value is that of the exact McNemar test, within the error of 10,000 random swaps."""
    task = make_puzzle("sudoku-4x4")
    examples = task.generate(60, seed=5)
    lines = [(task.write(p), task.write(s)) for p, s in zip(examples.puzzles, examples.solutions, strict=True)]
    wrong = [line[1].translate(str.maketrans("1234", "2222")) for line in lines]
    kept = [
        "".join(p if p != "0" else w for p, w in zip(line[0], bad, strict=True))
        for line, bad in zip(lines, wrong, strict=True)
    ]
    only_a, only_b = 14, 4  # solved by one system alone; 20 by both, 22 by none
    a = [s if i < 20 + only_a else kept[i] for i, (_, s) in enumerate(lines)]
    b = [s if i < 20 or 34 <= i < 34 + only_b else kept[i] for i, (_, s) in enumerate(lines)]
    systems = {
        name: [trajectory(p, answer, forwards=7) for (p, _), answer in zip(lines, answers, strict=True)]
        for name, answers in (("b", b), ("a", a))
    }
    solutions = [solution for _, solution in lines]
    result = evaluate(systems, solutions)
    rows = {row.system: row for row in result.rows}
    assert rows["a"].accuracy == pytest.approx(100 * 34 / 60, abs=1e-3)
    assert rows["b"].accuracy == pytest.approx(40.0)
    assert rows["a"].accuracy_interval == pytest.approx(wilson_interval(34, 60), abs=1e-4)
    assert rows["a"].forwards == 7
    assert rows["b"].p_values == {}
    exact = 2 * sum(math.comb(18, k) for k in range(only_b + 1)) / 2**18
    assert rows["a"].p_values["b"] == pytest.approx(exact, abs=0.006)
    assert rows["a"].differences["b"].value == pytest.approx(100 * 10 / 60, abs=1e-3)
    assert rows["a"].cells is not None
    assert rows["a"].accuracy < rows["a"].cells < 100
    record = result.as_json()
    assert set(record) == {"signature", "task", "rows", "notes", "lines"}
    assert set(record["rows"][1]) == {
        "system", "order", "max_length", "puzzles", "accuracy", "accuracy_interval", "cells", "p_values", "p_values_holm",
        "differences", "schedule", "revision", "forwards",
    }  # fmt: skip
    assert record["rows"][1]["accuracy_interval"] == rows["a"].accuracy_interval
    assert set(record["rows"][1]["differences"]["b"]) == {"accuracy", "low", "high"}
    table = evaluation_table(result)
    assert [column.heading for column in table.groups["all"]] == ["solved %", "95% interval", "cells %", "Δ", "p"]
    assert table.title == "sudoku-4x4, compared with b (60 puzzles)"
    without = evaluate(systems)  # the rules alone decide
    assert [row.accuracy for row in without.rows] == [row.accuracy for row in result.rows]
    assert [row.cells for row in without.rows] == [None, None]
    assert "cells %" not in [column.heading for column in evaluation_table(without).groups["all"]]


def test_too_few_puzzles_and_wrong_requests() -> None:
    task = make_puzzle("sudoku-4x4")
    examples = task.generate(2, seed=5)
    one = [trajectory(task.write(p), task.write(s)) for p, s in zip(examples.puzzles, examples.solutions, strict=True)]
    result = evaluate({"a": one, "b": one})
    assert result.notes == ["2 puzzles are too few for a significance test (at least 10): no p-values."]
    assert np.isclose([row.accuracy for row in result.rows], 100).all()
    with pytest.raises(
        AttributeError, match=r"a score has no 'bleu' \(it has puzzles, accuracy, accuracy_interval, cells\)"
    ):
        _ = result.rows[0].bleu
    with pytest.raises(InputError, match="a has 2 sentences but b has 1"):
        evaluate({"a": one, "b": one[:1]})
    with pytest.raises(InputError, match="a has 2 sentences but there are 1 references"):
        evaluate({"a": one}, ["1"])
    with pytest.raises(InputError, match="'c': is not one of the systems"):
        evaluate({"a": one}, against=["c"])
    with pytest.raises(InputError, match="tokenize is for translation"):
        evaluate({"a": one}, tokenize="13a")
    with pytest.raises(InputError, match="a puzzle has one solution"):
        evaluate({"a": one}, [["1", "2"], ["1", "2"]])


def test_the_clues_are_those_of_the_canvas_or_of_the_source() -> None:
    task, answer = make_puzzle("sudoku-4x4"), "1234341221434321"
    whole = trajectory("1000000000000000", answer)
    no_canvas = Trajectory(whole.source, answer, list(answer), list(range(1, 17)), [], "", 16, "")
    runs = [
        whole,
        replace(whole, source=""),
        no_canvas,
        replace(no_canvas, source="2" + "0" * 15),
        replace(no_canvas, source=""),
    ]
    assert solved_puzzles(task, runs).tolist() == [True, True, True, False, False]
    assert solved_puzzles(task, []).tolist() == []
    wrong = replace(whole, tokens=["4"] * 15)
    solution = answers_of(task, [wrong])
    assert solved_puzzles(task, [wrong]).tolist() == [False]
    assert solved_puzzles(task, [wrong], solution).tolist() == [True]


TEXT = Trajectory("12", "12", [], [], [], "margin", 0, "", task=INFILL, canvas=["1", "2"])


def task_name(systems: dict[str, list[Trajectory]]) -> str | None:
    task = puzzle_task(systems)
    return None if task is None else task.name


def test_lines_that_are_not_puzzles_do_not_change_the_task() -> None:
    systems, _ = make_answers(2)
    assert task_name(systems) == "sudoku-4x4"
    assert task_name({name: [TEXT, *runs] for name, runs in systems.items()}) == "sudoku-4x4"
    unnamed = [replace(run, task="") for run in systems["right"]]
    assert task_name({**systems, "unnamed": unnamed}) == "sudoku-4x4"


def test_anything_else_is_not_a_puzzle_task() -> None:
    systems, _ = make_answers(2)
    assert task_name(make_systems(2)) is None
    assert task_name({"texts": [TEXT]}) is None
    for other in ("sudoku-9x9", "de-en"):
        assert task_name({**systems, "other": [replace(run, task=other) for run in systems["right"]]}) is None


def test_lines_that_some_system_solves_are_kept_with_their_references() -> None:
    systems, solutions = make_answers(3)
    task = puzzle_task(systems)
    assert task is not None
    assert only_puzzles(systems, task) == (systems, None)
    mixed = {name: [runs[0], TEXT, *runs[1:]] for name, runs in systems.items()}
    mixed["unnamed"] = [replace(run, task="") for run in mixed["right"]]
    kept, references = only_puzzles(mixed, task, [solutions[0], "12", *solutions[1:]])
    assert kept == {**systems, "unnamed": [replace(run, task="") for run in systems["right"]]}
    assert references == solutions

"""Puzzles in the report."""

from dataclasses import replace

import pytest

from anyorder.decoding.trajectory import Trajectory
from anyorder.report.grids import grid_task, mean_steps, pack_grid
from anyorder.report.html import pack
from tests.report.conftest import make_answers, make_systems


def test_which_answers_are_right_and_when_cells_are_filled() -> None:
    systems, solutions = make_answers(3)
    grid = pack_grid(systems)
    assert grid is not None
    assert (grid["columns"], grid["rows"], grid["box"]) == (4, 4, 2)
    assert grid["solved"] == [[True] * 3, [False] * 3]
    assert not grid["has_solutions"]
    # Clues are the cells 1, 2 and 3: cell 2 is filled at the steps 2 and 3, the last cell always at the end.
    assert grid["mean_steps"][0][:4] == pytest.approx([1, 2, 2.5, 3])
    assert grid["mean_steps"][0][15] == 15
    assert grid["mean_steps"][1][15] == 1
    assert pack_grid(systems, solutions) == {**grid, "has_solutions": True}


def test_solutions_that_are_none_are_not_used() -> None:
    systems, solutions = make_answers(2)
    for references in (["1234", solutions[0]], ["0" * 16, solutions[0]], ["no", "grid"]):
        grid = pack_grid(systems, references)
        assert grid is not None
        assert not grid["has_solutions"]


def test_a_cell_that_was_always_given_has_no_step() -> None:
    run = Trajectory("", "", ["a", "b"], [2, 1], [], "o", 2, "", canvas=["x", None, None])
    assert mean_steps([run, run], 3) == [None, 2, 1]


def test_only_one_puzzle_task_is_a_grid() -> None:
    systems, _ = make_answers(2)
    assert grid_task(make_systems(2)) is None
    two_tasks = {**systems, "other": [replace(run, task="sudoku-9x9") for run in systems["right"]]}
    assert grid_task(two_tasks) is None
    small = {"x": two_tasks["other"]}
    assert grid_task(small) is None
    assert pack(make_systems(2))["grid"] is None


def test_lines_that_are_not_puzzles_are_left_out() -> None:
    systems, solutions = make_answers(2)
    text = Trajectory("12", "12", [], [], [], "margin", 0, "", task="infill", canvas=["1", "2"])
    mixed = {name: [text, *runs] for name, runs in systems.items()}
    assert pack(mixed, references=["12", *solutions]) == {
        **pack(systems, references=solutions),
        "systems": [{"name": name, "order": runs[0].order, "signature": ""} for name, runs in systems.items()],
    }


def test_the_canvas_travels_with_the_run() -> None:
    systems, _ = make_answers(1)
    data = pack(systems)
    *_, canvas = data["sentences"][0][1][0]
    assert [None if token is None else data["vocabulary"][token] for token in canvas] == systems["right"][0].canvas

"""Which puzzle a set of trajectories solves, and which of its lines are puzzles."""

from dataclasses import replace

from anyorder.decoding.trajectory import INFILL, Trajectory
from anyorder.evaluation.systems import only_puzzles, puzzle_task
from tests.report.conftest import make_answers, make_systems

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

"""Sudoku: the solver agrees with brute force, every generated puzzle has one solution, symmetries keep it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyorder.errors import InputError
from anyorder.tasks import Examples, PuzzleTask, make_puzzle
from anyorder.tasks.sudoku import is_valid, layout, solve


@pytest.fixture(scope="module")
def all_grids() -> np.ndarray:
    """Every filled 4x4 grid, found by checking all combinations of four rows."""
    rows = list(itertools.permutations(range(1, 5)))
    grids = [sum(four, ()) for four in itertools.product(rows, repeat=4) if _holds_rules(four)]
    return np.array(grids)


def _holds_rules(rows: tuple[tuple[int, ...], ...]) -> bool:
    if any(len(set(column)) < 4 for column in zip(*rows, strict=True)):
        return False
    return all(
        len({rows[i][j], rows[i][j + 1], rows[i + 1][j], rows[i + 1][j + 1]}) == 4 for i in (0, 2) for j in (0, 2)
    )


@pytest.fixture(scope="module")
def puzzles9() -> Examples:
    return make_puzzle("sudoku-9x9").generate(40, seed=3)


def test_all_filled_grids(all_grids: np.ndarray) -> None:
    assert len(all_grids) == 288
    assert is_valid(2, all_grids).all()
    swapped = all_grids.copy()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    assert not is_valid(2, swapped).any()
    assert not is_valid(2, np.zeros((1, 16), np.int64)).any()
    assert not is_valid(2, np.full((1, 16), 7)).any()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=16, max_size=16), st.integers(0, 287), st.floats(0, 1))
def test_solver_agrees_with_brute_force(all_grids: np.ndarray, noise: list[int], grid: int, share: float) -> None:
    """On clues of a real grid, of which a share is replaced by noise, so that there may be no solution."""
    random = np.random.default_rng(grid)
    clues = np.where(random.random((20, 16)) < 0.4, all_grids[grid], 0)
    clues = np.where(random.random((20, 16)) < share / 4, np.array(noise), clues)
    matches = ((clues[:, None] == 0) | (clues[:, None] == all_grids)).all(2)
    for limit in (1, 2, 5):
        found = solve(2, clues, limit)
        assert found.complete.all()
        np.testing.assert_array_equal(found.count, np.minimum(matches.sum(1), limit))
        solved = found.count > 0
        assert ((clues == 0) | (clues == found.first))[solved].all()
        assert is_valid(2, found.first[solved]).all()
        assert (found.first[~solved] == 0).all()


def test_units() -> None:
    shape = layout(3)
    assert shape.units.shape == (27, 9)
    assert (np.bincount(shape.units.ravel()) == 3).all()
    for kind in range(3):
        for cell, unit in enumerate(shape.units_of[kind]):
            assert cell in shape.units[unit]
            assert unit // 9 == kind


@pytest.mark.parametrize(("name", "count"), [("sudoku-4x4", 300), ("sudoku-9x9", 40)])
def test_generated_puzzles_have_one_solution(name: str, count: int, puzzles9: Examples) -> None:
    task = make_puzzle(name)
    examples = puzzles9 if name == "sudoku-9x9" else task.generate(count, seed=3)
    assert len(examples) == count
    assert task.is_solved(examples.puzzles, examples.solutions).all()
    found = solve(task.box, examples.puzzles, 2)
    assert found.complete.all()
    assert (found.count == 1).all()
    np.testing.assert_array_equal(found.first, examples.solutions)
    clues = (examples.puzzles > 0).sum(1)
    low, high = task.clues
    assert clues.min() >= low
    assert clues.max() <= high
    assert len(set(clues.tolist())) >= 3
    assert len(np.unique(examples.puzzles, axis=0)) > 0.95 * count


def test_generation_depends_on_the_seed_alone() -> None:
    task = make_puzzle("sudoku-4x4")
    once, again, other = (task.generate(50, seed).puzzles for seed in (5, 5, 6))
    np.testing.assert_array_equal(once, again)
    assert (once != other).any()


@pytest.mark.parametrize("name", ["sudoku-4x4", "sudoku-9x9"])
def test_symmetries_keep_puzzles_valid_and_solutions_unique(name: str, puzzles9: Examples) -> None:
    task = make_puzzle(name)
    examples = puzzles9 if name == "sudoku-9x9" else task.generate(60, seed=3)
    changed = task.augment(examples, np.random.default_rng(1))
    np.testing.assert_array_equal((changed.puzzles > 0).sum(1), (examples.puzzles > 0).sum(1))
    assert task.is_solved(changed.puzzles, changed.solutions).all()
    found = solve(task.box, changed.puzzles, 2)
    assert (found.count == 1).all()
    np.testing.assert_array_equal(found.first, changed.solutions)
    assert ((changed.puzzles != examples.puzzles).any(1)).all()


def test_every_grid_is_reached_by_symmetries(all_grids: np.ndarray) -> None:
    """A group of 4! * (2 * 2 * 2)^2 * 2 symmetries reaches a third or two thirds of the 288 grids from any grid."""
    task = make_puzzle("sudoku-4x4")
    start = np.repeat(all_grids[:1], 4000, axis=0)
    reached = task.augment(Examples(start, start), np.random.default_rng(2)).solutions
    assert len(np.unique(reached, axis=0)) in (96, 192)


def test_a_line_is_read_and_written() -> None:
    task = make_puzzle("sudoku-4x4")
    cells = task.read("1000.0300204.041\n")
    assert cells.tolist() == [1, 0, 0, 0, 0, 0, 3, 0, 0, 2, 0, 4, 0, 0, 4, 1]
    assert task.write(cells) == "1000003002040041"
    assert task.show(cells) == "1000\n0030\n0204\n0041"
    for line, found in (("100000300204004", "15 characters"), ("1000003002040045", "'5'"), ("1", "1 character")):
        expected = f"^{found}, expected the 16 cells of sudoku-4x4: 1 to 4, or 0 for an empty cell$"
        with pytest.raises(InputError, match=expected):
            task.read(line)


def test_a_task_that_is_not_registered_can_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match="^1 character, expected the 16 cells of puzzle: 1 to 4"):
        type(make_puzzle("sudoku-4x4"))().read("1")


def test_puzzles_without_a_solution_are_found() -> None:
    task = make_puzzle("sudoku-9x9")
    empty, twice = np.zeros(81, np.int64), np.zeros(81, np.int64)
    twice[[0, 5]] = 4
    hidden = np.zeros(81, np.int64)
    hidden[1:9] = range(1, 9)
    hidden[18] = 9
    assert task.problems(np.stack([empty, twice, hidden])) == ["", "no solution", "no solution"]


def test_answers_and_scores() -> None:
    task = make_puzzle("sudoku-4x4")
    examples = task.generate(3, seed=1)
    puzzles, answers = examples.puzzles, examples.solutions.copy()
    first = int(np.flatnonzero(puzzles[0] == 0)[0])
    answers[0, first] = answers[0, first] % 4 + 1
    assert task.is_right(puzzles, answers).tolist() == [False, True, True]
    assert task.is_right(puzzles, answers, answers).all()  # as the reference says
    expected = 1 - 1 / (puzzles[0] == 0).sum()
    assert task.score(puzzles, answers, examples.solutions).tolist() == pytest.approx([expected, 1, 1])
    other = np.zeros((1, 16), np.int64)  # many solutions: any valid grid is right
    assert task.is_right(other, examples.solutions[:1], examples.solutions[1:2]).tolist() == [True]


def test_a_single_puzzle_is_as_good_as_many() -> None:
    task = make_puzzle("sudoku-9x9")
    for seed in range(8):
        example = task.generate(1, seed)
        assert task.is_solved(example.puzzles, example.solutions).all()
        assert solve(3, example.puzzles).count.tolist() == [1]
        assert 24 <= (example.puzzles > 0).sum() <= 40


def test_an_unknown_task() -> None:
    with pytest.raises(InputError, match="unknown task 'sudoku': did you mean 'sudoku-4x4'"):
        make_puzzle("sudoku")


def test_a_task_of_ones_own() -> None:
    from anyorder.tasks import TASKS, register_task

    class Copy(PuzzleTask):
        symbols, columns, rows = "ab", 2, 1

        def generate(self, count: int, seed: int) -> Examples:
            return Examples(np.tile([0, 1], (count, 1)), np.tile([1, 1], (count, 1)))

        def is_solved(self, puzzles: np.ndarray, answers: np.ndarray) -> np.ndarray:
            return answers[:, 0] == answers[:, 1]

    register_task("copy")(Copy)
    register_task("copy")(Copy)
    try:
        task = make_puzzle("copy")
        assert task.name == "copy"
        assert task.read("0a").tolist() == [0, 1]
        other = register_task("copy")(type("Other", (Copy,), {}))  # a user's own may be replaced
        assert type(make_puzzle("copy")) is other
    finally:
        del TASKS["copy"]

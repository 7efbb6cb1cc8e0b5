"""Lines of puzzles: what is wrong with one is noted, and never stops the others. And the models that solve them."""

from pathlib import Path

import numpy as np
import pytest

from anyorder.decoder import Decoder
from anyorder.errors import InputError
from anyorder.evaluation.puzzles import answers_of
from anyorder.evaluation.test_set import read_test_set
from anyorder.models.hf.pretrained import load_transformers
from anyorder.tasks import make_puzzle
from anyorder.tasks.puzzles import (
    FIRST_SYMBOL,
    CellTokens,
    EncoderConfig,
    as_model,
    new_encoder,
    read_puzzles,
    save_encoder,
)

PUZZLE, SOLUTION = "0200000004200103", "1234431234212143"


def test_bad_lines_are_left_out_with_a_note() -> None:
    task = make_puzzle("sudoku-4x4")
    lines = [PUZZLE, "12", "x" * 16, "1100000000000000", PUZZLE, PUZZLE, PUZZLE, f" {PUZZLE.replace('0', '.')}\r"]
    solutions = [SOLUTION, SOLUTION, SOLUTION, SOLUTION, "1", PUZZLE, SOLUTION[::-1], SOLUTION]
    read = read_puzzles(task, lines, solutions)
    assert read.usable == [0, 7]
    assert read.puzzles[read.usable].tolist() == [task.read(PUZZLE).tolist()] * 2
    assert read.solutions is not None
    assert read.solutions[read.usable].tolist() == [task.read(SOLUTION).tolist()] * 2
    expected = "expected the 16 cells of sudoku-4x4: 1 to 4, or 0 for an empty cell"
    assert [(i, problem.side, problem.note) for i, problem in enumerate(read.problems) if problem] == [
        (1, "source", f"unreadable puzzle (2 characters, {expected})"),
        (2, "source", f"unreadable puzzle ('x', {expected})"),
        (3, "source", "unsolvable puzzle (no solution)"),
        (4, "reference", f"unreadable solution (1 character, {expected})"),
        (5, "reference", "unreadable solution (has empty cells)"),
        (6, "reference", "wrong solution (changes the puzzle)"),
    ]


def test_strict_names_the_first_bad_line() -> None:
    task = make_puzzle("sudoku-4x4")
    with pytest.raises(InputError, match="^p.txt, line 2: the puzzle has no solution$"):
        read_puzzles(task, [PUZZLE, "1100000000000000"], None, ["p.txt"], strict=True)
    with pytest.raises(InputError, match="^s.txt, line 1: 2 characters, expected the 16 cells of sudoku-4x4"):
        read_puzzles(task, [PUZZLE], ["12"], ["p.txt", "s.txt"], strict=True)


def test_nothing_to_solve() -> None:
    task = make_puzzle("sudoku-4x4")
    with pytest.raises(InputError, match="no line is a puzzle of sudoku-4x4"):
        read_puzzles(task, ["12"])


def test_a_model_for_puzzles_is_saved_as_any_transformers_model(tmp_path: Path) -> None:
    task = make_puzzle("sudoku-4x4")
    network = new_encoder(task, EncoderConfig(16, 1, 2), seed=3)
    save_encoder(network, task, tmp_path / "model")
    loaded = load_transformers(tmp_path / "model")
    fresh = as_model(network, task)
    assert loaded.network.config.anyorder_task == "sudoku-4x4"
    assert loaded.to_tokens(range(loaded.vocab_size)) == ["[PAD]", "[MASK]", "[UNK]", "1", "2", "3", "4"]
    assert loaded.encode(["12[MASK]4"])[0].tolist() == [3, 4, 1, 6]
    assert np.flatnonzero(loaded.allowed_tokens).tolist() == [3, 4, 5, 6]
    assert loaded.max_length == task.cells
    examples = task.generate(6, seed=1)
    with pytest.raises(InputError, match="p.txt has 1 puzzles but s.txt has 2"):
        read_test_set(Decoder(loaded, task), [PUZZLE], [SOLUTION] * 2, names=("p.txt", "s.txt"))
    cells = CellTokens(loaded, task)
    assert (cells.tokens(examples.solutions) == examples.solutions + FIRST_SYMBOL - 1).all()
    assert (cells.tokens(examples.puzzles)[examples.puzzles == 0] == loaded.mask_token).all()
    assert (cells.answers(cells.tokens(examples.puzzles)) == examples.puzzles).all()
    lines = [task.write(puzzle) for puzzle in examples.puzzles]
    solved = [Decoder(model, task).solve(lines, "margin") for model in (loaded, fresh)]
    answers = [answers_of(task, trajectories) for trajectories in solved]
    np.testing.assert_array_equal(answers[0], answers[1])
    assert (answers[0] > 0).all()
    assert ((answers[0] == examples.puzzles) | (examples.puzzles == 0)).all()
    with pytest.raises(InputError, match="sudoku-9x9 has 81 cells, the model has room for 16"):
        CellTokens(loaded, make_puzzle("sudoku-9x9"))


def test_a_model_of_something_else_is_refused() -> None:
    task = make_puzzle("sudoku-4x4")

    class Letters(type(task)):  # type: ignore[misc]
        symbols = "abcd"

    model = as_model(new_encoder(task, EncoderConfig(16, 1, 2), seed=3), task)
    letters = Letters()
    letters.name = "letters"
    with pytest.raises(InputError, match="cannot solve letters: it has no token for 'a'"):
        CellTokens(model, letters)
    with pytest.raises(InputError, match="num_heads 3: does not divide the hidden size 16"):
        EncoderConfig(16, 1, 3)

"""Puzzles on the command line: generate, evaluate with accuracy, wrong lines and wrong options."""

import json
from pathlib import Path

import pytest

from anyorder.cli import main
from anyorder.tasks import TASKS, make_task
from anyorder.tasks.sudoku import solve


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """120 puzzles and their solutions."""
    folder = tmp_path_factory.mktemp("puzzles")
    puzzles, solutions = folder / "puzzles.txt", folder / "solutions.txt"
    command = ["puzzles", "--task", "sudoku-4x4", "--count", "120", "--seed", "77"]
    assert main([*command, "--out", str(puzzles), "--solutions", str(solutions)]) == 0
    return puzzles, solutions


def test_generated_files(files: tuple[Path, Path]) -> None:
    task = make_task("sudoku-4x4")
    puzzles, solutions = (file.read_text(encoding="utf-8").splitlines() for file in files)
    assert len(puzzles) == len(solutions) == 120
    found = solve(2, task.generate(120, 77).puzzles)
    assert [task.write(row) for row in found.first] == solutions


def test_the_files_that_were_written_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    puzzles, solutions = tmp_path / "[a] puzzles.txt.gz", tmp_path / "solutions.txt"
    command = ["puzzles", "--task", "sudoku-4x4", "--count", "2"]
    assert main([*command, "--out", str(puzzles), "--solutions", str(solutions)]) == 0
    assert capsys.readouterr() == (f"wrote {puzzles}\nwrote {solutions}\n", "")
    for no_file in ("--out", "--solutions"):  # a device or a pipe, which may be standard output
        other = {"--out": puzzles, "--solutions": solutions, no_file: "/dev/null"}
        assert main([*command, *(str(part) for pair in other.items() for part in pair)]) == 0
        assert capsys.readouterr() == ("", "")


def test_accuracy_of_the_bundled_model(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    puzzles, solutions = files
    out = tmp_path / "out.json"
    command = ["evaluate", "--model", "sudoku-4x4", "--source", str(puzzles), "--reference", str(solutions)]
    assert main([*command, "--orders", "uniform,margin", "--json", str(out), "--table", str(tmp_path / "t.md")]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    uniform, margin = record["rows"]
    assert record["task"] == "sudoku-4x4"
    assert uniform["order"] == "uniform"
    assert uniform["accuracy"] < 40
    assert margin["accuracy"] > 90
    low, high = margin["accuracy_interval"]
    assert low < margin["accuracy"] < high <= 100
    assert margin["p_values"]["uniform"] < 0.001
    assert margin["forwards"] == uniform["forwards"]
    empty = [line.count("0") for line in puzzles.read_text(encoding="utf-8").splitlines()]
    assert margin["forwards"] == pytest.approx(sum(empty) / len(empty), abs=1e-4)
    assert record["lines"] == []
    assert "solved %" in capsys.readouterr().out
    assert "solved" in (tmp_path / "t.md").read_text(encoding="utf-8")


def test_a_puzzle_with_nothing_left_to_fill_is_solved(tmp_path: Path) -> None:
    done, out = tmp_path / "done.txt", tmp_path / "out.json"
    done.write_text("1234432121433412\n1134432121433412\n", encoding="utf-8")  # the second breaks a rule
    command = ["evaluate", "--model", "sudoku-4x4", "--source", str(done), "--orders", "margin", "--json", str(out)]
    assert main(command) == 0
    [row] = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert (row["accuracy"], row["forwards"]) == (100 / row["puzzles"], 0)


def test_bad_lines_are_noted_and_the_rest_is_scored(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = files[0].read_text(encoding="utf-8").splitlines()[:3]
    mixed = tmp_path / "mixed.txt"
    mixed.write_bytes("\n".join([good[0], "", "123", "1100000000000000", *good[1:]]).encode() + b"\n\xff\xfe\n")
    out = tmp_path / "out.json"
    command = ["evaluate", "--model", "sudoku-4x4", "--source", str(mixed), "--orders", "margin"]
    assert main([*command, "--schedule", "2", "--json", str(out)]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["rows"][0]["puzzles"] == 3
    assert record["rows"][0]["cells"] is None
    assert [line["line"] for line in record["lines"]] == [2, 3, 4, 7]
    assert "unsolvable puzzle" in capsys.readouterr().err
    assert main([*command, "--strict"]) == 2
    assert "mixed.txt" in capsys.readouterr().err


def test_infill_counts_unsolvable_puzzles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    solvable, equal_digits, dead_end = "0200000004200103", "1100000000000000", "1230000400000000"
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([solvable, equal_digits, "1[MASK]", dead_end]) + "\n", encoding="utf-8")
    command = ["infill", "--model", "sudoku-4x4", "--device", "cpu"]
    assert main([*command, str(lines)]) == 0
    out, err = capsys.readouterr()
    assert [line[:2] for line in out.splitlines()[1::2]] == ["11", "12"]  # they are filled nevertheless
    assert err == "anyorder infill: 2 puzzles are unsolvable\n"
    assert main([*command, equal_digits]) == 0
    assert capsys.readouterr().err == "anyorder infill: 1 puzzle is unsolvable\n"
    assert main([*command, solvable]) == 0
    assert capsys.readouterr().err == ""


def test_answers_in_files(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are scored like answers that are decoded now."""
    puzzles, solutions = files
    orders = ("uniform", "margin")
    answers = [tmp_path / f"{order}.jsonl" for order in orders]
    model = ["--model", "sudoku-4x4", "--device", "cpu"]
    for order, file in zip(orders, answers, strict=True):
        assert main(["infill", *model, "--order", order, "--json", str(file), str(puzzles)]) == 0
    out = tmp_path / "out.json"
    source = ["--source", str(puzzles), "--reference", str(solutions), "--orders", ",".join(orders)]
    assert main(["evaluate", *model, *source, "--json", str(out)]) == 0
    expected = json.loads(out.read_text())["rows"]
    assert [(row["schedule"], row["revision"]) for row in expected] == [("one", "none")] * 2
    scored = ["evaluate", "--trajectories", *map(str, answers), "--json", str(out)]
    assert main([*scored, "--reference", str(solutions)]) == 0
    assert json.loads(out.read_text())["rows"] == expected
    assert main(scored) == 0  # without solutions the rules decide
    rows = json.loads(out.read_text())["rows"]
    assert [row["accuracy"] for row in rows] == [row["accuracy"] for row in expected]
    assert rows[0]["cells"] is None
    capsys.readouterr()
    for wrong, message in (
        (["--tokenize", "zh"], "--tokenize is for translation, not for puzzles"),
        (["--reference", str(solutions), str(solutions)], "reference must be one file: a puzzle has one solution"),
    ):
        assert main([*scored, *wrong]) == 2
        assert message in capsys.readouterr().err
    mixed = tmp_path / "mixed.txt"
    mixed.write_text("12\n" + puzzles.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["infill", *model, "--order", "margin", "--json", str(answers[1]), str(mixed)]) == 0
    assert main(["evaluate", "--trajectories", str(answers[1]), "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["rows"][0]["accuracy"] == expected[1]["accuracy"]
    assert [line["line"] for line in record["lines"]] == [1]
    assert main(["analyze", str(answers[1]), "--json", str(out), "--null-samples", "2"]) == 0
    analysis = json.loads(out.read_text())
    assert analysis["sentences"] == record["rows"][0]["puzzles"] == 120
    assert analysis["systems"][0]["figures"]["solved"]["value"] == pytest.approx(expected[1]["accuracy"])
    assert "note: left out 1 of 121 lines: not a puzzle of sudoku-4x4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--direction", "de-en"], "--direction is for translation, not for puzzles"),
        (["--length", "gold"], "--length is for translation"),
        (["--task", "chess"], "unknown task 'chess'"),
        (["--task", "sudoku-9x9"], "sudoku-9x9 has 81 cells, the model has room for 16"),
        (["--orders", "nothing"], "unknown order 'nothing'"),
        (["--reference", "x.txt"], "--reference needs --source"),
    ],
)
def test_wrong_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--model", "sudoku-4x4", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_learn_order_needs_something_to_learn_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["learn-order", "--model", "sudoku-4x4", "--out", str(tmp_path / "run"), "--run.steps", "1"]
    assert main(command) == 2
    assert "give --data and --direction (translation), --task (puzzles) or --text" in capsys.readouterr().err
    assert main([*command, "--task", "sudoku-4x4", "--direction", "de-en"]) == 2
    assert "--data and --direction are for translation" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_task_from_a_plugin(tmp_path: Path) -> None:
    """Its puzzles are generated, and a model learns to copy the given cell."""
    plugin = tmp_path / "copy_task.py"
    plugin.write_text(
        "import numpy as np, anyorder\n"
        "from anyorder.tasks import Examples\n"
        "@anyorder.register_task('copy-cell')\n"
        "class Copy(anyorder.PuzzleTask):\n"
        "    symbols, columns, rows = 'ab', 2, 1\n"
        "    def generate(self, count, seed):\n"
        "        given = np.random.default_rng(seed).integers(1, 3, count)\n"
        "        return Examples(np.stack([given, 0 * given], 1), np.stack([given, given], 1))\n"
        "    def is_solved(self, puzzles, answers):\n"
        "        return answers[:, 0] == answers[:, 1]\n",
        encoding="utf-8",
    )
    sizes = ["--encoder.hidden-size", "16", "--encoder.num-layers", "1", "--encoder.num-heads", "2"]
    run = [
        "--run.steps",
        "60",
        "--run.warmup",
        "5",
        "--run.learning-rate",
        "0.01",
        "--run.ema",
        "0",
        "--run.device",
        "cpu",
    ]
    fill = ["--fill.puzzles", "20", "--fill.validation-puzzles", "10"]
    common = ["--plugin", str(plugin)]
    assert (
        main(["train-task", "--task", "copy-cell", "--out", str(tmp_path / "run"), *sizes, *run, *fill, *common]) == 0
    )
    (tmp_path / "p.txt").write_text("a0\nb0\n", encoding="utf-8")
    out = tmp_path / "out.json"
    model = str(tmp_path / "run" / "model")
    command = ["evaluate", "--model", model, "--source", str(tmp_path / "p.txt"), "--orders", "margin"]
    assert main([*command, "--json", str(out), *common]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["rows"][0]["accuracy"] == 100
    del TASKS["copy-cell"]


def test_any_registered_task_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task that is no puzzle: its output is right if it is the reference."""
    plugin = tmp_path / "last_cell.py"
    plugin.write_text(
        "import numpy as np, anyorder\n"
        "from typing import NamedTuple\n"
        "from anyorder.tasks.base import canvas_key\n"
        "from anyorder.models.base import Canvas\n"
        "class Grid(NamedTuple):\n"
        "    text: str\n"
        "    problems: tuple = ()\n"
        "@anyorder.register_task('last-cell')\n"
        "class LastCell(anyorder.Task):\n"
        "    mode = 'infill'\n"
        "    def examples(self, model, lines, references=None):\n"
        "        return [Grid(line) for line in lines]\n"
        "    def canvases(self, model, examples, decoding):\n"
        "        ids = [model.encode([' '.join(one.text[:-1])])[0] for one in examples]\n"
        "        canvases = [np.append(row, model.mask_token) for row in ids]\n"
        "        return [[[Canvas(row, None, self.mode, canvas_key(decoding.seed, row, len(row)))]] for row in canvases]\n"
        "    def trajectory(self, model, example, parts, decoding):\n"
        "        [found] = parts\n"
        "        tokens = model.to_tokens(found.ids[-1:])\n"
        "        return self.record(model, example, decoding, found, slice(-1, None), text=tokens[0], tokens=tokens)\n",
        encoding="utf-8",
    )
    (tmp_path / "grids.txt").write_text("1234341221434320\n1234341221434320\n", encoding="utf-8")
    (tmp_path / "cells.txt").write_text("1\n2\n", encoding="utf-8")
    command = [
        "evaluate",
        "--plugin",
        str(plugin),
        "--model",
        "sudoku-4x4",
        "--task",
        "last-cell",
        "--orders",
        "margin",
    ]
    assert main(command) == 2
    assert "comes without a sample for last-cell: give --source and --reference" in capsys.readouterr().err
    out = tmp_path / "out.json"
    files = ["--source", str(tmp_path / "grids.txt"), "--reference", str(tmp_path / "cells.txt"), "--json", str(out)]
    assert main([*command, *files]) == 0
    [row] = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert (row["exact"], row["lines"]) == (50, 2)

"""What the command line prints of puzzles. Sentences: tests/decoding/test_trajectory.py"""

import subprocess
import sys
from dataclasses import replace

from anyorder.analysis.analyze import analyze
from anyorder.analysis.results import Metric
from anyorder.decoding.trajectory import Trajectory, Write
from anyorder.report.tables import Cell, Column, TableData, analysis_tables
from anyorder.report.terminal import _bracketed, render_tables, trace
from tests.report.conftest import make_answers, make_systems

CLUES = "1234341221430020"


def nearly_solved() -> Trajectory:
    """A 4x4 puzzle with three empty cells, filled from the right."""
    canvas = [None if cell == "0" else cell for cell in CLUES]
    return Trajectory(CLUES, "1234341221434321", ["4", "3", "1"], [3, 2, 1], [], "o", 3, "", "", "sudoku-4x4", canvas)


def test_a_puzzle_is_traced_as_a_grid() -> None:
    assert trace(nearly_solved()) == [
        "step 1          step 2          step 3",
        " 1  2 | 3  4     1  2 | 3  4     1  2 | 3  4",
        " 3  4 | 1  2     3  4 | 1  2     3  4 | 1  2",
        "------+------   ------+------   ------+------",
        " 2  1 | 4  3     2  1 | 4  3     2  1 | 4  3",
        " .  . | 2 [1]    . [3]| 2  1    [4] 3 | 2  1",
        "",
        "step of each cell",
        " .  . | .  .",
        " .  . | .  .",
        "------+------",
        " .  . | .  .",
        " 3  2 | .  1",
        "",
    ]


def test_a_cell_that_is_revised_is_in_braces() -> None:
    writes = [Write(12, 1, "3", -1), Write(13, 1, "3", -1), Write(15, 1, "1", -1), Write(12, 2, "4", -1), Write(13, 3, "3", -1)]  # fmt: skip
    lines = trace(replace(nearly_solved(), steps=[2, 3, 1], writes=writes))
    assert lines[5] == "[3][3]| 2 [1]   {4} 3 | 2  1     4 [3]| 2  1"
    assert lines[12] == " 2  3 | .  1"


def test_many_steps_fit_80_columns() -> None:
    canvas: list[str | None] = [None] * 81
    tokens = ["123456789"[i % 9] for i in range(81)]
    nine = Trajectory("0" * 81, "", tokens, list(range(1, 82)), [], "o", 81, "", task="sudoku-9x9", canvas=canvas)
    lines = trace(nine)
    assert lines[0] == f"{'step 1':32}step 2"
    assert lines[4] == "---------+---------+---------   ---------+---------+---------"
    assert max(map(len, lines)) <= 80
    assert sum(line.count("[") for line in lines) == 81
    at = lines.index("step of each cell")
    assert lines[at + 1] == "  1   2   3 |  4   5   6 |  7   8   9"
    assert lines[at + 11] == " 73  74  75 | 76  77  78 | 79  80  81"


def test_what_is_no_grid_is_traced_as_a_line() -> None:
    one = replace(nearly_solved(), task="infill")
    assert trace(one)[0] == "1  1 2 3 4 3 4 1 2 2 1 4 3 __ __ 2 1"
    assert trace(replace(nearly_solved(), task="sudoku-9x9")) == trace(one)


def test_tables_of_an_analysis_count_puzzles_or_sentences() -> None:
    for systems, noun in ((make_answers(2)[0], "puzzles"), (make_systems(2), "sentences")):
        analysis = analyze(systems, tagger="none", samples=20, null_samples=2)
        titles = [table.title for table in analysis_tables(analysis)]
        assert titles[0] == f"2 {noun}: shape"
        assert f"looks like (share of {noun})" in titles
        assert analysis.as_json()["sentences"] == 2


def test_a_verb_that_prints_does_not_wait_for_what_scores() -> None:
    code = "import sys, anyorder.report.terminal; print({'sacrebleu', 'torch'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_table_is_split_where_it_does_not_fit() -> None:
    """Names take 6 + 2 characters, the columns 5 + 2 and, with the spread, 9 + 2."""
    columns = [Column("BLEU", [Cell("20.00")]), Column("Δ", [Cell("+1.00", ".50")])]
    table = TableData("title", "order", ["margin"], {"all": columns})
    assert [len(render_tables(table, width)) for width in (26, 25, 8)] == [1, 2, 2]
    assert [one.title for one in render_tables(table, 8)] == ["title", "continued"]
    several = TableData("title", "order", ["margin"], {"≤20": columns, "≤30": columns})
    assert [one.title for one in render_tables(several, 26)] == ["title", "≤30"]


def test_runs_in_each_direction_have_their_brackets() -> None:
    assert _bracketed(["a", "b", "c", "d", "e"], [1, 2, 3, 5, 4]) == "[a b c] {d e}"


def test_relative_steps_by_part_of_speech() -> None:
    analysis = analyze(make_systems(2), tagger="none", samples=20, null_samples=2)
    first = replace(analysis.systems[0], by_tag={"NOUN": Metric(0.25, None, None, None, None, None, 1)})
    [table] = [
        one
        for one in analysis_tables(replace(analysis, systems=[first, *analysis.systems[1:]]))
        if one.title == "relative step by part of speech"
    ]
    [[column]] = table.groups.values()
    assert (column.heading, [cell.text for cell in column.cells[:2]]) == ("NOUN", ["0.25", "–"])

"""What is printed on a stream whose encoding has few characters."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

from anyorder.cli import main
from anyorder.progress import WIDE, Screen
from anyorder.report.tables import Cell, Column, TableData
from anyorder.report.terminal import render_tables

TABLE = TableData(
    "De→En", "order", ["margin"], {"≤20": [Column("BLEU", [Cell("20.00")], "≤20"), Column("Δ", [Cell("+1.00", ".50")])]}
)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], str]:
    """Runs a function and returns what it prints on a standard output that is strict about its encoding."""

    def run(encoding: str, function: Callable[[], object]) -> str:
        buffer = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding, write_through=True))
            function()
            return buffer.getvalue().decode(encoding)

    return run


@pytest.mark.parametrize(
    ("encoding", "arrow", "limit", "delta", "spread"),
    [("ascii", "?", "?", "?", "?"), ("latin-1", "?", "?", "?", "±"), ("utf-8", "→", "≤", "Δ", "±")],
)
def test_a_table_in_any_encoding(
    printed: Callable[..., str], encoding: str, arrow: str, limit: str, delta: str, spread: str
) -> None:
    def show() -> None:
        screen = Screen()
        for part in render_tables(TABLE, screen.width):
            screen.print(part)

    text = printed(encoding, show)
    title, *rows = text.splitlines()
    assert title.rstrip() == f"De{arrow}En"
    assert {f"{limit}20", delta, f"+1.00{spread}.50"} <= {*text.replace("|", " ").split()}
    assert ("─" in text) == (encoding == "utf-8")
    assert {len(row) for row in rows} == {len(title)}  # the columns stay aligned


def test_verbs_print_on_an_ascii_stream(printed: Callable[..., str]) -> None:
    assert "left-to-right" in printed("ascii", lambda: main(["orders"]))
    evaluate = ["evaluate", "--model", "sudoku-4x4", "--limit", "2", "--orders", "uniform,margin", "--device", "cpu"]
    assert "|margin  |" in printed("ascii", lambda: main(evaluate))


def test_the_width_of_a_screen(printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide where it is no terminal, unless the user says how wide; a terminal keeps its own width."""
    widths: list[int] = []
    monkeypatch.delenv("COLUMNS", raising=False)
    printed("utf-8", lambda: widths.append(Screen().width))
    monkeypatch.setenv("COLUMNS", "50")
    printed("utf-8", lambda: widths.append(Screen().width))
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(Screen, "is_terminal", True)
    printed("utf-8", lambda: widths.append(Screen().width))
    assert widths[:2] == [WIDE, 50]
    assert widths[2] != WIDE


def test_what_is_printed_under_a_bar_reaches_its_file() -> None:
    """Also if the bar is on a terminal and standard output is not: `anyorder translate lines.txt > out.txt`."""
    script = "from anyorder import progress\nwith progress.bar('x', 1): print('printed')"
    terminal, other = pty.openpty()
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=other, check=True)
    os.close(other)
    assert done.stdout == b"printed\n"
    os.close(terminal)

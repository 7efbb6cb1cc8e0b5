"""The verb `analyze`, from files to tables."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from anyorder.analysis.order_metrics import left_to_right, outer_in
from anyorder.cli import main
from anyorder.decoding.trajectory import write_trajectories
from tests.analysis.paper import AFFLECK, MOSTLY_LEFT_TO_RIGHT, TEARGAS
from tests.report.conftest import make_answers

PRINTED = [TEARGAS, AFFLECK, MOSTLY_LEFT_TO_RIGHT]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    orders = {"paper": lambda one: one.steps, "[bold]": lambda one: left_to_right(len(one.steps)).tolist(), "outer": lambda one: outer_in(len(one.steps)).tolist()}  # fmt: skip
    for name, order in orders.items():
        lines = [
            json.dumps({"tokens": one.tokens, "steps": order(one), "signature": f"order:{name}"}) for one in PRINTED
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "reference").write_text("There are no reports of any injuries .\nAt the same time .\nBut .\n")
    trees = ["(S (NP There) (VP are (NP (NP no reports) (PP of (NP any injuries)))) , but (S (NP some people) (VP are crying (PP after the use of tear gas))) .)"]  # fmt: skip
    (tmp_path / "trees").write_text("\n".join(trees) + "\n")
    return tmp_path


def run(folder: Path, *arguments: object) -> int:
    files = [folder / f"{name}.jsonl" for name in ("paper", "[bold]", "outer")]
    return main(
        [str(one) for one in ("analyze", *files, "--tagger", "none", "--samples", 50, "--null-samples", 5, *arguments)]
    )


def test_tables_and_json(files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = files / "out.json"
    assert run(files, "--json", out, "--reference", files / "reference", "--trees", files / "trees") == 0
    shown = capsys.readouterr().out
    assert "3 sentences: shape" in shown
    assert "[bold]" in shown  # a name, no markup
    assert "note: only 3 of 9 sentences have a tree" in shown
    assert "…" not in shown  # fits 80 columns
    record = json.loads(out.read_text())
    assert [one["name"] for one in record["systems"]] == ["paper", "[bold]", "outer"]
    assert record["systems"][1]["signature"] == "order:[bold]"
    assert record["systems"][0]["labels"]["outer-to-inner"] == pytest.approx(2 / 3, abs=1e-5)
    figure = record["systems"][0]["figures"]["constituent share"]
    assert (figure["count"], figure["value"]) == (1, pytest.approx(2 / 9, abs=1e-5))  # "no reports" and "any injuries"
    assert record["per_sentence"]["sentence bleu"][0][0] > record["per_sentence"]["sentence bleu"][0][2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--samples", 3], "--samples 3: expected a number of at least 20"),
        (["--null-samples", 0], "--null-samples 0: expected a number of at least 1"),
        (["--reference", "{}/outer.jsonl.no"], "no such file"),
        (["--reference", "{}/trees"], "paper has 3 sentences but there are 1 references"),
        (["--trees", "{}/reference"], "reference, line 1: not a bracketed tree"),
        (["--figures", "{}/trees"], "is a file, expected a folder"),
        (["--json", "{}/nowhere/out.json"], "cannot be written"),
        (["--tagger", "xx_nothing"], "spaCy"),
        (["--table", "{}/table.txt"], "table.txt: expected a name that ends in .tex or .md"),
        (["--table", "{}/table.md", "--html", "{}/table.md"], "is the file of --html as well"),
        (["--json", "{}/out", "--html", "{0}/../{0.name}/out"], "is the file of --json as well"),
        (["--json", "{}/paper.jsonl"], "would replace a file that is read"),
        (["--reference", "{}/reference", "--html", "{}/reference"], "would replace a file that is read"),
    ],
)
def test_wrong_input(files: Path, capsys: pytest.CaptureFixture[str], arguments: list[object], expected: str) -> None:
    before = sorted(files.iterdir())
    content = [file.read_bytes() for file in before]
    assert run(files, *(str(one).format(files) for one in arguments)) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
    assert sorted(files.iterdir()) == before
    assert [file.read_bytes() for file in before] == content


def test_tables_for_a_paper(files: Path) -> None:
    assert run(files, "--table", files / "table.tex", "--json", files / "out.json") == 0
    table = (files / "table.tex").read_text()
    assert table.count("\\begin{tabular}") == table.count("\\midrule\nrandom & ") > 2
    outer = json.loads((files / "out.json").read_text())["systems"][2]["figures"]["kendall outer-in"]
    assert f" & {outer['value']:.2f}" in next(line for line in table.splitlines() if line.startswith("outer & "))
    assert "{[}bold{]} & " in table
    assert table.startswith("% ± is half of the 95% interval; random: random orders of the same sentences\n")
    assert "% [bold]: order:[bold]" in table


def test_puzzles_are_called_puzzles(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    systems, _ = make_answers(3)
    write_trajectories(files / "right.jsonl", systems["right"])
    command = ["analyze", files / "right.jsonl", "--samples", 20, "--null-samples", 2]
    assert main([str(one) for one in (*command, "--table", files / "new.md", "--json", files / "new.json")]) == 0
    shown = capsys.readouterr().out
    assert "3 puzzles: shape" in shown
    table = (files / "new.md").read_text()
    assert "random orders of the same puzzles" in table
    assert "sentence" not in shown + table
    assert json.loads((files / "new.json").read_text())["sentences"] == 3


def test_report_and_figures_get_the_analysis(
    files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Their content is tested elsewhere; here, that the report appears whole or not at all, and that it is named."""
    seen = []

    def report_page(systems: dict, analysis: dict, references: list[str] | None, title: str) -> str:
        seen.append((list(systems), analysis["format"], references))
        if title.endswith("outer") and len(seen) > 1:
            raise OSError(28, "No space left on device")
        return "page"

    monkeypatch.setitem(sys.modules, "anyorder.report.html", SimpleNamespace(report_page=report_page))
    drawn = SimpleNamespace(plot_all=lambda analysis, folder: folder.mkdir())
    monkeypatch.setitem(sys.modules, "anyorder.report.plots", drawn)
    json_file, table = files / "[b] out.json", files / "out.md"
    outputs = ["--html", files / "out.html", "--figures", files / "drawn", "--json", json_file, "--table", table]
    assert run(files, *outputs) == 0
    printed, errors = capfd.readouterr()
    written = [json_file, files / "out.html", table, files / "drawn"]
    assert (printed.splitlines()[-4:], errors) == ([f"wrote {file}" for file in written], "")
    assert run(files, "--json", "/dev/null") == 0
    assert "wrote" not in capfd.readouterr().out
    assert seen == [(["paper", "[bold]", "outer"], 1, None)]
    assert (files / "out.html").read_text() == "page"
    assert (files / "drawn").is_dir()
    before = sorted(files.iterdir())
    assert run(files, "--html", files / "other.html") == 2
    assert sorted(files.iterdir()) == before


def test_circular_links(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "one").symlink_to(files / "two")
    (files / "two").symlink_to(files / "one")
    assert main(["analyze", str(files / "one"), "--tagger", "none", "--json", str(files / "out.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (files / "out.json").exists()
    assert run(files, "--json", files / "one") == 0
    assert json.loads((files / "one").read_text())["sentences"] == 3


def test_nothing_to_analyze(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze"]) == 2
    assert "nothing to analyze" in capsys.readouterr().err


@pytest.mark.parametrize("width", ["40", "80", "120"])
def test_nothing_is_cut_off_in_a_narrow_terminal(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    (files / "paper.jsonl").rename(files / "an-order-with-quite-a-long-name-and-many-figures.jsonl")
    named = [str(file) for file in sorted(files.glob("*.jsonl"))]
    assert main(["analyze", *named, "--tagger", "none", "--samples", "50", "--null-samples", "5"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert len(set(re.findall(r"\d±\S*", shown))) > 10
    assert all(re.fullmatch(r"\d±\d?\d?\.\d+", one) for one in re.findall(r"\d±\S*", shown))


def test_nothing_is_cut_off_in_a_file(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = files / "an-order-with-quite-a-long-name-and-many-figures.jsonl"
    (files / "paper.jsonl").rename(long)
    assert main(["analyze", str(long), "--tagger", "none", "--samples", "50", "--null-samples", "5"]) == 0
    shown = capsys.readouterr().out
    assert long.stem in shown
    assert "…" not in shown

"""`anyorder reproduce` as users meet it: what it lists, prints and refuses."""

from pathlib import Path

import pytest

from anyorder.cli import main
from tests.reproduce.conftest import Laboratory, laboratory  # noqa: F401 - a fixture


@pytest.fixture
def command(laboratory: Laboratory, tmp_path: Path) -> list[str]:  # noqa: F811
    options = ["--out", tmp_path / "out", "--model", laboratory.model, "--data", laboratory.text, laboratory.store]
    options += ["--direction", "de-en", "--rows", "margin", "--lengths", "gold", "--sentences", 12, "--samples", 20]
    return ["reproduce", "table2", *map(str, options), "--device", "cpu"]


def test_a_table(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert "missing  decode de-en dev ≤30, gold, margin" in listed
    assert "0 of 2 jobs are done; 2 are missing" in listed
    assert not (tmp_path / "out").exists()
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "De→En dev ≤30 (12)" in captured.out
    assert "28.89" in captured.out
    assert "1 of 2: decode de-en dev ≤30, gold, left-to-right" in captured.err
    assert {file.name for file in (tmp_path / "out").glob("table2.*")} == {"table2.md", "table2.tex", "table2.json"}
    assert main([*command, "--dry-run"]) == 0
    assert "2 of 2 jobs are done; 0 are missing" in capsys.readouterr().out
    assert main([*command, "--so-far", "--name", "short"]) == 0
    assert f"{tmp_path / 'out' / 'short'}.md, .tex, .json" in capsys.readouterr().out
    for folder in (tmp_path / "out").glob("decode/*/*/*/*/margin"):
        folder.rename(tmp_path / "margin")
    assert main([*command, "--so-far", "--name", "half"]) == 0
    assert "Not finished yet: De→En dev ≤20, gold (margin)" in capsys.readouterr().out
    assert (tmp_path / "out" / "short.tex").read_bytes() == (tmp_path / "out" / "table2.tex").read_bytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--direction", "de-fr"], "--direction 'de-fr': no model translates it (known: de-en, en-de)"),
        (["--direction", "german"], "--direction 'german': expected source and target language"),
        (["--lengths", "best"], "unknown length 'best'"),
        (["--rows", "margn"], "unknown row 'margn': did you mean 'margin'?"),
        (["--seeds", 0], "--seeds 0: expected a number of at least 1"),
        (["--data", "nowhere"], "--data nowhere: no such folder"),
        (["--rows", "learned", "--data", "."], "has no dev set for de-en"),
        (["--model", ""], "--model is missing: name a model"),
        (["--model", "nowhere/at/all"], "nowhere/at/all: no such folder"),
        (["--baseline", 1, "--baseline-model", "x"], "--baseline cannot be given together"),
        (["--baseline-model", "x"], "--baseline-model x: is no baseline"),
        (["--scale", "paper", "--datasets.fr-en", "x"], "unknown pair of languages 'fr-en'"),
        (["--so-far"], "--so-far table2: no column is finished yet; each needs at least left-to-right"),
        (["--so-far", "--scale", "paper"], "--so-far has nothing to show yet: the model for de-en is not trained"),
        (["--part", "3/2"], "--part '3/2': expected a part such as 1/4, which is the first of four"),
        (["--part", "two"], "--part 'two': expected a part"),
        (["--name", "a/b"], "--name 'a/b': is not a plain name"),
        (["--scale", "paper", "--direction", "fr-en"], "unknown direction 'fr-en'"),
    ],
)  # fmt: skip
def test_wrong_input(
    command: list[str], more: list[object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *map(str, more)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_all_tables(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--rows", "--max-length", "--name"):
        wrong = ["reproduce", "all", *command[2:6], option, "30" if option == "--max-length" else "margin"]
        assert main(wrong) == 2
        assert f"{option} is for a single table" in capsys.readouterr().err
    rows = command.index("--rows")
    assert main(["reproduce", "all", *command[2:rows], *command[rows + 2 :], "--learned", "model", "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert "outer-in:stride=3" in listed  # Table 5
    assert "dev ≤30" in listed
    assert "decode de-en test, gold" in listed  # Table 1


def test_an_unknown_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table9", "--out", "x"]) == 2
    error = capsys.readouterr().err
    assert "table9" in error
    assert error.count("\n") == 1

"""Tab completion: the script that the command prints, run by a real shell."""

import shutil
import subprocess
from pathlib import Path

import pytest

from anyorder.cli import VERBS, main


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from anyorder.cli.completion import completion_script

    file = tmp_path_factory.mktemp("completion") / "anyorder.bash"
    file.write_text(completion_script("bash"))
    return file


def complete(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    code = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _anyorder; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code, "bash", *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_verbs(script: Path) -> None:
    assert complete(script, "anyorder", "") == [*VERBS, "--help", "--version", "--print-completion"]
    assert complete(script, "anyorder", "tra") == ["train", "train-task", "translate"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["translate", "--sch"], ["--schedule"]),
        (["translate", "--json", "x", "--plug"], ["--plugin"]),
        (["train", "--run.log"], ["--run.log-every"]),
        (["translate", "--device", ""], ["auto", "cpu", "cuda"]),
        (["evaluate", "--orders", "max"], ["max-prob"]),
        (["translate", "--json", ""], []),
        (["reproduce", "table1"], ["table1"]),
        (["reproduce", "table2", "--scale", ""], ["here", "paper"]),
        (["--print-completion", ""], ["bash", "zsh"]),
    ],
)
def test_options_and_values(script: Path, words: list[str], expected: list[str]) -> None:
    assert complete(script, "anyorder", *words) == expected


def test_groups_are_not_options(script: Path) -> None:
    options = complete(script, "anyorder", "prepare", "--filters")
    assert options == ["--filters.min-length", "--filters.max-length", "--filters.max-ratio"]


def test_zsh(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--print-completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef anyorder\n")
    assert "--schedule" in script
    if shutil.which("zsh"):
        (tmp_path / "_anyorder").write_text(script)
        subprocess.run(["zsh", "-n", tmp_path / "_anyorder"], check=True)


def test_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", "fish"]) == 2
    assert capsys.readouterr().err == "anyorder: --print-completion: expected one of bash, zsh\n"

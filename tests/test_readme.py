"""What the documentation shows is run, or at least parsed, as it stands there."""

import re
import shlex
from pathlib import Path

import pytest

from anyorder.cli import VERBS, main
from anyorder.orders import REGISTRY

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, '' for none."""
    found: list[str] = []
    opened: str | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if opened is None:
                opened = line.removeprefix("```")
                found += [""] if opened == language else []
            else:
                opened = None
        elif opened == language:
            found[-1] += line + "\n"
    return found


def commands(page: Path) -> list[list[str]]:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    parsed = [shlex.split(line, comments=True) for line in lines]
    return [words[words.index("anyorder") + 1 :] for words in parsed if "anyorder" in words]


RUNNABLE = [
    words
    for words in commands(ROOT / "README.md")
    if words[0] in ("translate", "evaluate", "orders") and not {"runs/mine/model", "newstest2013.de"} & set(words)
]


@pytest.mark.slow
@pytest.mark.parametrize("words", RUNNABLE, ids=lambda words: words[0])
def test_commands_of_the_readme(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    printed = capsys.readouterr().out
    if "--trace" in words:
        shown = blocks(ROOT / "README.md", "")[0].splitlines()
        assert [line for line in shown if line.strip() != "..."] == [
            line for line in printed.splitlines() if line in shown
        ]


def test_every_command_in_the_documentation_has_options_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    from anyorder.cli.parser import parse

    monkeypatch.chdir(ROOT)
    seen = 0
    for page in PAGES:
        for words in commands(page):
            assert words[0] in VERBS, words
            name = words[0].replace("-", "_")
            function = getattr(import_module(f"anyorder.cli.{name}"), name)
            assert parse(words[0], "", function, words[1:]) is not None
            seen += 1
    assert seen >= 10


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_in_the_documentation(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyorder.models.checkpoint import find

    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "model").symlink_to(find("de-en"))
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})
    REGISTRY.pop("middle-out", None)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"

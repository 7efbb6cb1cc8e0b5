"""What README.md and the pages in docs/ show is run, or at least parsed, as it stands there."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import anyorder
from anyorder.cli import VERBS, main, verb_function
from anyorder.data.store import Store
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.revision import REVISIONS
from anyorder.decoding.schedules import SCHEDULES
from anyorder.learning.rewards import REWARDS
from anyorder.models.native.storage import find
from anyorder.orders import ORDERS
from anyorder.tasks import TASKS
from tests.conftest import tiny

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
RECIPES = sorted((ROOT / "recipes").rglob("*.md"))
OTHERS = [ROOT / "CHANGELOG.md", ROOT / "CODE_OF_CONDUCT.md"]
LINKED = [*PAGES, *OTHERS, *RECIPES, find("de-en") / "README.md"]
LINES = 3
"""The tests use so many lines of the bundled sample."""


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks in a language, '' for none; a block inside of a list is indented."""
    found: list[str] = []
    opened: str | None = None
    indent = 0
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("```"):
            if opened is None:
                opened, indent = line.strip().removeprefix("```"), len(line) - len(line.lstrip())
                found += [""] if opened == language else []
            else:
                opened = None
        elif opened == language:
            found[-1] += line[indent:] + "\n"
    return found


def commands(page: Path) -> list[list[str]]:
    """What follows the word `anyorder` in every line that runs it."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    parsed = [shlex.split(line, comments=True) for line in lines]
    starts = [("anyorder",), ("accelerate", "launch"), ("torchrun",)]
    return [
        words[words.index("anyorder") + 1 :]
        for words in parsed
        if any(tuple(words[: len(start)]) == start for start in starts)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, vocabulary: Vocabulary) -> Iterator[Path]:
    """The working directory of a reader: a clone, a model, a store and a plugin. What is registered is forgotten."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for folder in ("src/anyorder/bundled/de-en", "runs", "data"):
        (tmp_path / folder).mkdir(parents=True)
    for language in ("de", "en"):
        lines = (find("de-en") / f"sample.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"src/anyorder/bundled/de-en/sample.{language}").write_text("".join(lines[:LINES]))
    tiny(vocabulary).save_pretrained(tmp_path / "runs" / "mine" / "model")
    (tmp_path / "data" / "store").symlink_to(store.path)
    for page in PAGES:
        for block in blocks(page, "python"):
            if name := re.match(r"# (\w+\.py)\n", block):
                (tmp_path / name[1]).write_text(block)
    monkeypatch.chdir(tmp_path)
    registries: list[dict] = [ORDERS, SCHEDULES, REVISIONS, REWARDS, TASKS]
    known = [dict(registry) for registry in registries]
    yield tmp_path
    for registry, before in zip(registries, known, strict=True):
        registry.clear()
        registry.update(before)


def is_quick(words: list[str]) -> bool:
    """Whether a test can run a command of the README: it ends, and needs neither a network nor a GPU."""
    return words[0] in ("translate", "evaluate", "orders", "analyze") or "sudoku-4x4" in words


def shorter(words: list[str]) -> list[str]:
    """The command on fewer sentences."""
    return [*words, "--limit", str(LINES)] if words[0] == "evaluate" and "de-en" in words else words


@pytest.mark.slow
def test_commands_of_the_readme(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One after another, as a reader types them; some read what others wrote."""
    exec(compile(blocks(ROOT / "docs" / "your-model.md", "python")[0], "your-model.md", "exec"), {})  # runs/my-bert
    (folder / "lines.txt").write_text("the cat sat on the mat .\n" * 12)
    shown = re.findall(r"^\| `(.+)`.* \| ([\d.]+)% \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    percents = [("learned:runs/order/order", "95"), *shown]
    seen = []
    for words in filter(is_quick, commands(README)):
        assert main(shorter(words)) == 0, words
        printed = capsys.readouterr().out
        if words[0] == "evaluate" and "sudoku-4x4" in words:
            for order, solved in re.findall(r"^ (\S+) +([\d.]+) +[\d.]+–", printed, re.MULTILINE):
                assert float(solved) == pytest.approx(float(dict(percents)[order]), abs=4), order
                seen.append(order)
        if "--trace" in words and "margin" in words:
            steps = blocks(README, "")[0].splitlines()
            assert [line for line in steps if line.strip() != "..."] == [
                line for line in printed.splitlines() if line in steps
            ]
    assert set(seen) == set(dict(percents))
    assert (folder / "report.html").stat().st_size > 50_000


def test_options_in_the_documentation_exist(folder: Path) -> None:
    from anyorder.cli.parser import parse

    seen = 0
    for page in PAGES:
        for words in commands(page):
            assert words[0] in VERBS, words
            assert parse(words[0], verb_function(words[0]), words[1:]) is not None, words
            seen += 1
    assert seen >= 20


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_in_the_documentation(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks of a page run one after another, like the cells of a notebook."""
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)
    if page.name == "orders.md":
        shown = [line for line in blocks(page, "")[0].splitlines() if line.strip() != "..."]
        assert set(shown) <= set(capsys.readouterr().out.splitlines())


def test_python_that_is_only_shown_compiles() -> None:
    """Blocks of language `py` take too long to run; their imports must work."""
    for page in PAGES:
        for block in blocks(page, "py"):
            compile(block, str(page), "exec")
            exec("\n".join(line for line in block.splitlines() if line.startswith(("import ", "from "))), {})


def test_own_code_is_short() -> None:
    """A user's own order, schedule, reward and callback each take at most 15 lines."""
    text = (ROOT / "docs" / "orders.md").read_text(encoding="utf-8")
    for heading in ("Your own order", "Your own schedule", "Your own reward", "Watch every step"):
        block = re.search(r"```python\n(.*?)```", text.partition(f"\n## {heading}\n")[2], re.DOTALL)
        assert block, heading
        assert len([line for line in block[1].splitlines() if line.strip()]) <= 15, heading


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split()
    pages = {page.stem for page in (ROOT / "docs").iterdir() if page.suffix in (".md", ".ipynb")} - {"index"}
    assert sorted(pages - set(index)) == []


def test_version_of_the_citation() -> None:
    assert f"version: {anyorder.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_changelog_has_the_version() -> None:
    assert f"## {anyorder.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

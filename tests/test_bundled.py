"""The bundled models do what their READMEs say, on any CPU, and the tables of results hold what was measured."""

import json
import re
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

import anyorder
from anyorder.cli.evaluate import _sample
from anyorder.data.corpus import open_bytes
from anyorder.files import sha256
from anyorder.models.native.storage import BUNDLED, bundled_models, find
from anyorder.orders.learned import load_order

FOLDER = find("de-en")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "recipes" / "de-en" / "results"
SIX_DIRECTIONS = ROOT / "recipes" / "six-directions" / "results"
RESULTS_PAGE = ROOT / "docs" / "results.md"
NOTES_GERMAN = ROOT / "recipes" / "de-en" / "notes.md"
NOTES_SIX_DIRECTIONS = ROOT / "recipes" / "six-directions" / "notes.md"
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "results_table.py"))


@pytest.fixture(scope="module")
def translator() -> anyorder.Decoder:
    return anyorder.load("de-en", device="cpu")


def sample(language: str) -> list[str]:
    return (FOLDER / f"sample.{language}").read_text(encoding="utf-8").splitlines()


def test_they_are_small_enough() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) < 40_000_000
    assert sum(file.stat().st_size for file in BUNDLED.rglob("*")) < 95_000_000
    assert len(sample("de")) == len(sample("en")) == 150


def test_it_translates_both_ways(translator: anyorder.Decoder) -> None:
    there = translator.translate(["Das ist ein sehr wichtiges Thema."], "de-en", "margin", length="candidates:4")
    assert there[0].text == "This is a very important issue."
    back = translator.translate(["This is a very important issue."], "en-de", "left-to-right", length="candidates:4")
    assert back[0].text == "Das ist ein sehr wichtiges Thema."


def test_its_own_order_is_the_one_it_translates_in(translator: anyorder.Decoder) -> None:
    for direction, text in (("de-en", "Wir haben keine Zeit mehr."), ("en-de", "We have no time left.")):
        (trajectory,) = translator.translate([text], direction)
        assert trajectory.order == "learned"
        assert trajectory == translator.translate([text], direction, "learned")[0]


@pytest.mark.parametrize("order", ["left-to-right", "margin", "learned"])
def test_a_sentence_does_not_depend_on_its_batch(translator: anyorder.Decoder, order: str) -> None:
    texts, references = sample("de")[:6], sample("en")[:6]
    batch = translator.translate(texts, "de-en", order, length="gold", references=references)
    for i in (0, 1):
        alone = translator.translate([texts[i]], "de-en", order, length="gold", references=[references[i]])
        assert batch[i] == alone[0]


def test_one_model_for_six_directions() -> None:
    assert bundled_models() == ["de-en", "multi", "sudoku-4x4"]
    multi = anyorder.load("multi", device="cpu")
    assert multi.model.config.directions == ["de-en", "en-de", "en-ro", "en-zh", "ro-en", "zh-en"]
    assert multi.model.max_length == 256
    for direction, text, expected in (
        ("ro-en", "Aceasta este o problemă foarte importantă.", "This is a very important issue."),
        ("en-ro", "This is a very important issue.", "Aceasta este o problemă foarte importantă."),
        ("zh-en", "这是一个非常重要的问题。", "This is a very important issue."),
    ):
        assert multi.translate(text, direction)[0].text == expected
    [chinese] = multi.translate("This is a very important issue.", "en-zh")
    assert " " not in chinese.text
    with pytest.raises(anyorder.InputError, match="this model translates de-en, en-de, en-ro"):
        multi.translate("Das ist gut.", "de-ro")
    [trajectory] = multi.translate("Das ist gut.", "de-en", "learned:de-en/confidence")
    assert trajectory.order == "learned:de-en/confidence"


@pytest.mark.parametrize("name", ["default", "confidence", "hidden", "ppo"])
def test_the_orders_of_the_model_for_six_directions(name: str) -> None:
    multi = find("multi")
    _, record = load_order(multi / "learned" / name)
    assert record.directions == ("de-en", "en-de", "en-ro", "en-zh", "ro-en", "zh-en")
    assert record.vocabulary == sha256(multi / "tokenizer.json")[:16]
    assert record.fingerprint in read_table("table2")["parts"][0]["signature"]


def test_sudoku_depends_on_the_order() -> None:
    """As its README says, on the puzzles that come with it; in random order less than two fifths are solved."""
    folder = find("sudoku-4x4")
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 1_000_000
    filler = anyorder.load("sudoku-4x4", device="cpu")
    assert isinstance(filler, anyorder.Decoder)
    lines = [
        (folder / f"sample.{kind}.txt").read_text(encoding="utf-8").splitlines() for kind in ("puzzles", "solutions")
    ]
    shown = dict(re.findall(r"^\| (\S+) \| (\S+) \|", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    rows = anyorder.evaluate_orders(filler, *lines, ["uniform", "margin"], samples=50).rows
    assert [row.puzzles for row in rows] == [200, 200]
    assert {row.order: row.accuracy for row in rows} == pytest.approx(
        {order: float(shown[order]) for order in ("uniform", "margin")}, abs=2
    )
    assert rows[0].accuracy < 40 < 90 < rows[1].accuracy


@pytest.mark.slow
def test_its_scores(translator: anyorder.Decoder) -> None:
    """On the first 8 sentences of the sample, as version 0.1.0 scored them."""
    expected = {"left-to-right": 23.64, "margin": 21.59, "learned": 27.03}
    sources, references = sample("de")[:8], sample("en")[:8]
    rows = anyorder.evaluate_orders(translator.with_task("de-en"), sources, references, list(expected), samples=50).rows
    assert {row.order: row.bleu for row in rows} == pytest.approx(expected, abs=0.3)


def read_table(name: str) -> dict[str, Any]:
    """A table that `anyorder reproduce` wrote."""
    with open_bytes(SIX_DIRECTIONS / f"{name}.json.xz") as stream:
        table: dict[str, Any] = json.load(stream)
    return table


BOTH_RULES = {"table:4", "gold"}
MEASURED = {
    "table1": {"table:4"},
    "table1-gold": {"gold"},
    "table1-gold-seeds": {"gold"},
    "table1-gold-seeds-de-en": {"gold"},
    "table1-candidates": {"candidates:4"},
    "table1-candidates-de-en": {"candidates:4"},
    "models/tuned": {"gold"},
    "models/scratch": {"candidates:4", "gold"},
    "models/distilled": {"candidates:4", "gold"},
    "table2": BOTH_RULES,
    "table2-candidates": {"candidates:4"},
    "table3": BOTH_RULES,
    "table4": BOTH_RULES,
    "table5": BOTH_RULES,
    "causes": BOTH_RULES,
}
"""The tables and their length rules."""


@pytest.mark.parametrize("name", MEASURED)
def test_reproduced_tables_are_written_beside_their_data(name: str) -> None:
    """Every line and every score, for every length rule."""
    parts = read_table(name)["parts"]
    rules = {part["rule"] for part in parts}
    assert rules == MEASURED[name]
    for rule in rules:
        table = written_table(f"{name}.md", rule)
        chosen = [part for part in parts if part["rule"] == rule]
        assert sum("→" in line for line in table) == len(chosen)
        cells = [cell for line in table for cell in cells_of(line)]
        for part in chosen:
            for row in part["rows"]:
                assert any(f"{row['bleu']:.2f}" in cell for cell in cells)


def written_table(file: str, rule: str) -> list[str]:
    text = (SIX_DIRECTIONS / file).read_text(encoding="utf-8")
    return text.split(f"\nBLEU, length {rule}\n\n")[1].split("\n\n")[0].splitlines()


def cells_of(line: str) -> list[str]:
    return line.strip("| ").split(" | ")


@pytest.mark.parametrize(
    ("page", "count"), [(RESULTS_PAGE, 1), (NOTES_SIX_DIRECTIONS, 3)], ids=lambda value: str(value)
)
def test_tables_of_sets_in_the_documentation_are_the_measured_ones(page: Path, count: int) -> None:
    """A table names the file and the length rule that it is from, and may leave out rows and columns."""
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r"<!-- (\S+), length (\S+) -->\n\n((?:\|.*\n)+)", text)
    assert len(shown) == text.count("| set (sentences)") == count
    for file, rule, table in shown:
        header, _, *lines = table.splitlines()
        measured_header, _, *measured = map(cells_of, written_table(file, rule))
        columns = [measured_header.index(column) for column in cells_of(header)]
        rows = [[cells[column] for column in columns] for cells in measured]
        assert [cells for cells in map(cells_of, lines) if cells not in rows] == []


def test_differences_in_the_documentation_are_the_measured_ones() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "difference_table.py"))
    shown = "\n".join(script["lines"](script["choose"](read_table("table2"), "dev", 30)))
    assert shown.count("±") == 2 * 6
    assert shown in RESULTS_PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["bilingual", "pretrained", "narrow"])
def test_models_in_the_documentation_are_the_measured_ones(name: str) -> None:
    """Steps, and BLEU on the selection split."""
    log = (SIX_DIRECTIONS / "models" / f"{name}.log.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(log[-1])
    rows = re.findall(r"\| ([\d,]+) \| [\d,]+ \| ([\d.]+) \| ([\d.]+) \|", NOTES_SIX_DIRECTIONS.read_text("utf-8"))
    assert (f"{last['step']:,}", f"{last['bleu de-en']:.2f}", f"{last['bleu en-de']:.2f}") in rows


def test_the_policy_with_more_updates_in_the_documentation_is_the_measured_one() -> None:
    """Its three seeds, beside the bundled order and left-to-right."""
    measured: dict[str, list[float]] = {"left-to-right": [], "learned:hidden": []}
    cells = []
    for direction in ("de-en", "en-de"):
        file = RESULTS / "learning" / f"dev.{direction}.hidden-16-minibatches.json"
        bleu = {row["order"]: row["bleu"] for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}
        seeds = [bleu[f"learned:hidden-{seed}"] for seed in (1, 2, 3)]
        cells.append(f"{statistics.fmean(seeds):.2f} ± {statistics.stdev(seeds):.2f}")
        for order, scores in measured.items():
            scores.append(bleu[order])
    results = NOTES_GERMAN.read_text(encoding="utf-8")
    assert f"| 15,000 small updates, three seeds | {' | '.join(cells)} |" in results
    assert "| `left-to-right` | {:.2f} | {:.2f} |".format(*measured["left-to-right"]) in results
    assert (
        "| `learned:hidden`, 620 large updates | **{:.2f}** | **{:.2f}** |".format(*measured["learned:hidden"])
        in results
    )


@pytest.mark.parametrize(("name", "rows"), [("analysis", 24), ("analysis-whole", 11)])
def test_shapes_of_orders_in_the_documentation_are_the_measured_ones(name: str, rows: int) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "analysis_table.py"))
    shown = "\n".join(script["lines"](read_table(name)))
    assert shown.count("\n") == rows + 1
    assert shown in NOTES_SIX_DIRECTIONS.read_text(encoding="utf-8")
    in_short = [
        line for line in RESULTS_PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| outer-to-")
    ]
    assert len(in_short) == 3
    assert name != "analysis" or set(in_short) <= set(shown.splitlines())


NOTES_SUDOKU = ROOT / "recipes" / "sudoku-9x9" / "notes.md"
REGIMES = {
    RESULTS / "regimes.de-en.json": NOTES_GERMAN,
    RESULTS / "regimes.en-de.json": NOTES_GERMAN,
    NOTES_SUDOKU.parent / "results" / "regimes.generated.json": NOTES_SUDOKU,
    NOTES_SUDOKU.parent / "results" / "regimes.sudoku10k.json": NOTES_SUDOKU,
}


@pytest.mark.parametrize("file", REGIMES, ids=lambda file: file.stem)
def test_regimes_in_the_documentation_are_the_measured_ones(file: Path) -> None:
    """The notes have the whole tables, docs/regimes.md some of the scores."""
    pytest.importorskip("matplotlib")
    result = json.loads(file.read_text(encoding="utf-8"))
    tables = runpy.run_path(str(ROOT / "scripts" / "plot_regimes.py"))["tables"](result)
    both = "\n".join(tables).strip().split("\n\n")
    assert len(both) == 2
    assert all(table in REGIMES[file].read_text(encoding="utf-8") for table in both)
    advice = (ROOT / "docs" / "regimes.md").read_text(encoding="utf-8")
    if result["direction"]:
        column = ["de-en", "en-de"].index(result["direction"])
        shown = re.findall(r"^\|.*\| [^|]+ \| ([\d., ]+) \| ([\d., ]+) \|$", advice, re.MULTILINE)
        assert len(shown) == 8
        scores = {f"{row['quality']:.2f}" for row in result["rows"]}
    else:
        column = "sudoku10k" in file.name
        shown = re.findall(r"^\| `[\w-]+` \| ([\d.]+) \| ([\d.]+) \|$", advice, re.MULTILINE)
        scores = {f"{row['quality']:.1f}" for row in result["rows"] if row["schedule"] == "one"}
        assert len(shown) == 6
    assert {score for cells in shown for score in cells[column].split(", ")} <= scores


def test_scores_in_the_readme_of_the_model_for_six_directions() -> None:
    shown = re.findall(
        r"^\| ([\w:-]+) \| ([\d*. |]+) \|$", (find("multi") / "README.md").read_text(encoding="utf-8"), re.M
    )
    measured = {
        (row["row"], part["direction"]): row["bleu"]
        for part in read_table("table2")["parts"]
        if part["rule"] == "gold" and part["part"]["max_length"] == 30
        for row in part["rows"]
    }
    directions = ("de-en", "en-de", "ro-en", "en-ro", "zh-en", "en-zh")
    rows = {name: cells.replace("*", "").split(" | ") for name, cells in shown[:6]}
    assert len(rows) == 6
    for name, cells in rows.items():
        assert cells == [f"{measured[name, direction]:.2f}" for direction in directions]


def test_tables_in_the_documentation_are_the_measured_ones() -> None:
    scores = SCRIPT["read"](RESULTS)
    assert len(scores) > 12
    notes = NOTES_GERMAN.read_text(encoding="utf-8")
    assert "\n".join(SCRIPT["lines"](scores)) in notes
    for order in ("learned", "learned:confidence"):
        assert "\n".join(SCRIPT["p_value_lines"](RESULTS, order)) in notes
    summary = SCRIPT["summary_lines"](scores)
    assert len(summary) == 2 + 7
    for page in (RESULTS_PAGE, ROOT / "README.md"):
        assert "\n".join(summary) in page.read_text(encoding="utf-8")


def test_the_table_beside_the_model_is_the_measured_one() -> None:
    scores = SCRIPT["read"](RESULTS)
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(("| l", "| m"))]
    assert len(rows) == 6
    for order, *shown in rows:
        assert shown == [f"{value:.2f}" for value in scores[order]]


def test_an_order_of_a_few_thousand_weights() -> None:
    network, _ = load_order(FOLDER / "learned" / "confidence")
    assert sum(value.numel() for value in network.parameters()) == 2578
    assert network.config.kind == "confidence"


def test_table_of_results() -> None:
    scores = {
        "margin": [20.0, 21.0],
        "learned": [20.5, 20.0],
        "learned:seed-2": [21.0, 20.0],
        "learned:seed-3": [22.0, 20.0],
    }
    assert SCRIPT["lines"](scores)[2:] == [
        "| `margin` | 20.00 | **21.00** |",
        "| `learned` | **20.50** | 20.00 |",
        "| *3 seeds* | 21.17 ± 0.76 | 20.00 ± 0.00 |",
    ]


@pytest.mark.parametrize("pair", ["de-en", "ro-en", "zh-en"])
def test_samples_of_the_six_directions(pair: str) -> None:
    """`evaluate` finds them in both directions, and every sentence fits the limit that is documented."""
    model = find("multi")
    languages = pair.split("-")
    sides = [(model / f"sample.{pair}.{one}").read_text(encoding="utf-8").splitlines() for one in languages]
    assert [len(lines) for lines in sides] == [100, 100]
    translator = anyorder.load("multi", device="cpu")
    for language, lines in zip(languages, sides, strict=True):
        assert max(len(ids) for ids in translator.model.encode(lines, language)) <= 35
    for direction in (pair, "-".join(reversed(languages))):
        files = _sample(translator.with_task(direction), "multi")
        assert [file.name for file in files] == [f"sample.{pair}.{one}" for one in direction.split("-")]


REAL_MODELS = ROOT / "recipes" / "real-models"


def test_tables_of_real_models_are_the_measured_ones() -> None:
    files = list((REAL_MODELS / "results").glob("*.json"))
    tables = runpy.run_path(str(REAL_MODELS / "table.py"))["tables"](files)
    assert (REAL_MODELS / "results" / "tables.md").read_text(encoding="utf-8") == f"# What orders recover\n\n{tables}"
    shown = [
        line for line in (REAL_MODELS / "README.md").read_text(encoding="utf-8").splitlines() if "masked |" in line
    ]
    assert shown
    assert all(line in tables for line in shown)

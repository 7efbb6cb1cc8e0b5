"""The bundled model does what its README says, on the CPU of whoever installed it."""

import runpy
from pathlib import Path

import pytest

import anyorder
from anyorder.models.checkpoint import find
from anyorder.orders.learned import load_order

FOLDER = find("de-en")


@pytest.fixture(scope="module")
def translator() -> anyorder.Translator:
    return anyorder.load("de-en", device="cpu")


def sample(language: str) -> list[str]:
    return (FOLDER / f"sample.{language}").read_text(encoding="utf-8").splitlines()


def test_it_is_small_enough() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) < 40_000_000
    assert len(sample("de")) == len(sample("en")) == 150


def test_it_translates_both_ways(translator: anyorder.Translator) -> None:
    there = translator.translate(["Das ist ein sehr wichtiges Thema."], "de-en", "margin", length="candidates:4")
    assert there[0].text == "This is a very important issue."
    back = translator.translate(["This is a very important issue."], "en-de", "left-to-right", length="candidates:4")
    assert back[0].text == "Das ist ein sehr wichtiges Thema."


def test_its_own_order_is_the_one_it_translates_in(translator: anyorder.Translator) -> None:
    for direction, text in (("de-en", "Wir haben keine Zeit mehr."), ("en-de", "We have no time left.")):
        (made,) = translator.translate([text], direction)
        assert made.order == "learned"
        assert made == translator.translate([text], direction, "learned")[0]


@pytest.mark.parametrize("order", ["left-to-right", "margin", "learned", "learned:confidence"])
def test_a_sentence_does_not_depend_on_its_batch(translator: anyorder.Translator, order: str) -> None:
    texts, references = sample("de")[:24], sample("en")[:24]
    together = translator.translate(texts, "de-en", order, length="gold", references=references)
    for i in (0, 7, 23):
        assert (
            together[i]
            == translator.translate([texts[i]], "de-en", order, length="gold", references=[references[i]])[0]
        )


@pytest.mark.slow
def test_its_scores(translator: anyorder.Translator) -> None:
    """On the first 60 sentences of the sample; measured when the model and its order were made."""
    expected = {"left-to-right": 18.92, "margin": 19.48, "learned": 18.86}
    sources, references = sample("de")[:60], sample("en")[:60]
    rows = anyorder.evaluate_orders(translator, sources, references, "de-en", list(expected), samples=50).rows
    assert {row.order: row.bleu for row in rows} == pytest.approx(expected, abs=0.3)


def test_the_table_in_the_readme_is_the_measured_one() -> None:
    root = Path(__file__).parents[1]
    make = runpy.run_path(str(root / "scripts" / "results_table.py"))
    table = make["lines"](make["read"](root / "recipes" / "de-en" / "results"))
    assert len(table) > 12
    assert "\n".join(table) in (root / "README.md").read_text(encoding="utf-8")


def test_the_tables_beside_the_model_are_the_measured_ones() -> None:
    make = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "results_table.py"))
    scores = make["read"](Path(__file__).parents[1] / "recipes" / "de-en" / "results")
    told = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in told.splitlines() if line.startswith(("| l", "| m"))]
    assert len(rows) == 6
    for order, *shown in rows:
        assert shown == [f"{value:.2f}" for value in scores[order]]


def test_an_order_of_a_few_thousand_weights() -> None:
    scorer, about = load_order(FOLDER / "learned" / "confidence")
    assert sum(value.numel() for value in scorer.parameters()) == 2578
    assert about["policy"]["kind"] == "confidence"


def test_the_table_of_results() -> None:
    make = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "results_table.py"))
    scores = {
        "margin": [20.0, 21.0],
        "learned": [20.5, 20.0],
        "learned:seed-2": [21.0, 20.0],
        "learned:seed-3": [22.0, 20.0],
    }
    assert make["lines"](scores)[2:] == [
        "| `margin` | 20.00 | **21.00** |",
        "| `learned` | **20.50** | 20.00 |",
        "| *3 seeds* | 21.17 ± 0.76 | 20.00 ± 0.00 |",
    ]

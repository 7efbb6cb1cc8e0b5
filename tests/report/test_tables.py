"""Tables for papers, in LaTeX and Markdown, character by character."""

from pathlib import Path
from typing import Any

import pytest

from anyorder.errors import InputError
from anyorder.evaluation.bleu import Bleu, ChrF, SacreBLEUScorer
from anyorder.evaluation.evaluate import Evaluation, Score
from anyorder.evaluation.significance import Difference
from anyorder.report.tables import (
    Cell,
    Column,
    TableData,
    _difference_cell,
    check_table_file,
    evaluation_table,
    format_tables,
)

METRICS = [Bleu(SacreBLEUScorer(), [["a"]]), ChrF([["a"]])]


def score(system: str, bleu: float, chrf: float, limit: int | None = 30, **compared: Any) -> Score:
    return Score(system, system, limit, "sentence", 1724, {"bleu": bleu, "chrf": chrf}, seconds=2.0, **compared)


ANOTHER = Difference(0.1, -0.2, 0.4, 0.6)
"""From a system that is not in the table: with it, Holm's correction doubles the smaller p-value."""
ROWS = [
    score("left-to-right", 22.529, 49.503, differences={"margin": Difference(-1.188, -1.71, -0.67, 0.0001)}),
    score("margin", 23.717, 50.46),
    score("learned:a_b", 24.088, 50.4, differences={"margin": Difference(0.371, -0.004, 0.73, 0.043), "x": ANOTHER}),
]
TABLE = evaluation_table(Evaluation("order:*|version:1", "de-en", ROWS, METRICS, ["A note."]), speed=False)


def test_latex() -> None:
    assert format_tables([TABLE], Path("a.tex"), ["order:*|version:1"]).splitlines() == [
        r"% order:*|version:1",
        r"% de-en, compared with margin (≤30: 1,724 sentences)",
        r"% Δ: difference in BLEU with half of its 95% interval; p: two-sided p-value.",
        r"% A note.",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"order & BLEU $\le$30 & chrF & $\Delta$ & $p$ \\",
        r"\midrule",
        r"left-to-right & 22.53 & 49.5 & $-$1.19\,$\pm$\,.52 & $<$0.001 \\",
        r"margin & 23.72 & 50.5 & -- & -- \\",
        r"learned:a\_b & \textbf{24.09} & 50.4 & +0.37\,$\pm$\,.37 & 0.086 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_markdown() -> None:
    assert format_tables([TABLE], Path("a.md"), ["order:*|--x"]).splitlines() == [
        "de-en, compared with margin (≤30: 1,724 sentences)",
        "",
        "| order | BLEU ≤30 | chrF | Δ | p |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| left-to-right | 22.53 | 49.5 | -1.19 ± .52 | <0.001 |",
        "| margin | 23.72 | 50.5 | – | – |",
        r"| learned:a\_b | **24.09** | 50.4 | +0.37 ± .37 | 0.086 |",
        "",
        "Δ: difference in BLEU with half of its 95% interval; p: two-sided p-value.",
        "",
        "A note.",
        "",
        "<!-- order:*|- -x -->",
    ]


def test_names_headings_and_spreads() -> None:
    columns = [Column("τ", [Cell("-0.25", ".02"), Cell("0.00")]), Column("p", [Cell("–"), Cell("")], "{a}|b")]
    table = TableData("two\\\ntables", "system", ["[100%\n<&#~^$\\*]", "random"], {"": columns}, last_is_random=True)
    latex = format_tables([table, table], Path("a.tex"))
    assert latex.count(r"\begin{tabular}{lrr}") == 2
    assert r"system & $\tau$ & $p$ \{a\}\textbar{}b \\" in latex
    name = r"{[}100\% $<$\&\#\textasciitilde{}\textasciicircum{}\$\textbackslash{}{*}{]}"
    assert name + r" & $-$0.25\,$\pm$\,.02 & -- \\" + "\n\\midrule\nrandom & 0.00" in latex
    markdown = format_tables([table], Path("a.md"), ["a--->\nb"])
    assert markdown.startswith("two\\\\ tables\n\n| system | τ | p {a}\\|b |\n")
    assert r"| \[100% \<&#~^$\\\*\] | -0.25 ± .02 | – |" in markdown
    assert markdown.endswith("\n<!-- a- - - > b -->\n")


def test_the_best_is_bold_after_rounding() -> None:
    near = [score("a", 23.1548, 50.0, None), score("b", 23.1518, 50.0, None)]
    (bleu, *_), *_ = evaluation_table(Evaluation("", "de-en", near, METRICS)).groups.values()
    assert bleu.cells == [Cell("23.15", best=True), Cell("23.15", best=True)]
    (bleu, *_), *_ = evaluation_table(Evaluation("", "de-en", near[:1], METRICS)).groups.values()
    assert bleu.cells == [Cell("23.15")]  # there is nothing to compare with


def test_the_name_decides_the_format() -> None:
    for name in ("a.tex", "b.md"):
        check_table_file(Path(name))
    check_table_file(None)
    for name in ("a", "a.csv", "tex"):
        with pytest.raises(InputError, match=r"expected a name that ends in .tex or .md"):
            check_table_file(Path(name))


@pytest.mark.parametrize(("digits", "expected"), [(2, "+0.25 ± .50"), (1, "+0.2 ± 0.5")])
def test_half_of_an_interval(digits: int, expected: str) -> None:
    """BLEU has two digits, and its intervals are below one; percentages have one, and their intervals are not."""
    cell = _difference_cell(Difference(0.25, -0.25, 0.75, 0.5), digits)
    assert f"{cell.text} ± {cell.spread}" == expected

"""How the seeds of a row are put together, and what the verdict of a table counts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from anyorder.report.tables import Cell, Column
from anyorder.reproduce.jobs import Cost
from anyorder.reproduce.report import Compared, PartScore, Report, RowScore, combine_seeds, cost_text
from anyorder.reproduce.tables import TABLES, Part


def seed(bleu: float, p: float) -> dict[str, object]:
    return {"differences": {"margin": {"bleu": bleu}}, "p_values_holm": {"margin": p}}


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ([seed(1.0, 0.01)], Compared("margin", 1.0, 0.01)),
        ([seed(1.0, 0.01), seed(2.0, 0.03)], Compared("margin", 1.5, 0.03)),
        ([seed(-1.0, 0.01), seed(-2.0, 0.001)], Compared("margin", -1.5, 0.01)),
        ([seed(1.0, 0.01), seed(-0.5, 0.02)], Compared("margin", 0.25, 1.0)),
    ],
)
def test_a_row_is_as_significant_as_its_weakest_seed(seeds: list[dict[str, object]], expected: Compared) -> None:
    assert combine_seeds(seeds, "margin") == expected


def row(name: str, bleu: float, learned: bool = False, **p_values: float) -> RowScore:
    scores = {"left-to-right": 20.0, "margin": 21.0}
    compared = {
        baseline: Compared(baseline, bleu - scores[baseline], p)
        for baseline, p in (("left-to-right", p_values.get("left", 1.0)), ("margin", p_values.get("margin", 1.0)))
        if baseline != name
    }
    return RowScore(name, learned, bleu, 0.1 if learned else None, 50.0, compared, {}, [])


def part(learned: RowScore, limit: int) -> PartScore:
    rows = [row("left-to-right", 20.0), row("margin", 21.0), learned]
    return PartScore("de-en", Part("dev", limit), "gold", 1234, "order:*", rows)


def test_verdict_counts_lines() -> None:
    better = part(row("learned:hidden", 22.0, True, left=0.01, margin=0.2), 20)
    worse = part(row("learned:hidden", 20.5, True, left=0.3, margin=0.04), 30)
    costs = [Cost("learn", 90.0, "H200"), Cost("decode", 30.0, "H200"), Cost("decode", 60.0, "CPU")]
    report = Report(TABLES["table2"], "here", [better, worse], costs, ["A note."])
    summary, details = report.tables()
    assert summary.notes == [
        "The best learned order is the best order or not significantly below the best heuristic one in 1 of 2 lines; "
        "it is significantly above left-to-right in 1 of 2."
    ]
    assert list(summary.names) == ["De→En dev ≤20 (1,234)", "paper", "De→En dev ≤30 (1,234)", "paper"]
    hidden = next(column for column in summary.groups[""] if column.heading == "learned:hidden")
    assert [(cell.text, cell.spread, cell.best) for cell in hidden.cells] == [
        ("22.00", "0.10", True), ("29.57", "", False), ("20.50", "0.10", False), ("29.40", "", False),
    ]  # fmt: skip
    p_values = [column for column in details.groups["dev ≤20"] if column.heading == "p"]
    assert [[cell.text for cell in column.cells] for column in p_values] == [
        ["–", "0.010", "1.000"],
        ["1.000", "0.200", "–"],
    ]
    assert cost_text(costs) == "2.0 minutes on H200 (learning 1.5, decoding 0.5); 1.0 minutes on CPU (decoding 1.0)"
    assert "A note." in report.footer()


def test_rows_are_in_the_order_of_the_table_even_if_a_part_lacks_some() -> None:
    """Of a table that is not finished yet."""
    learned = row("learned:hidden", 22.0, True)
    other_model = row("autoregressive, greedy", 25.0)
    short = PartScore("de-en", Part("dev", 20), "gold", 9, "order:*", [row("left-to-right", 20.0), other_model])
    report = Report(TABLES["table2"], "here", [short, part(learned, 30)], [])
    summary, details = report.tables()
    names = ["left-to-right", "learned:hidden", "margin", "autoregressive, greedy"]
    assert [column.heading for column in summary.groups[""]] == list(details.names) == names
    columns = {heading: [cell.text for cell in cells] for heading, cells in _cells(details.groups["dev ≤20"])}
    assert columns["BLEU"] == ["20.00", "–", "–", "25.00"]
    assert columns["chrF"] == ["50.0", "–", "–", "50.0"]
    assert [cells[1].text for _, cells in _cells(details.groups["dev ≤30"])][:2] == ["22.00", "29.40"]


def test_a_direction_that_one_length_rule_lacks_is_left_out_there() -> None:
    learned = row("learned:hidden", 22.0, True)
    other = replace(part(learned, 30), direction="en-de", rule="table:4")
    report = Report(TABLES["table2"], "here", [part(learned, 30), other], [])
    assert [table.title.split(" (")[0] for table in report.tables()] == [
        "BLEU, length gold", "BLEU, length table:4", "De→En, length gold", "En→De, length table:4",
    ]  # fmt: skip


def _cells(columns: Sequence[Column]) -> list[tuple[str, Sequence[Cell]]]:
    return [(column.heading, column.cells) for column in columns]

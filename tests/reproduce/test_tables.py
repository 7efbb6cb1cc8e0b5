"""The paper's numbers stand where the tables look for them."""

import pytest

from anyorder.errors import InputError
from anyorder.reproduce.tables import BASELINE, BLEU, SHARES, TABLES, Part, find_table


@pytest.mark.parametrize("name", TABLES)
def test_every_number_of_the_paper_has_its_cell(name: str) -> None:
    table = TABLES[name]
    rows = {row.name for row in table.rows}
    parts = {(part.split, part.max_length) for part in table.parts}
    for direction, split, limit, row in BLEU[name]:
        assert direction in table.directions
        assert (split, limit) in parts
        assert row in rows
    assert BASELINE in rows
    for direction, row, metric in SHARES if name == "analysis" else ():
        assert direction in table.directions
        assert row in rows
        assert metric in table.metrics


def test_numbers_as_printed() -> None:
    assert BLEU["table1"]["en-ro", "test", None, "left-to-right"] == 35.55
    assert ("de-en", "dev", None, "learned:ppo") not in BLEU["table1"]
    assert BLEU["table2"]["zh-en", "dev", 20, "learned:hidden"] == 22.18
    assert BLEU["table3"]["ro-en", "dev", 30, "bleu, λ=0"] == 30.92
    assert BLEU["table4"]["de-en", "dev", 30, "likelihood, λ=0.0005"] == 29.16
    assert BLEU["table5"]["de-en", "dev", None, "outer-in:stride=2"] == 27.81
    assert {name: len(values) for name, values in BLEU.items()} == {
        "table1": 42, "table2": 60, "table3": 10, "table4": 8, "table5": 20, "causes": 2, "analysis": 0,
    }  # fmt: skip


def test_rows_are_chosen_by_name() -> None:
    assert [row.name for row in find_table("table5", ["outer-in:stride=3"]).rows] == [BASELINE, "outer-in:stride=3"]
    with pytest.raises(InputError, match="unknown row 'margin'"):
        find_table("table5", ["margin"])
    with pytest.raises(InputError, match="did you mean 'table1'"):
        find_table("table")


def test_columns_are_chosen_by_length() -> None:
    assert find_table("table5") == TABLES["table5"]
    assert find_table("table5", max_lengths=[30]).parts == (Part("dev", 30),)
    assert find_table("table5", max_lengths=[None]).parts == (Part("dev"),)
    with pytest.raises(InputError, match=r"unknown length limit '20'.*known: 30, none"):
        find_table("table5", max_lengths=[20])
    with pytest.raises(InputError, match=r"unknown length limit 'none'.*known: 20, 30"):
        find_table("table2", max_lengths=[None])

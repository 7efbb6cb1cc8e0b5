import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.evaluation.bleu import corpus_bleu, corpus_chrf
from anyorder.evaluation.evaluate import Pairs, encode_pairs, evaluate
from anyorder.report.table_data import evaluation_sheet
from anyorder.report.terminal import tables
from anyorder.translator import Translator
from tests.conftest import tiny, toy_pairs

PAIRS = [*toy_pairs(30, seed=4), ("", "nothing"), ("nichts", "")]
ORDERS = ["left-to-right", "margin", "outer-in:stride=2"]


@pytest.fixture(scope="module")
def translator(vocabulary: Vocabulary) -> Translator:
    return Translator(tiny(vocabulary))


@pytest.fixture(scope="module")
def pairs(translator: Translator) -> Pairs:
    sources, references = zip(*PAIRS, strict=True)
    return encode_pairs(translator, "de-en", sources, references)


def test_rows_are_what_translating_and_scoring_gives(translator: Translator, pairs: Pairs) -> None:
    limits = sorted(int(length) for length in pairs.longest)[9:10]
    table = evaluate(translator, pairs, "de-en", ORDERS, [None, *limits], samples=50)
    assert [(row.order, row.max_length) for row in table.rows] == [
        (order, limit) for limit in [*limits, None] for order in ORDERS
    ]
    for row in table.rows:
        bound = row.max_length or 1000
        chosen = [pair for pair, longest in zip(PAIRS, pairs.longest, strict=True) if longest <= bound]
        assert row.sentences == len(chosen)
        sources, references = zip(*chosen, strict=True)
        made = translator.translate(sources, "de-en", row.order, length="gold", references=references)
        ids = translator.encode([trajectory.text for trajectory in made], "en")
        words = [" ".join(translator.model.vocabulary.words(one)) for one in ids]
        expected = [" ".join(line.split()) for line in translator.words(references, "en")]
        assert row.chrf == pytest.approx(corpus_chrf([one.text for one in made], references), abs=1e-3)
        assert row.bleu == pytest.approx(corpus_bleu(words, expected), abs=0.5)
        assert row.seconds > 0
        assert list(row.p_values) == ([] if row.order == "left-to-right" else ["left-to-right"])


def test_json_has_the_agreed_shape(translator: Translator, pairs: Pairs) -> None:
    table = evaluate(translator, pairs, "de-en", ORDERS[:2], against=["margin"], samples=20)
    told = table.as_json()
    assert set(told) == {"signature", "direction", "rows"}
    assert set(told["rows"][0]) == {"order", "max_length", "sentences", "bleu", "chrf", "p_values", "seconds"}
    assert set(told["rows"][0]["p_values"]) == {"margin"}
    assert told["rows"][1]["p_values"] == {}
    assert "length:gold" in told["signature"]
    assert "tok:moses" in told["signature"]
    assert tables(evaluation_sheet(table), 80)[0].row_count == 2


def test_several_orders_to_compare_with(translator: Translator, pairs: Pairs) -> None:
    together = evaluate(translator, pairs, "de-en", ORDERS, against=ORDERS, samples=20)
    assert together.signature.endswith(f"against:{','.join(ORDERS)}")
    for baseline in ORDERS:
        alone = evaluate(translator, pairs, "de-en", ORDERS, against=[baseline], samples=20)
        for row, other in zip(together.rows, alone.rows, strict=True):
            assert set(row.p_values) == set(ORDERS) - {row.order}
            assert row.p_values.get(baseline) == other.p_values.get(baseline)
    (table,) = tables(evaluation_sheet(together), 160)
    heads = [str(column.header).replace("\n", "") for column in table.columns]
    assert [head for head in heads if head.startswith("p")] == [f"p{order}" for order in ORDERS]


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_numbers_are_shown_whole_in_any_width(translator: Translator, pairs: Pairs, width: int) -> None:
    orders = [*ORDERS, "easy-first:logp=1,negent=0.9"]
    result = evaluate(translator, pairs, "de-en", [*orders, ORDERS[0]], [30, None], against=orders, samples=20)
    assert [row.order for row in result.rows] == orders * 2
    screen = Console(width=width, record=True, file=io.StringIO())
    for table in tables(evaluation_sheet(result), width):
        screen.print(table)
    shown = screen.export_text()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for row in result.rows:
        for number in (f"{row.bleu:.2f}", f"{row.chrf:.1f}", *(f"{value:.3f}" for value in row.p_values.values())):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", shown)


def test_names_are_not_markup(translator: Translator, pairs: Pairs) -> None:
    result = evaluate(translator, pairs, "de-en", ["margin", "left-to-right"], samples=20)
    renamed = replace(result, rows=[replace(row, order=f"[red]{row.order}", p_values={}) for row in result.rows])
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(*tables(evaluation_sheet(renamed), 80))
    assert "[red]margin" in screen.export_text()


def test_sentences_beyond_the_limit_may_be_longer_than_the_model(translator: Translator) -> None:
    sources, references = zip(*PAIRS[:5], ("Hund " * 90, "dog"), strict=True)
    pairs = encode_pairs(translator, "de-en", sources, references, ("a.de", "a.en"))
    assert evaluate(translator, pairs, "de-en", ["margin"], [60]).rows[0].sentences == 5
    with pytest.raises(InputError, match=r"a.de, line 6: \d+ subwords, the model has room for 62"):
        evaluate(translator, pairs, "de-en", ["margin"])


def test_impossible_requests(translator: Translator, pairs: Pairs) -> None:
    with pytest.raises(InputError, match="no pair has at most 1"):
        evaluate(translator, pairs, "de-en", ORDERS, [1])
    with pytest.raises(InputError, match="'uniform': is not among those evaluated"):
        evaluate(translator, pairs, "de-en", ORDERS, against=["margin", "uniform"])

"""Scores of orders that are decoded for the evaluation."""

import io
import re
from dataclasses import replace

import pytest
import sacrebleu
from rich.console import Console

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.bleu import multi_bleu
from anyorder.evaluation.evaluate import Evaluation, evaluate
from anyorder.evaluation.evaluate_orders import HEURISTIC_ORDERS, evaluate_orders
from anyorder.report.tables import evaluation_table
from anyorder.report.terminal import render_tables
from tests.conftest import tiny, toy_pairs

PAIRS = [*toy_pairs(30, seed=4), ("", "nothing"), ("nichts", "")]
SOURCES, REFERENCES = ([pair[side] for pair in PAIRS] for side in (0, 1))
ORDERS = ["left-to-right", "margin", "outer-in:stride=2"]


@pytest.fixture(scope="module")
def translator(vocabulary: Vocabulary) -> Decoder:
    return Decoder(tiny(vocabulary), "de-en")


def scores(translator: Decoder, orders: list[str], *limits: int | None, **options: object) -> Evaluation:
    options = {"samples": 20, **options}
    return evaluate_orders(translator, SOURCES, REFERENCES, orders, limits or (None,), **options)  # type: ignore[arg-type]


def longer_sides(translator: Decoder) -> list[int]:
    """The subwords of the longer side of every pair; very many where a side is empty."""
    sizes = [
        (len(source), len(reference))
        for source, reference in zip(
            translator.model.encode(SOURCES, "de"), translator.model.encode(REFERENCES, "en"), strict=True
        )
    ]
    return [max(size) if all(size) else 10**6 for size in sizes]


def test_rows_are_what_translating_and_scoring_gives(translator: Decoder) -> None:
    longest = longer_sides(translator)
    limit = sorted(longest)[9]
    table = scores(translator, ORDERS, None, limit, samples=50)
    assert [(row.order, row.max_length) for row in table.rows] == [
        (order, bound) for bound in (limit, None) for order in ORDERS
    ]
    for row in table.rows:
        chosen = [pair for pair, length in zip(PAIRS, longest, strict=True) if length <= (row.max_length or 1000)]
        assert row.sentences == len(chosen)
        sources, references = zip(*chosen, strict=True)
        trajectories = translator.translate(sources, "de-en", row.order, length="gold", references=references)
        hypotheses = [" ".join(trajectory.words) for trajectory in trajectories]
        words = translator.model.words(references, "en")
        assert row.bleu == round(multi_bleu().corpus_score(hypotheses, [words]).score, 4)
        assert row.chrf == round(
            sacrebleu.corpus_chrf([trajectory.text for trajectory in trajectories], [references]).score, 4
        )
        assert row.system == row.order
        assert row.seconds is not None
        assert row.seconds > 0
        assert list(row.p_values) == ([] if row.order == "left-to-right" else ["left-to-right"])


def test_sacrebleu_tokens(translator: Decoder) -> None:
    (row,) = scores(translator, ["margin"], tokenize="13a").rows
    trajectories = translator.translate(SOURCES[:30], "de-en", "margin", length="gold", references=REFERENCES[:30])
    (expected,) = evaluate(trajectories, REFERENCES[:30]).rows
    assert (row.bleu, row.chrf) == (round(expected.bleu, 4), round(expected.chrf, 4))


def test_a_sentence_is_decoded_once_for_all_limits(translator: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = Decoder.decode

    def count(self: Decoder, sentences: list, *arguments: object) -> list[Trajectory]:
        decoded.extend(sentence.text for sentence in sentences)
        return list(decode(self, sentences, *arguments))  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "decode", count)
    limits = sorted(set(longer_sides(translator)[:30]))
    table = scores(translator, ["margin"], *limits, None)
    assert sorted(decoded) == sorted(SOURCES[:30])
    seconds = [row.seconds or 0 for row in table.rows]
    assert seconds == sorted(seconds)


def test_json_has_the_agreed_format(translator: Decoder) -> None:
    table = scores(translator, ORDERS[:2], against=["margin"])
    record = table.as_json()
    assert record == scores(translator, ORDERS[:2], against=["margin"]).as_json()  # times are apart
    assert set(record) == {"signature", "direction", "rows", "notes", "lines"}
    fields = {"system", "order", "max_length", "sentences", "bleu", "chrf", "p_values", "p_values_holm", "differences"}
    assert set(record["rows"][0]) == fields | {"schedule", "revision", "forwards"}
    timings = table.timings()["rows"]
    assert [(row["system"], row["max_length"], row["sentences"]) for row in timings] == [
        ("left-to-right", None, 30),
        ("margin", None, 30),
    ]
    assert all(row["seconds"] > 0 for row in timings)
    assert set(record["rows"][0]["p_values"]) == {"margin"}
    assert record["rows"][1]["p_values"] == {}
    assert record["direction"] == "de-en"
    signature = Signature.parse(record["signature"])
    assert str(signature) == record["signature"]
    assert (signature["order"], signature["length"], signature["bleu.tok"]) == ("*", "gold", "moses")
    assert render_tables(evaluation_table(table), 80)[0].row_count == 2


def test_decoding_settings(translator: Decoder) -> None:
    config = DecodingConfig(order="entropy", schedule=2, length="fixed:4", seed=7)
    signature = Signature.parse(scores(translator, ["uniform"], config=config).signature)
    assert [signature[key] for key in ("order", "schedule", "length", "seed")] == ["*", "2", "fixed:4", "7"]


def test_several_orders_to_compare_with(translator: Decoder) -> None:
    together = scores(translator, ORDERS, against=ORDERS)
    assert together.signature.endswith(f"against:{','.join(ORDERS)}")
    for baseline in ORDERS:
        alone = scores(translator, ORDERS, against=[baseline])
        for row, other in zip(together.rows, alone.rows, strict=True):
            assert set(row.p_values) == set(ORDERS) - {row.order}
            assert row.p_values.get(baseline) == other.p_values.get(baseline)
    assert evaluation_table(together).notes[0].endswith("p: two-sided p-value, with Holm's correction for 3 baselines.")
    (table,) = render_tables(evaluation_table(together), 200)
    headings = [str(column.header).replace("\n", "") for column in table.columns]
    assert [heading for heading in headings if heading.startswith("p")] == [f"p{order}" for order in ORDERS]


def test_several_references(translator: Decoder) -> None:
    sources, first = SOURCES[:8], REFERENCES[:8]
    second = [f"{text[:-1]} today." for text in first]
    trajectories = translator.translate(sources, "de-en", "margin", length="gold", references=first)
    words = [" ".join(trajectory.words) for trajectory in trajectories]
    expected = {
        "moses": multi_bleu().corpus_score(words, [translator.model.words(one, "en") for one in (first, second)]),
        "13a": sacrebleu.corpus_bleu([trajectory.text for trajectory in trajectories], [first, second]),
    }
    for tokenize, bleu in expected.items():
        table = evaluate_orders(translator, sources, [first, second], ["margin"], tokenize=tokenize)
        assert table.rows[0].bleu == round(bleu.score, 4)
        assert Signature.parse(table.signature)["bleu.nrefs"] == "2"
    with pytest.raises(InputError, match="sources has 32 sentences but references has 31"):
        evaluate_orders(translator, SOURCES, [REFERENCES, REFERENCES[1:]], ORDERS)


def test_too_few_sentences_within_a_limit(translator: Decoder) -> None:
    limit = sorted(longer_sides(translator))[3]
    table = scores(translator, ORDERS[:2], limit, None)
    assert [bool(row.p_values) for row in table.rows] == [False, False, False, True]
    assert table.notes == [
        f"≤{limit}: {table.rows[0].sentences} sentences are too few for a significance test (at least 10): no p-values."
    ]
    shown = evaluation_table(table)
    assert shown.notes[1:] == table.notes
    headings = {group: [column.heading for column in columns] for group, columns in shown.groups.items()}
    assert headings == {f"≤{limit}": ["BLEU", "chrF", "sentences/s"], "all": ["BLEU", "chrF", "Δ", "p", "sentences/s"]}


def test_all_heuristic_orders_by_default(translator: Decoder) -> None:
    table = evaluate_orders(translator, SOURCES[:2], REFERENCES[:2], samples=20)
    assert [row.order for row in table.rows] == list(HEURISTIC_ORDERS)


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_numbers_are_shown_whole_in_any_width(translator: Decoder, width: int) -> None:
    orders = [*ORDERS, "easy-first:logp=1,negent=0.9"]
    result = scores(translator, [*orders, ORDERS[0]], 30, None, against=orders)
    assert [row.order for row in result.rows] == orders * 2
    screen = Console(width=width, record=True, file=io.StringIO())
    for table in render_tables(evaluation_table(result), width):
        screen.print(table)
    shown = screen.export_text()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for row in result.rows:
        for number in (f"{row.bleu:.2f}", f"{row.chrf:.1f}", *(f"{value:.3f}" for value in row.p_values_holm.values())):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", shown)


def test_names_are_not_markup(translator: Decoder) -> None:
    result = scores(translator, ["margin", "left-to-right"])
    renamed = replace(result, rows=[replace(row, system=f"[red]{row.order}", differences={}) for row in result.rows])
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(*render_tables(evaluation_table(renamed), 80))
    assert "[red]margin" in screen.export_text()


def test_sentences_beyond_the_limit_may_be_longer_than_the_model(translator: Decoder) -> None:
    sources, references = zip(*PAIRS[:5], ("Hund " * 90, "dog"), strict=True)
    table = evaluate_orders(translator, sources, references, ["margin"], [60], strict=True)
    assert (table.rows[0].sentences, table.lines) == (5, [])
    with pytest.raises(InputError, match=r"a.de, line 6: 90 subwords, the model has room for 62"):
        evaluate_orders(translator, sources, references, ["margin"], names=("a.de", "a.en"), strict=True)


def test_pairs_longer_than_the_model_are_scored_in_parts(translator: Decoder) -> None:
    long = ("Der Hund sieht. " * 20, "The dog sees. " * 20)
    sources, references = zip(*PAIRS[:5], long, ("Hund", "dog " * 70), ("", "x"), strict=True)
    table = evaluate_orders(translator, sources, references, ["uniform"], samples=20)
    assert [(line.line, line.scored) for line in table.lines] == [(6, True), (7, True), (8, False)]
    assert table.lines[0].note.startswith("source split into 2 parts")
    assert table.lines[1].note == "length clipped to 62 of the reference's 70 subwords"
    assert table.lines[2].note == "empty source"
    trajectories = translator.translate(sources, "de-en", "uniform", length="gold", references=references)[:7]
    assert trajectories[5].length == len(translator.model.encode(references[5:6], "en")[0])
    hypotheses = [" ".join(trajectory.words) for trajectory in trajectories]
    assert table.rows[0].sentences == 7
    words = translator.model.words(references[:7], "en")
    assert table.rows[0].bleu == round(multi_bleu().corpus_score(hypotheses, [words]).score, 4)
    with pytest.raises(InputError, match=r"more.en, line 2: holds control characters"):
        evaluate_orders(
            translator, sources[:2], [references[:2], ["a", "\x00b"]], ["uniform"],
            names=("a.de", "a.en", "more.en"), strict=True,
        )  # fmt: skip


def test_impossible_requests(translator: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("decodes before it checks")

    monkeypatch.setattr(Decoder, "decode", never)
    with pytest.raises(InputError, match="no pair has at most 1"):
        scores(translator, ORDERS, 1)
    with pytest.raises(InputError, match="against 'uniform': is not one of the systems"):
        scores(translator, ORDERS, against=["margin", "uniform"])
    with pytest.raises(InputError, match="unknown tokenizer"):
        scores(translator, ORDERS, tokenize="moose")
    with pytest.raises(InputError, match="samples 3: "):
        scores(translator, ORDERS, samples=3)
    with pytest.raises(InputError, match="no learned order"):
        scores(translator, [*ORDERS, "learned"])
    with pytest.raises(InputError, match="sources has 32 sentences but references has 31"):
        evaluate_orders(translator, SOURCES, REFERENCES[1:], ORDERS)

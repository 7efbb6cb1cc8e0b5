"""Scores of given trajectories, ours or anyone's: equal to sacreBLEU's own."""

import random
from functools import partial
from typing import Any

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

import anyorder
from anyorder.data.text import Text
from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.bleu import MosesScorer, bleu_of_sums, multi_bleu, sentence_counts
from anyorder.evaluation.evaluate import evaluate
from anyorder.evaluation.significance import Test, compare, holm
from anyorder.report.tables import evaluation_table
from tests.conftest import toy_pairs

REFERENCES = [english for _, english in toy_pairs(30, seed=6)]


def trajectory(text: str, order: str = "", signature: str = "", source: str = "", task: str = "") -> Trajectory:
    tokens = text.split() or ["a"]
    steps = list(range(1, len(tokens) + 1))
    return Trajectory(source, text, tokens, steps, [], order, len(tokens), signature, task=task)


def damaged(share: float, seed: int, **fields: str) -> list[Trajectory]:
    """The references with some of their words left out."""
    draw = random.Random(seed)
    return [
        trajectory(" ".join(word for word in line.split() if draw.random() > share), **fields) for line in REFERENCES
    ]


LINES = st.lists(
    st.tuples(st.text("ab cé,.'\"-字学 $<&", max_size=12), st.text("ab cé,.'\"-字学 $<&", max_size=12)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(LINES, st.sampled_from(["13a", "intl", "zh", "char", "none"]), st.booleans())
def test_scores_are_those_of_sacrebleu(lines: list[tuple[str, str]], tokenize: str, two_references: bool) -> None:
    texts, first = [text for text, _ in lines], [reference for _, reference in lines]
    references = [first, [f"{text}a b" for text in reversed(first)]] if two_references else [first]
    (row,) = evaluate([trajectory(text) for text in texts], references, tokenize).rows
    assert row.bleu == sacrebleu.corpus_bleu(texts, references, tokenize=tokenize, force=True).score
    assert row.chrf == sacrebleu.corpus_chrf(texts, references).score
    assert row.sentences == len(lines)
    if not two_references:
        assert evaluate([trajectory(text) for text in texts], first, tokenize).rows == [row]


def test_comparisons_are_those_of_the_paired_test() -> None:
    systems = {name: damaged(share, seed) for name, share, seed in (("a", 0.1, 1), ("b", 0.2, 2), ("c", 0.1, 3))}
    result = evaluate(systems, REFERENCES, against=["b", "a", "b"], samples=100)
    metric = sacrebleu.BLEU()
    statistics = {
        name: sentence_counts(metric, [run.text for run in runs], [REFERENCES]) for name, runs in systems.items()
    }
    expected = compare(statistics, ["b", "a"], partial(bleu_of_sums, metric), samples=100)
    by_name = {row.system: row for row in result.rows}
    for row in result.rows:
        assert list(row.p_values) == [name for name in ("b", "a") if name != row.system]
        assert row.p_values == {name: found.p_value for name, found in expected[row.system].items()}
        assert row.p_values_holm == holm(row.p_values)
        for name, difference in row.differences.items():
            assert difference.value == pytest.approx(row.bleu - by_name[name].bleu)
            assert (difference.low, difference.high) == (
                expected[row.system][name].low, expected[row.system][name].high,
            )  # fmt: skip
    assert [list(row.p_values) for row in evaluate(systems, REFERENCES, samples=20).rows] == [[], ["a"], ["a"]]


def test_n_grams_are_counted_once_for_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    count = sacrebleu.BLEU._compute_segment_statistics

    def spy(self: sacrebleu.BLEU, hypothesis: str, *arguments: Any) -> list[int]:
        counted.append(hypothesis)
        return count(self, hypothesis, *arguments)

    monkeypatch.setattr(sacrebleu.BLEU, "_compute_segment_statistics", spy)
    systems = {name: damaged(0.1, seed) for seed, name in enumerate("abcd")}
    evaluate(systems, REFERENCES, against=["a", "b", "c"], samples=20)
    assert len(counted) == 4 * len(REFERENCES)


@pytest.mark.parametrize("test", ["randomization", "bootstrap"])
@pytest.mark.parametrize("sentences", [1, 9])
def test_too_few_sentences_are_not_tested(test: Test, sentences: int) -> None:
    systems = {"a": damaged(0.1, 1)[:sentences], "b": damaged(0.5, 2)[:sentences]}
    result = evaluate(systems, REFERENCES[:sentences], test=test)
    for row in result.rows:
        assert (row.p_values, row.p_values_holm, row.differences) == ({}, {}, {})
    few = "1 sentence is" if sentences == 1 else f"{sentences} sentences are"
    assert result.notes == [f"{few} too few for a significance test (at least 10): no p-values."]
    assert evaluation_table(result).notes == result.notes
    assert [column.heading for column in evaluation_table(result).groups["all"]] == ["BLEU", "chrF"]
    assert evaluate(systems["a"], REFERENCES[:sentences]).notes == []  # nothing to compare


def test_moses_words_are_scored_as_multi_bleu_does() -> None:
    tokens = ["The", "do@@", "g", "sees", "a", "house", "."]
    trajectories = [Trajectory("", "The dog sees a house.", tokens, list(range(1, 8)), [], "margin", 7, "")]
    words = Text("en").words
    result = evaluate(
        trajectories, ["The dog saw a house."], MosesScorer(lambda lines: [words(line) for line in lines])
    )
    expected = multi_bleu().corpus_score(["The dog sees a house ."], [["The dog saw a house ."]]).score
    assert (result.rows[0].system, result.rows[0].order, result.rows[0].bleu) == ("margin", "margin", expected)
    assert result.rows[0].chrf == sacrebleu.corpus_chrf(["The dog sees a house."], [["The dog saw a house."]]).score
    assert Signature.parse(result.signature)["bleu.tok"] == "moses"
    assert Signature.parse(result.signature)["bleu.smooth"] == "none"


def test_the_signature_parses_back_and_names_all_settings() -> None:
    decoding = "order:{}|schedule:one|length:gold|seed:{}|version:anyorder.0.2.0"
    systems = {
        "x|y": damaged(0.1, 1, order="margin", signature=decoding.format("margin", 1), task="de-en"),
        "b": damaged(0.1, 2, order="learned", signature=decoding.format("learned@12ab", 2), task="de-en"),
    }
    result = evaluate(systems, REFERENCES, tokenize="intl", test="bootstrap", samples=20)
    signature = Signature.parse(result.signature)
    assert str(signature) == result.signature
    assert dict(signature) == {
        "order": "*,learned@12ab", "schedule": "one", "length": "gold", "seed": "1,2", "version": "anyorder.0.2.0",
        "bleu.nrefs": "1", "bleu.case": "mixed", "bleu.eff": "no", "bleu.tok": "intl", "bleu.smooth": "exp",
        "bleu.version": sacrebleu.__version__, "test": "bootstrap", "sides": "2", "samples": "20",
        "test.seed": "12345", "against": "x|y",
    }  # fmt: skip
    two_references = Signature.parse(evaluate(systems, [REFERENCES, REFERENCES[::-1]], samples=20).signature)
    assert (two_references["bleu.nrefs"], two_references["test"]) == ("2", "randomization")
    assert result.task == "de-en"
    assert [row.order for row in result.rows] == ["margin", "learned"]


def test_trajectories_without_a_signature() -> None:
    ours = damaged(0.1, 1, order="margin", signature="order:margin|length:gold|version:anyorder.0.1.0")
    theirs = damaged(0.1, 2, signature="made by hand")
    signature = Signature.parse(evaluate({"ours": ours, "theirs": theirs}, REFERENCES, samples=20).signature)
    assert (signature["order"], signature["length"]) == ("*", "gold,unknown")
    alone = evaluate({"theirs": theirs}, REFERENCES, samples=20)
    assert alone.signature.startswith("bleu.nrefs:1|")
    assert (alone.task, alone.rows[0].order) == ("", "")


def test_nothing_was_decoded() -> None:
    result = anyorder.evaluate({"a": damaged(0.1, 1), "b": damaged(0.2, 1)}, REFERENCES, samples=20)
    assert {row.seconds for row in result.rows} == {None}
    assert {row.max_length for row in result.rows} == {None}
    table = evaluation_table(result)
    assert table.head == "system"
    assert [column.heading for column in table.groups["all"]] == ["BLEU", "chrF", "Δ", "p"]
    record = result.as_json()
    assert list(record) == ["signature", "direction", "rows", "notes", "lines"]
    assert list(record["rows"][0]) == [
        "system", "order", "max_length", "sentences", "bleu", "chrf", "p_values", "p_values_holm", "differences",
        "schedule", "revision", "forwards",
    ]  # fmt: skip
    assert list(record["rows"][1]["differences"]["a"]) == ["bleu", "low", "high"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"references": REFERENCES[:3]}, "a has 30 sentences but there are 3 references"),
        ({"tokenize": "14a"}, "unknown tokenizer '14a': did you mean '13a'"),
        ({"against": ["a", "z"]}, r"against 'z': is not one of the systems \(a, b\)"),
        ({"references": [REFERENCES, REFERENCES[:3]]}, "a has 30 sentences but there are 3 references"),
        ({"references": REFERENCES[0]}, "references expected a list of sentences, or several such lists"),
        ({"references": [*REFERENCES[:29], REFERENCES]}, "references expected a list of sentences"),
        ({"references": [REFERENCES, "a"]}, "references expected a list of sentences"),
        ({"references": []}, "there are 0 references"),
        ({"samples": 19}, "samples 19: expected a number of at least 20"),
        ({"samples": 10**30}, "samples 1.*: expected a number of .* at most 1000000"),
        ({"test": "t-test"}, r"unknown test 't-test' \(known: randomization, bootstrap\)"),
        ({"systems": {}}, "no system is given"),
        ({"systems": {"a": damaged(0.1, 1), "b": damaged(0.1, 1)[:9]}}, "a has 30 sentences but b has 9"),
    ],
)
def test_impossible_requests(options: dict[str, object], expected: str) -> None:
    arguments = {"systems": {"a": damaged(0.1, 1), "b": damaged(0.2, 1)}, "references": REFERENCES, **options}
    with pytest.raises(InputError, match=expected):
        evaluate(**arguments)  # type: ignore[arg-type]

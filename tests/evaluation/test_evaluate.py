"""Scores of given trajectories, ours or anyone's: equal to sacreBLEU's own."""

import random

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

import anyorder
from anyorder.data.text import Text
from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.bleu import corpus_bleu, corpus_chrf
from anyorder.evaluation.evaluate import evaluate
from anyorder.evaluation.scorers import MosesScorer
from anyorder.evaluation.significance import p_values
from anyorder.report.table_data import evaluation_table
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
@given(LINES, st.sampled_from(["13a", "intl", "zh", "char", "none"]))
def test_scores_are_those_of_sacrebleu(lines: list[tuple[str, str]], tokenize: str) -> None:
    texts, references = [text for text, _ in lines], [reference for _, reference in lines]
    (row,) = evaluate([trajectory(text) for text in texts], references, tokenize).rows
    assert row.bleu == sacrebleu.corpus_bleu(texts, [references], tokenize=tokenize, force=True).score
    assert row.chrf == sacrebleu.corpus_chrf(texts, [references]).score
    assert row.sentences == len(lines)


def test_p_values_are_those_of_the_paired_test() -> None:
    systems = {name: damaged(share, seed) for name, share, seed in (("a", 0.1, 1), ("b", 0.2, 2), ("c", 0.1, 3))}
    result = evaluate(systems, REFERENCES, against=["b", "a", "b"], samples=100)
    texts = {name: [trajectory.text for trajectory in trajectories] for name, trajectories in systems.items()}
    for row in result.rows:
        assert list(row.p_values) == [name for name in ("b", "a") if name != row.system]
        for baseline, value in row.p_values.items():
            metric = sacrebleu.BLEU(force=True)
            assert [value] == p_values(texts[baseline], [texts[row.system]], REFERENCES, samples=100, metric=metric)
    assert [list(row.p_values) for row in evaluate(systems, REFERENCES, samples=20).rows] == [[], ["a"], ["a"]]


def test_moses_words_are_scored_as_multi_bleu_does() -> None:
    tokens = ["The", "do@@", "g", "sees", "a", "house", "."]
    trajectories = [Trajectory("", "The dog sees a house.", tokens, list(range(1, 8)), [], "margin", 7, "")]
    words = Text("en").words
    result = evaluate(
        trajectories, ["The dog saw a house."], MosesScorer(lambda lines: [words(line) for line in lines])
    )
    expected = corpus_bleu(["The dog sees a house ."], ["The dog saw a house ."])
    assert (result.rows[0].system, result.rows[0].order, result.rows[0].bleu) == ("margin", "margin", expected)
    assert result.rows[0].chrf == corpus_chrf(["The dog sees a house."], ["The dog saw a house."])
    assert Signature.parse(result.signature)["bleu.tok"] == "moses"
    assert Signature.parse(result.signature)["bleu.smooth"] == "none"


def test_the_signature_parses_back_and_names_all_settings() -> None:
    decoding = "order:{}|schedule:one|length:gold|seed:{}|version:anyorder.0.2.0"
    systems = {
        "x|y": damaged(0.1, 1, order="margin", signature=decoding.format("margin", 1), task="de-en"),
        "b": damaged(0.1, 2, order="learned", signature=decoding.format("learned@12ab", 2), task="de-en"),
    }
    result = evaluate(systems, REFERENCES, tokenize="intl", test="randomization", samples=20)
    signature = Signature.parse(result.signature)
    assert str(signature) == result.signature
    assert dict(signature) == {
        "order": "*,learned@12ab", "schedule": "one", "length": "gold", "seed": "1,2", "version": "anyorder.0.2.0",
        "bleu.nrefs": "1", "bleu.case": "mixed", "bleu.eff": "no", "bleu.tok": "intl", "bleu.smooth": "exp",
        "bleu.version": sacrebleu.__version__, "test": "randomization", "samples": "20", "against": "x|y",
    }  # fmt: skip
    assert result.direction == "de-en"
    assert [row.order for row in result.rows] == ["margin", "learned"]


def test_trajectories_without_a_signature() -> None:
    ours = damaged(0.1, 1, order="margin", signature="order:margin|length:gold|version:anyorder.0.1.0")
    theirs = damaged(0.1, 2, signature="made by hand")
    signature = Signature.parse(evaluate({"ours": ours, "theirs": theirs}, REFERENCES, samples=20).signature)
    assert (signature["order"], signature["length"]) == ("*", "gold,unknown")
    alone = evaluate({"theirs": theirs}, REFERENCES, samples=20)
    assert alone.signature.startswith("bleu.nrefs:1|")
    assert (alone.direction, alone.rows[0].order) == ("", "")


def test_nothing_was_decoded() -> None:
    result = anyorder.evaluate({"a": damaged(0.1, 1), "b": damaged(0.2, 1)}, REFERENCES, samples=20)
    assert {row.seconds for row in result.rows} == {None}
    assert {row.max_length for row in result.rows} == {None}
    table = evaluation_table(result)
    assert table.head == "system"
    assert [column.heading for column in table.groups["all"]] == ["BLEU", "chrF", "p"]
    record = result.as_json()
    assert list(record) == ["signature", "direction", "rows"]
    assert list(record["rows"][0]) == ["system", "order", "max_length", "sentences", "bleu", "chrf", "p_values", "seconds"]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"references": REFERENCES[:3]}, "a has 30 sentences but there are 3 references"),
        ({"tokenize": "14a"}, "unknown tokenizer '14a': did you mean '13a'"),
        ({"against": ["a", "z"]}, r"against 'z': is not one of the systems \(a, b\)"),
        ({"samples": 19}, "samples 19: expected a number of at least 20"),
        ({"systems": {}}, "no system is given"),
        ({"systems": {"a": damaged(0.1, 1), "b": damaged(0.1, 1)[:9]}}, "a has 30 sentences but b has 9"),
    ],
)
def test_impossible_requests(options: dict[str, object], expected: str) -> None:
    arguments = {"systems": {"a": damaged(0.1, 1), "b": damaged(0.2, 1)}, "references": REFERENCES, **options}
    with pytest.raises(InputError, match=expected):
        evaluate(**arguments)  # type: ignore[arg-type]

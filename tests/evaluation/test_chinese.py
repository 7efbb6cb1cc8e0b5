"""BLEU into Chinese is that of WMT, on characters, unless another is asked for."""

from dataclasses import replace

import pytest

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoder import Decoder
from anyorder.decoding.signature import Signature
from anyorder.decoding.trajectory import Trajectory
from anyorder.evaluation.bleu import default_tokenizer
from anyorder.evaluation.evaluate import evaluate
from anyorder.evaluation.evaluate_orders import evaluate_orders
from anyorder.models.native.translation_model import TranslationModel
from tests.conftest import tiny


@pytest.mark.parametrize(("language", "tokenizer"), [("zh", "zh"), ("en", "moses"), ("ro", "moses")])
def test_the_tokens_of_a_language(language: str, tokenizer: str) -> None:
    assert default_tokenizer(language) == tokenizer


@pytest.mark.parametrize(
    ("direction", "given", "expected"), [("en-zh", None, "zh"), ("zh-en", None, "moses"), ("en-zh", "char", "char")]
)
def test_an_evaluation_chooses_by_the_target(
    vocabulary: Vocabulary, direction: str, given: str | None, expected: str
) -> None:
    pytest.importorskip("jieba")
    config = replace(tiny(vocabulary).config, languages=("zh", "en"))
    translator = Decoder(TranslationModel(config, vocabulary).eval(), direction)
    table = evaluate_orders(translator, ["Hund"], ["Haus"], ["left-to-right"], tokenize=given, samples=20)
    assert Signature.parse(table.signature)["bleu.tok"] == expected


@pytest.mark.parametrize(("task", "expected"), [("en-zh", "zh"), ("zh-en", "13a"), ("", "13a")])
def test_trajectories_are_scored_by_their_task(task: str, expected: str) -> None:
    one = Trajectory("a", "这是一本书。", list("这是一本书。"), [1, 2, 3, 4, 5, 6], [], "", 6, "", task=task)
    table = evaluate({"ours": [one]}, ["这是一本新书。"], samples=20)
    assert Signature.parse(table.signature)["bleu.tok"] == expected
    assert (table.rows[0].bleu > 0) == (expected == "zh")

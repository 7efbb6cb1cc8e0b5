"""BLEU into Chinese is that of WMT, on characters, unless another is asked for."""

from dataclasses import replace

import pytest

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.signature import Signature
from anyorder.evaluation.evaluate_orders import evaluate_orders
from anyorder.evaluation.scorers import default_tokenizer
from anyorder.models.translation import TranslationModel
from anyorder.translator import Translator
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
    translator = Translator(TranslationModel(config, vocabulary).eval())
    table = evaluate_orders(translator, ["Hund"], ["Haus"], direction, ["left-to-right"], tokenize=given, samples=20)
    assert Signature.parse(table.signature)["bleu.tok"] == expected

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder import __version__
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.signature import Signature
from anyorder.errors import InputError
from anyorder.models.native.translation_model import TranslationModel

KEYS = st.text(st.characters(exclude_characters=":|%\n\r", exclude_categories=["Cs"]), min_size=1)
VALUES = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(KEYS, VALUES, min_size=1))
def test_every_signature_parses_back(settings: dict[str, str]) -> None:
    signature = Signature(settings)
    assert Signature.parse(str(signature)) == signature
    assert dict(signature) == settings
    assert "\n" not in str(signature)


def test_the_signature_of_decoding(model: TranslationModel) -> None:
    decoding = DecodingConfig("outer-in:stride=2", "threshold:0.9", length="gold", seed=3).bind(model, "de-en")
    printed = str(decoding.signature)
    assert printed == (
        "order:outer-in:stride=2|schedule:threshold:0.9|revision:none|beam:1|length:gold|seed:3|"
        f"version:anyorder.{__version__}"
    )
    assert Signature.parse(printed)["order"] == "outer-in:stride=2"


def test_signatures_of_the_first_version_parse() -> None:
    signature = Signature.parse("order:margin|budget:one|beam:1|version:anyorder.0.1.0|tok:moses|version:2.6.0")
    assert (signature["version"], signature["bleu.version"]) == ("anyorder.0.1.0", "2.6.0")


@pytest.mark.parametrize("text", ["order", "order:x|:y", "|x"])
def test_what_is_not_a_signature(text: str) -> None:
    with pytest.raises(InputError, match="is not part of a signature"):
        Signature.parse(text)


@pytest.mark.parametrize("key", ["", "a:b", "a|b"])
def test_keys_that_would_not_parse_back(key: str) -> None:
    with pytest.raises(ValueError, match="cannot be a key"):
        Signature({key: 1})


def test_more_settings() -> None:
    signature = Signature(order="margin").with_settings("bleu.", tok="13a")
    assert str(signature) == "order:margin|bleu.tok:13a"
    assert hash(signature) == hash(Signature.parse(str(signature)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed -1: expected a whole number of at least 0"),
        ({"batch_tokens": 0}, "batch_tokens 0: expected a whole number of at least 1"),
        ({"seed": 1.5}, "seed 1.5: expected a whole number of at least 0"),
        ({"temperature": 1, "top_k": 2.5}, "top_k 2.5: expected a whole number of at least 0"),
        ({"temperature": 1, "top_k": float("nan")}, "top_k nan: expected a whole number of at least 0"),
        ({"temperature": 1, "top_k": "5"}, "top_k 5: expected a whole number of at least 0"),
        ({"temperature": "hot"}, "temperature hot: expected a number of at least 0 and at most 100"),
        ({"temperature": 1, "rank_by": None}, "rank_by None: expected best or sampled"),
        ({"guidance": float("nan")}, "guidance nan: expected a number of at least 0"),
        ({"guidance": "high"}, "guidance high: expected a number of at least 0"),
        ({"cache": None}, "cache None: expected none, prefix, dual, prefix:K or dual:K"),
        ({"cache": "dual:0"}, "cache dual:0: expected none"),
        ({"order": "margn"}, "unknown order 'margn'"),
        ({"schedule": "two"}, "unknown schedule 'two'"),
        ({"revision": "some"}, "unknown revision 'some'"),
        ({"length": "long"}, "unknown length 'long'"),
    ],
)
def test_a_config_checks_itself(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DecodingConfig(**options)

import pytest

from anyorder.data.text import Text, TextConfig, check_language
from anyorder.errors import InputError


@pytest.mark.parametrize(
    ("language", "line", "words"),
    [
        ("en", "Don't panic, it's (mostly) harmless.", "Don 't panic , it 's ( mostly ) harmless ."),
        ("de", "Er sagte: „Ja“ – z.B. 3,5 %.", 'Er sagte : " Ja " - z.B. 3,5 % .'),
        ("en", "a\tb\u2028c\x00d", "a b c d"),
        ("zh", "我们使用 Python 3.11，很好。", "我们 使用 Python 3.11 ， 很 好 。"),
    ],
)
def test_words(language: str, line: str, words: str) -> None:
    assert Text(language).words(line) == words


def test_no_normalisation_keeps_quotation_marks() -> None:
    assert "„" in Text("de", TextConfig(normalize=False)).words("„Ja“")


@pytest.mark.parametrize(("rule", "expected"), [("keep", "Şi ţară"), ("comma", "Și țară"), ("plain", "Si tara")])
def test_romanian_letters(rule: str, expected: str) -> None:
    assert Text("ro", TextConfig(romanian=rule)).words("Şi ţară") == expected  # type: ignore[arg-type]


def test_lowercase_drops_accents() -> None:
    assert Text("de", TextConfig(lowercase=True)).words("Über Ärger") == "uber arger"


@pytest.mark.parametrize(
    ("language", "sentence"),
    [("en", "Republican leaders justified their policy, he said."), ("zh", "我们在GitHub上使用Python 3.11，很好。")],
)
def test_sentence_undoes_words(language: str, sentence: str) -> None:
    text = Text(language)
    assert text.sentence(text.words(sentence).split()) == sentence


def test_unknown_language_suggests_one() -> None:
    with pytest.raises(InputError, match="unknown language 'deu': did you mean 'de'"):
        check_language("deu")


@pytest.mark.parametrize("language", ["de", "en"])
def test_a_long_row_of_dots_takes_no_time(language: str) -> None:
    for dots in ("." * 300_000, "…" * 300_000):
        words = Text(language).words(f"a {dots} b {'.' * 99}").split()
        assert [len(word) for word in words] == [1, 100 if dots[0] == "." else 300, 1, 99]

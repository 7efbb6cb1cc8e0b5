from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder.data.text import (
    CLAUSE_ENDS,
    SENTENCE_ENDS,
    Text,
    TextConfig,
    check_language,
    fitting_spans,
    pieces,
    words_to_split,
)
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


def split(line: str, room: int) -> list[str]:
    """The parts of a line of words, each word one subword."""
    words = words_to_split(line)
    return [" ".join(words[start:end]) for start, end in fitting_spans(words, [1] * len(words), room)]


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("de", "Am 3. Mai kam Dr. Meier z.B. um 9.30 Uhr. Er ging.", ["Am 3. Mai kam Dr. Meier z.B. um 9.30 Uhr .", "Er ging ."]),
        ("en", "Mr. Smith paid 3.50 on 3. May. He left; I stayed.", ["Mr. Smith paid 3.50 on 3 . May .", "He left ;", "I stayed ."]),
        ("en", 'He asked: "Why?" "Because!" she said.', ['He asked : " Why ? "', '" Because ! "', "she said ."]),
        ("en", "(It rains.) Really?! Yes... No.", ["( It rains . )", "Really ? !", "Yes ...", "No ."]),
        ("zh", "他来了。真的吗？“是的！”好；再见。", ["他来 了 。", "真的 吗 ？", '" 是 的 ！ "', "好 ；", "再见 。"]),
    ],
)  # fmt: skip
def test_sentence_boundaries(language: str, text: str, sentences: list[str]) -> None:
    words = words_to_split(Text(language).words(text))
    assert [" ".join(words[first:after]) for first, after in pieces(words, SENTENCE_ENDS)] == sentences


def test_sentence_ends_inside_of_words() -> None:
    """As Moses' rules leave Japanese."""
    assert split("彼は来た。本当 ？ はい。", 2) == ["彼は来た。", "本当 ？", "はい。"]


def test_parts_hold_as_many_sentences_as_fit() -> None:
    assert split("a b . c d . e f .", 6) == ["a b . c d .", "e f ."]
    assert split("a b . c d . e f .", 8) == ["a b . c d .", "e f ."]
    assert split("a b . c d . e f .", 9) == ["a b . c d . e f ."]


def test_a_sentence_that_does_not_fit_is_split_after_clauses() -> None:
    assert split("x . a b , c d , e f . y .", 6) == ["x . a b ,", "c d , e f .", "y ."]


def test_a_clause_that_does_not_fit_is_cut_after_a_word() -> None:
    assert split("a b c d e , f g .", 4) == ["a b c d", "f g ."]
    assert fitting_spans(["ab", "cdef", ",", "g"], [2, 4, 1, 1], 4) == [(0, 2), (7, 8)]
    assert fitting_spans(["abcdefgh"], [8], 3) == [(0, 3)]


WORDS = st.sampled_from(["a", "Haus", "3", ")", '"', "“", *sorted(SENTENCE_ENDS), *sorted(CLAUSE_ENDS)])


@given(st.lists(st.tuples(WORDS, st.integers(1, 4)), min_size=1, max_size=60), st.integers(1, 30))
def test_parts_fit_keep_their_order_and_lose_nothing_needlessly(text: list[tuple[str, int]], room: int) -> None:
    words, sizes = ([pair[i] for pair in text] for i in (0, 1))
    spans = fitting_spans(words, sizes, room)
    assert all(0 < end - start <= room for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert spans[0][0] == 0
    starts = [sum(sizes[:i]) for i in range(len(words) + 1)]
    for _, end in spans:
        following = next((start for start, _ in spans if start >= end), starts[-1])
        if following > end:  # something was cut off: up to a clause boundary, and it did not fit
            assert following == starts[-1] or words[starts.index(following) - 1] in CLAUSE_ENDS | {")", '"', "“"}
            begin = next(start for start, other in spans if other == end)
            assert following - begin > room


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8), min_size=1), st.integers(9, 30))
def test_no_word_is_lost_where_every_sentence_fits(sentences: list[list[str]], room: int) -> None:
    words = [word for sentence in sentences for word in (*sentence, ".")]
    spans = fitting_spans(words, [1] * len(words), room)
    assert [word for start, end in spans for word in words[start:end]] == words
    assert all(words[end - 1] == "." for _, end in spans)
    for (start, end), _ in pairwise(spans):
        assert words.index(".", end) + 1 - start > room  # the next sentence did not fit any more

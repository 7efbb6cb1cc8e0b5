from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder.data.vocabulary import SPECIALS, Vocabulary
from anyorder.errors import InputError

LETTERS = "abcdeé<>/mask"
SMALL = Vocabulary.learn(dict.fromkeys(LETTERS, 50) | {"abba": 9, "abbe": 7}, 40)


def test_special_tokens_come_first() -> None:
    assert (SMALL.eos, SMALL.pad, SMALL.unk, SMALL.mask) == (1, 2, 3, 5)
    assert SMALL.first_word == len(SPECIALS)


@given(st.lists(st.text(LETTERS, min_size=1), min_size=1))
def test_words_come_back(words: list[str]) -> None:
    ids = SMALL.encode([" ".join(words)])[0]
    assert min(ids) >= SMALL.first_word
    assert SMALL.words(ids) == words


def test_a_special_token_in_the_text_is_only_text() -> None:
    ids = SMALL.encode(["<mask> </s>"])[0]
    assert SMALL.mask not in ids
    assert SMALL.eos not in ids


def test_unknown_letters_become_unk() -> None:
    assert SMALL.encode(["aZa"])[0].count(SMALL.unk) == 1


def test_pieces_show_where_a_word_goes_on() -> None:
    assert "".join(SMALL.pieces(SMALL.encode(["abbad"])[0])).replace("@@", "") == "abbad"
    assert SMALL.pieces(SMALL.encode(["abbad"])[0])[0].endswith("@@")


def test_saved_and_loaded(tmp_path: Path) -> None:
    SMALL.save(tmp_path)
    loaded = Vocabulary.load(tmp_path)
    assert loaded.fingerprint == SMALL.fingerprint
    assert loaded.encode(["abba bad"]) == SMALL.encode(["abba bad"])


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match="too small"):
        Vocabulary.learn({"abc": 50}, 8)


@pytest.mark.parametrize("content", ["", "{}", '{"version": "1.0"}'])
def test_damaged_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match="not a tokenizer file"):
        Vocabulary.load(tmp_path)

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyorder.data.vocabulary import SPECIALS, Vocabulary, learn_merges, spell
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


def merge(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    i = 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


def learn_slowly(counts: dict[str, int], alphabet: set[str], size: int) -> list[tuple[str, str]]:
    """The definition: count all pairs anew after every merge."""
    words = {word: spell(word) for word in counts}
    symbols, merges = set(alphabet), []
    while len(symbols) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in counts.items():
            for pair in zip(words[word], words[word][1:], strict=False):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < 2:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        symbols.add(best[0] + best[1])
        words = {word: merge(parts, best) for word, parts in words.items()}
    return merges


words = st.dictionaries(st.text("abc", min_size=1, max_size=8), st.integers(1, 5), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(words, st.integers(0, 25))
def test_merges_are_those_of_the_definition(counts: dict[str, int], more: int) -> None:
    alphabet = {symbol for word in counts for symbol in spell(word)}
    size = len(alphabet) + more
    assert learn_merges(counts, alphabet, size) == learn_slowly(counts, alphabet, size)


@settings(max_examples=50, deadline=None)
@given(words, st.randoms())
def test_the_order_of_the_counts_does_not_matter(counts: dict[str, int], random: object) -> None:
    alphabet = {symbol for word in counts for symbol in spell(word)}
    shuffled = list(counts.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert learn_merges(dict(shuffled), alphabet, 30) == learn_merges(counts, alphabet, 30)


@settings(max_examples=50, deadline=None)
@given(words, words)
def test_the_tokenizer_applies_the_merges_in_the_order_learned(counts: dict[str, int], unseen: dict[str, int]) -> None:
    letters = dict.fromkeys("abc", 100)
    vocabulary = Vocabulary.learn({**counts, **letters}, len(SPECIALS) + 30, min_character=1)
    alphabet = {form for letter in "abc" for form in (letter, letter + "</w>")}
    merges = learn_merges({**counts, **letters}, alphabet, 30)
    for word in unseen:
        parts = spell(word)
        while len(parts) > 1:
            possible = [pair for pair in itertools.pairwise(parts) if pair in merges]
            if not possible:
                break
            parts = merge(parts, min(possible, key=merges.index))
        assert vocabulary.pieces(vocabulary.encode([word])[0]) == [
            part.removesuffix("</w>") if part.endswith("</w>") else part + "@@" for part in parts
        ]

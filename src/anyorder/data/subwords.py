"""Subwords as readers see them: `@@` where a word goes on."""

from collections.abc import Sequence

CONTINUES = "@@"


def join_subwords(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """The words of subwords that end in `@@` where a word goes on, and the index of each subword's word.

    >>> join_subwords(["Aff@@", "le@@", "x", "'s", "film"])
    (['Afflex', "'s", 'film'], [0, 0, 0, 1, 2])
    """
    words: list[str] = []
    word_of: list[int] = []
    goes_on = False
    for token in tokens:
        if not goes_on:
            words.append("")
        goes_on = token.endswith(CONTINUES) and len(token) > len(CONTINUES)
        words[-1] += token[: -len(CONTINUES)] if goes_on else token
        word_of.append(len(words) - 1)
    return words, word_of

"""Readable subwords: `@@` means that the word continues."""

from collections.abc import Sequence

CONTINUES = "@@"


def join_subwords(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """Join subwords, which end in `@@` if the word continues; also returns each subword's word index.

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

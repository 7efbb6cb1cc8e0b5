"""Split a text that is too long for a model: at sentence boundaries, else at clause boundaries, else cut.

Works on words as `Text.words` separates them, which keeps the period of an abbreviation (`Dr.`, `z.B.`, `9.30`) on its
word. Knows nothing of ids or models.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

Span = tuple[int, int]
"""Indices of the first subword and of the one after the last."""

# Moses keeps these inside a word if the text has no spaces.
_SPACELESS_ENDS = "。．｡！？；"
SENTENCE_ENDS = frozenset([".", "!", "?", ";", "...", "…", *_SPACELESS_ENDS, *"؟۔؛।॥։።។။"])
CLAUSE_ENDS = SENTENCE_ENDS | frozenset([",", ":", "-", "–", "—", "|", *"，、：،"])
_CLOSING = frozenset([")", "]", "}", "'", "’", *"）】》〉」』"])
_QUOTES = frozenset(['"', "''", *"„“”«»"])
_INSIDE_A_WORD = re.compile(rf"([{_SPACELESS_ENDS}])(?=[^\s{_SPACELESS_ENDS}])")


def words_to_split(line: str) -> list[str]:
    """The words of a line, split after sentence ends inside them if the language has no spaces.

    >>> words_to_split("來了。真的？ 好 。")
    ['來了。', '真的？', '好', '。']
    """
    return _INSIDE_A_WORD.sub(r"\1 ", line).split()


def fitting_spans(words: Sequence[str], sizes: Sequence[int], room: int) -> list[Span]:
    """The parts of a text, in order, each with at most `room` subwords.

    A part holds as many whole sentences as fit. A sentence that does not fit is split into clauses, and a clause that
    does not fit either is truncated after the last word that fits; only then are subwords left out.

    sizes: number of subwords in each word.

    >>> fitting_spans("a b . c d . e f .".split(), [1] * 9, 6)
    [(0, 6), (6, 9)]
    """
    starts = [0, *accumulate(sizes)]
    parts: list[Span] = []
    for start, end in _fitting_pieces(words, starts, room):
        if parts and parts[-1][1] == start and end - parts[-1][0] <= room:
            parts[-1] = (parts[-1][0], end)
        else:
            parts.append((start, end))
    return parts


def _fitting_pieces(words: Sequence[str], starts: Sequence[int], room: int) -> Iterator[Span]:
    """Sentences, or clauses of those that do not fit. starts: the first subword of each word, and the end."""
    for first, after in pieces(words, SENTENCE_ENDS):
        if starts[after] - starts[first] <= room:
            yield starts[first], starts[after]
            continue
        for clause_first, clause_after in pieces(words[first:after], CLAUSE_ENDS):
            yield _cut(starts[first + clause_first : first + clause_after + 1], room)


def _cut(starts: Sequence[int], room: int) -> Span:
    """All words that fit; the beginning of the first one if not even that fits."""
    fits = [end for end in starts[1:] if end - starts[0] <= room]
    return starts[0], fits[-1] if fits else starts[0] + room


def pieces(words: Sequence[str], ends: Collection[str]) -> Iterator[tuple[int, int]]:
    """Word ranges that end with one of `ends` and the closing quotes and brackets after it."""
    first, ended, in_quotes = 0, False, False
    for i, word in enumerate(words):
        belongs = word in ends or word in _CLOSING or (word in _QUOTES and in_quotes)
        if ended and not belongs:
            yield first, i
            first, ended = i, False
        is_ordinal = word == "." and i > 0 and words[i - 1].isdecimal()  # am 3. Mai
        ended |= (word in ends or word[-1] in _SPACELESS_ENDS) and not is_ordinal
        in_quotes ^= word in _QUOTES
    if first < len(words):
        yield first, len(words)

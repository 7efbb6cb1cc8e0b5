"""Turn a raw line into words and back: Moses (sacremoses), Romanian letters, Chinese words (jieba).

A text that is too long for a model is split at sentence boundaries, else at clause boundaries, else cut. That works on
words as `Text.words` separates them, which keeps the period of an abbreviation (`Dr.`, `z.B.`, `9.30`) on its word.
Knows nothing of ids or models.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Literal

import sacremoses

from anyorder.errors import InputError, unknown

# ISO 639-1. Moses has rules for about thirty of these and uses its English ones for the rest.
_CODES = """
    af am ar as az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy id is it ja ka kk km kn
    ko ky la lb lo lt lv mg mk ml mn mr ms mt my nb ne nl nn no oc or pa pl ps pt ro ru si sk sl so sq sr sv sw ta te tg
    th tk tl tr tt uk ur uz vi xh yi yo zh zu
"""
LANGUAGES = tuple(_CODES.split())


@dataclass(frozen=True)
class TextConfig:
    """How raw lines become words. Stores and models save it, so that they always process text in the same way."""

    normalize: bool = True
    """Normalize punctuation (quotes, dashes, spaces) with the Moses rules before tokenizing."""
    romanian: Literal["keep", "comma", "plain"] = "keep"
    """Romanian letters: unchanged (keep), with commas instead of cedillas (comma), or without diacritics (plain)."""
    lowercase: bool = False
    """Lowercase and strip accents, as XLM's own models expect."""


def separator(language: str) -> str:
    """What separates two sentences of a language."""
    return "" if language in ("ja", "zh") else " "


def check_language(code: str) -> str:
    if code not in LANGUAGES:
        raise unknown("language", code, LANGUAGES)
    return code


class Text:
    """Splits the text of one language into words and joins them again.

    >>> Text("en").words("Don't panic, it's (mostly) harmless.")
    "Don 't panic , it 's ( mostly ) harmless ."
    """

    def __init__(self, language: str, config: TextConfig | None = None):
        self.language = check_language(language)
        self.config = config or TextConfig()
        moses = "en" if language == "zh" else language
        self._normalizer = sacremoses.MosesPunctNormalizer(lang=moses)
        self._tokenizer = sacremoses.MosesTokenizer(lang=moses)
        self._detokenizer = sacremoses.MosesDetokenizer(lang=moses)

    def words(self, line: str) -> str:
        """The words of a raw line, separated by single spaces."""
        line = _MANY_DOTS.sub(r"\1", line.translate(_CONTROL))
        if self.language == "ro" and self.config.romanian != "keep":
            line = line.translate(_CEDILLA if self.config.romanian == "comma" else _PLAIN)
        if self.config.normalize:
            line = self._normalizer.normalize(line)
        if self.language == "zh":
            words = " ".join(word for word in _jieba().cut(line) if not word.isspace())
        else:
            words = self._tokenizer.tokenize(line, escape=False, return_str=True)
        return _without_accents(words.lower()) if self.config.lowercase else words

    def sentence(self, words: list[str]) -> str:
        """Words joined into normal text, with spaces where the language has them."""
        if self.language == "zh":
            return _SPACE_BETWEEN_HAN.sub("", " ".join(words))
        return self._detokenizer.detokenize(words, unescape=False)


def _without_accents(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")


# Control characters such as tabs, and the line separators that some tools treat as line ends, become spaces.
_CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF], " ")
# An unpaired surrogate, which no tokenizer accepts, becomes the replacement character.
_CONTROL |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
# Moses takes time quadratic in the length of a run of dots.
_MANY_DOTS = re.compile(r"([.…]{100})[.…]+")
_CEDILLA = str.maketrans("ŞşŢţ", "ȘșȚț")
_PLAIN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")
_HAN = r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]"
_SPACE_BETWEEN_HAN = re.compile(rf"(?<={_HAN}) | (?={_HAN})")


@cache
def _jieba() -> Any:
    try:
        import jieba
    except ImportError:
        raise InputError("Chinese needs the package jieba: pip install jieba") from None
    jieba.setLogLevel("ERROR")
    jieba.initialize()
    return jieba


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

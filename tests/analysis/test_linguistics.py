"""Language and order: by hand on the paper's sentences, and against definitions spelled out on random ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder.analysis import linguistics, order_metrics
from anyorder.analysis.linguistics import Annotation, Text
from anyorder.analysis.order_metrics import Array
from anyorder.analysis.results import Statistic
from tests.analysis.paper import AFFLECK, MOSTLY_LEFT_TO_RIGHT, TEARGAS

PRINTED = [TEARGAS, AFFLECK, MOSTLY_LEFT_TO_RIGHT]
SENTENCES = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b@@", "c@@", "."]), st.integers(1, 6)), max_size=8),
    min_size=1,
    max_size=4,
)


def ranks(name: str, steps: list[list[int]]) -> Array:
    """(1, tokens) what `ranked` says of all sentences."""
    several = [order_metrics.ranked(np.array(one, int)) for one in steps if one]
    return np.concatenate([np.zeros(0, int), *(getattr(one, name) for one in several)])[None]


def shares(ratio: Statistic) -> tuple[list[float], list[float]]:
    denominators, numerators = ratio.columns[0].T
    return numerators.tolist(), denominators.tolist()


def test_suffixes_of_the_papers_sentences() -> None:
    """'x' of 'Afflex' was filled after both neighbors, 'le@@' was not; of the last sentence's suffixes none was."""
    text = Text([one.tokens for one in PRINTED])
    sentences, suffixes = linguistics.suffixes_last(text, ranks("earlier", [one.steps for one in PRINTED])).values()
    assert shares(sentences) == ([0, 1, 0], [0, 1, 1])
    assert shares(suffixes) == ([0, 1, 0], [0, 2, 3])


@given(SENTENCES)
def test_suffixes_as_defined(sentences: list[list[tuple[str, int]]]) -> None:
    tokens, steps = ([[pair[i] for pair in one] for one in sentences] for i in (0, 1))
    by_sentence, by_suffix = linguistics.suffixes_last(Text(tokens), ranks("earlier", steps)).values()
    for number, (words, order) in enumerate(zip(tokens, steps, strict=True)):
        places = [i for i in range(1, len(words) - 1) if words[i - 1].endswith("@@")]
        late = [i for i in places if order[i] > order[i - 1] and order[i] > order[i + 1]]
        assert by_suffix.columns[0, number].tolist() == [len(places), len(late)]
        assert by_sentence.columns[0, number].tolist() == [bool(places), bool(late)]


def test_constituents_of_the_papers_sentence() -> None:
    """'any injuries' was written in steps 9 and 10; 'of any injuries' (7, 9, 10) and 'tear gas' (8, 6) had a break."""
    spans = [(5, 7), (4, 7), (17, 19), (13, 19), (10, 13)]
    text = Text([TEARGAS.tokens], [Annotation(None, spans)])
    found = linguistics.constituents_at_once(text, ranks("earlier", [TEARGAS.steps]), ranks("until", [TEARGAS.steps]))
    assert shares(found["constituent sentence share"]) == ([1], [1])
    assert shares(found["constituent share"]) == ([2], [5])  # the other is 'people are crying'


@given(SENTENCES, st.data())
def test_constituents_as_defined(sentences: list[list[tuple[str, int]]], data: st.DataObject) -> None:
    steps = [[step for _, step in one] for one in sentences]
    spans = []
    for one in steps:
        possible = [(a, b) for a in range(len(one)) for b in range(a + 2, len(one) + 1)]
        spans.append(data.draw(st.lists(st.sampled_from(possible), max_size=3)) if possible else [])
    text = Text([["a"] * len(one) for one in steps], [Annotation(None, constituents) for constituents in spans])
    by_sentence, by_constituent = linguistics.constituents_at_once(
        text, ranks("earlier", steps), ranks("until", steps)
    ).values()
    for number, (one, constituents) in enumerate(zip(steps, spans, strict=True)):
        at_once = 0
        for a, b in constituents:
            window = range(min(one[a:b]), max(one[a:b]) + 1)
            at_once += not any(one[i] in window for i in range(len(one)) if not a <= i < b)
        assert by_constituent.columns[0, number].tolist() == [len(constituents), at_once]
        assert by_sentence.columns[0, number, 1] == (at_once > 0)


def test_steps_by_tag_and_kind_of_word() -> None:
    text = Text([["The", "hap@@", "py", "end", "."], ["It"]], [Annotation(["DET", "ADJ", "NOUN", "PUNCT"], None), Annotation(["PRON"], None)])  # fmt: skip
    found = linguistics.steps_by_tag(text, ranks("relative", [[5, 1, 3, 2, 4], [1]]))
    assert shares(found["tag DET"]) == (pytest.approx([0.9, 0]), [1, 0])
    assert shares(found["tag ADJ"]) == (pytest.approx([0.1 + 0.5, 0]), [2, 0])
    assert shares(found["function word step"]) == (pytest.approx([0.9, 0.5]), [1, 1])
    assert shares(found["content word step"]) == (pytest.approx([0.1 + 0.5 + 0.3, 0]), [3, 0])
    assert linguistics.steps_by_tag(Text([["a"]]), ranks("relative", [[1]])) == {}


def test_correlation_with_frequency() -> None:
    random = np.random.default_rng(2)
    steps = [random.permutation(n) + 1 for n in (3, 1, 8, 5)]
    frequencies = random.normal(3, 1, 17)
    text = Text([["a"] * len(one) for one in steps])
    relative = ranks("relative", [one.tolist() for one in steps])
    moments = linguistics.frequency_moments(text, relative, frequencies)
    expected = np.corrcoef(frequencies, relative[0])[0, 1]
    assert linguistics.correlation(moments.sum(1))[0] == pytest.approx(expected)
    assert np.isnan(linguistics.correlation(np.zeros(6)))


def test_repetitions() -> None:
    words = [["after", "using", "tear", "gas", "gas", "."], ["The", "the", ".", ".", "end"], [], ["no"]]
    found, pairs = linguistics.repetitions(words)
    assert (found.tolist(), pairs.tolist()) == ([1, 1, 0, 0], [4, 1, 0, 0])
    # Of "the the end", two of three orders have one pair of equal neighbors among their two pairs.
    drawn = linguistics.shuffled_repetitions(words, 4000, np.random.default_rng(1)).mean(0)
    assert drawn == pytest.approx([4 * (1 / 10), 1 / 3, 0, 0], abs=0.02)


def test_sums_by_owner_include_owners_without_items() -> None:
    values = np.array([[1.0, 2, 4, 8], [1, 1, 1, 1]])
    assert linguistics.sum_by(values, np.array([1, 1, 3, 3]), 5).tolist() == [[0, 3, 0, 12, 0], [0, 2, 0, 2, 0]]


def test_words_of_subwords() -> None:
    assert linguistics.join_subwords([]) == ([], [])
    assert linguistics.join_subwords(["a@@", "b@@"]) == (["ab"], [0, 0])  # cut off in the middle of a word
    assert linguistics.join_subwords(["@@", "x"]) == (["@@", "x"], [0, 1])


def test_what_does_not_vary_is_not_correlated() -> None:
    moments = np.array([4.0, 1.0, 2.0, 5.0, 1.0, 0.5])  # y is .5 each time: n yy = y * y
    assert np.isnan(linguistics.correlation(moments))

import functools
import operator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anyorder.data.packing import Side, pack, pack_sentences, ranges

sentences = st.lists(st.lists(st.integers(10, 99), max_size=6), min_size=1, max_size=8)


@given(sentences, sentences, st.lists(st.tuples(st.integers(0, 1), st.integers(0, 7)), min_size=1, max_size=9))
def test_pack_is_a_loop_over_sentences(first: list[list[int]], second: list[list[int]], wanted: list) -> None:
    both = [first, second]
    wanted = [(side, number % len(both[side])) for side, number in wanted]
    sides = [
        Side(
            np.array(functools.reduce(operator.iadd, one, []), np.int64), np.cumsum([len(sentence) for sentence in one])
        )
        for one in both
    ]
    side, number = (np.array(column) for column in zip(*wanted, strict=True))
    row = pack(sides, side, number, side + 5, eos=1)
    chosen = [[1, *both[s][n], 1] for s, n in wanted]
    assert row.tokens.tolist() == functools.reduce(operator.iadd, chosen, [])
    assert row.positions.tolist() == [i for one in chosen for i in range(len(one))]
    assert row.languages.tolist() == [s + 5 for (s, _), one in zip(wanted, chosen, strict=True) for _ in one]
    assert row.sizes.tolist() == [len(one) for one in chosen]
    assert row.tokens[row.inner].tolist() == [token for one in chosen for token in one[1:-1]]


def test_pack_sentences() -> None:
    row = pack_sentences([[7, 8], np.array([9])], np.array([0, 1]), eos=1)
    assert row.tokens.tolist() == [1, 7, 8, 1, 1, 9, 1]
    assert row.languages.tolist() == [0, 0, 0, 0, 1, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_ranges(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(pairs, np.int64).reshape(-1, 2).T
    assert ranges(starts, lengths).tolist() == [start + i for start, length in pairs for i in range(length)]

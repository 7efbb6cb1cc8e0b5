import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anyorder.decoding.state import Hypothesis
from anyorder.tasks.translation import join_hypotheses, share_length


@given(st.integers(1, 500), st.lists(st.integers(1, 62), min_size=1, max_size=9))
def test_shares_of_a_length(length: int, sizes: list[int]) -> None:
    shares = share_length(length, sizes, room=10**6)
    assert min(shares) >= 1
    for share, size in zip(shares, sizes, strict=True):
        assert abs(share - length * size / sum(sizes)) <= 1
    if length >= 2 * sum(sizes):  # no share is rounded up to 1
        assert sum(shares) == length
    assert share_length(length, sizes, room=5) == [min(share, 5) for share in shares]


def test_hypotheses_end_to_end() -> None:
    one = Hypothesis(
        np.array([7, 8]), np.array([2, 3]), np.array([-1.0, -2.0]), [(0, 1, 9, -3.0), (0, 2, 7, -1.0), (1, 3, 8, -2.0)]
    )
    two = Hypothesis(np.array([5]), np.array([1]), np.array([-0.5]), [(0, 1, 5, -0.5)])
    joined = join_hypotheses([one, two])
    assert joined.ids.tolist() == [7, 8, 5]
    assert joined.steps.tolist() == [2, 3, 4]
    assert joined.logprobs.tolist() == [-1.0, -2.0, -0.5]
    assert joined.writes == [(0, 1, 9, -3.0), (0, 2, 7, -1.0), (1, 3, 8, -2.0), (2, 4, 5, -0.5)]
    assert join_hypotheses([one]) is one

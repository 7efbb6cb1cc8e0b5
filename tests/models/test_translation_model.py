import numpy as np
import torch

from anyorder.models.native.translation_model import REACH, LengthTable, likely_lengths, offset_class, pool


def test_the_table_keeps_what_was_seen_most() -> None:
    source = np.array([3, 3, 3, 3, 3, 7])
    target = np.array([4, 5, 5, 2, 4, 9])
    table = LengthTable.count({"de-en": (source, target)})
    assert table.candidates("de-en", 3, 2) == [4, 5]  # twice each: the shorter first
    assert table.candidates("de-en", 3, 9) == [4, 5, 2]
    assert table.candidates("de-en", 8, 1) == [10]  # nearest seen is 7, one longer


def test_likely_lengths_are_possible_ones() -> None:
    scores = np.zeros((2, 2 * REACH + 1))
    scores[0, offset_class(np.array([3]), np.array([1]))] = 5
    scores[0, offset_class(np.array([3]), np.array([4]))] = 9
    scores[1, 0] = 100  # 64 shorter than a source of 10: impossible
    found = likely_lengths(scores, np.array([3, 10]), 2, longest=20)
    assert found[0] == [4, 1]
    assert all(1 <= length <= 20 for length in found[1])


def test_classes_are_clipped() -> None:
    assert offset_class(np.array([5, 200, 5]), np.array([7, 1, 300])).tolist() == [REACH + 2, 0, 2 * REACH]


def test_pool_is_the_mean_of_each_sentence() -> None:
    states = torch.arange(10.0).reshape(5, 2)
    found = pool(states, torch.tensor([0, 0, 0, 1, 1]), 3, torch.tensor([True, True, False, True, True]))
    assert found.tolist() == [[1.0, 2.0], [7.0, 8.0], [0.0, 0.0]]
    assert pool(states, torch.tensor([0] * 5), 1).tolist() == [[4.0, 5.0]]

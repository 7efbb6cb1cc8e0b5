from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import (
    REACH,
    LengthPredictor,
    LengthTable,
    ModelConfig,
    likely_lengths,
    offset_class,
    pool,
)
from tests.conftest import tiny


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
    assert pool(states[:1], torch.tensor([0]), 1).tolist() == [[0.0, 1.0]]


def test_lengths_are_predicted_from_the_source_its_length_and_the_language() -> None:
    torch.manual_seed(1)
    predictor = LengthPredictor(8, 20, 2)
    pooled, lengths, languages = torch.randn(3, 8), torch.tensor([4, 4, 9]), torch.tensor([0, 1, 1])
    states = pooled + predictor.source_length.weight[lengths] + predictor.language.weight[languages]
    torch.testing.assert_close(predictor(pooled, lengths, languages), predictor.outer(F.gelu(predictor.inner(states))))


def test_directions_that_a_model_was_trained_in() -> None:
    config = ModelConfig(TransformerConfig(), 100, ("de", "en", "ro"), trained_directions=("de-en", "en-de"))
    assert list(config.directions) == ["de-en", "en-de"]
    with pytest.raises(InputError, match="not all are pairs of its languages"):
        replace(config, trained_directions=("de-en", "de-fr"))


def test_every_word_may_be_filled_in_and_no_special_token(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    assert np.flatnonzero(~model.allowed_tokens).tolist() == list(range(vocabulary.first_word))

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.models.native.attention import FullAttention, QueryPositions, Segments
from anyorder.models.native.transformer import TransformerConfig, rowwise_linear
from tests.conftest import tiny


def test_places_are_rows_of_the_whole(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    tokens = torch.arange(6, 26)
    segments = Segments.of(np.array([12, 8]))
    inputs = tokens, torch.arange(20), torch.zeros(20, dtype=torch.int64)
    whole = model.transformer(*inputs, FullAttention(segments))
    rows = torch.tensor([0, 3, 11, 19])
    some = model.transformer(*inputs, FullAttention(segments), QueryPositions(rows, Segments.of(np.array([3, 1]))))
    assert torch.allclose(some, whole[rows], atol=1e-5)


@pytest.mark.parametrize("inputs", [64, 512, 513, 2048])
def test_rowwise_linear_is_linear(inputs: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(37, inputs), torch.randn(96, inputs) / inputs**0.5, torch.randn(96)
    assert torch.allclose(rowwise_linear(x, weight, bias), F.linear(x, weight, bias), atol=1e-5)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 256), (512, 512), (512, 2048), (2048, 512), (512, 4000)])
def test_a_row_gets_the_same_bits_in_any_company(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1500, inputs), torch.randn(outputs, inputs) / inputs**0.5, torch.randn(outputs)
    whole = rowwise_linear(x, weight, bias)
    for start, rows in [(0, 1), (3, 2), (700, 15), (11, 16), (5, 57), (40, 130), (100, 300), (2, 1033)]:
        part = slice(start, start + rows)
        assert torch.equal(rowwise_linear(x[part].contiguous(), weight, bias), whole[part]), (start, rows)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(InputError, match="not a multiple"):
        TransformerConfig(hidden_size=100, num_heads=8)

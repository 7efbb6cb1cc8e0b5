import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.models.native.attention import (
    FullAttention,
    QueryPositions,
    Segments,
    SourceIsolated,
    _has_triton,
    attend,
)

HEADS, SIZE = 2, 8


def numbers(tokens: int, seed: int) -> Tensor:
    return torch.randn(tokens, HEADS, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """The definition, in double precision. allowed: (queries, keys) bool"""
    scores = torch.einsum("qhs,khs->hqk", query, key) / SIZE**0.5
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khs->qhs", weights, value)


def same_segment(a: list[int], b: list[int]) -> Tensor:
    rows = torch.repeat_interleave(torch.arange(len(a)), torch.tensor(a))
    columns = torch.repeat_interleave(torch.arange(len(b)), torch.tensor(b))
    return rows[:, None] == columns[None]


@pytest.mark.parametrize("lengths", [[1], [3, 17, 16, 2], [40, 1, 33, 16, 15]])
def test_packed_attention_is_attention_within_segments(lengths: list[int]) -> None:
    total = sum(lengths)
    q, k, v = (numbers(total, seed) for seed in range(3))
    segments = Segments.of(np.array(lengths))
    expected = slow(q, k, v, same_segment(lengths, lengths))
    assert torch.allclose(attend(q, torch.stack([k, v], 1), segments, segments), expected, atol=1e-12)


def test_queries_and_keys_of_different_lengths_and_none() -> None:
    queries, keys = [2, 0, 20, 1], [5, 9, 3, 31]
    q, k, v = numbers(sum(queries), 0), numbers(sum(keys), 1), numbers(sum(keys), 2)
    found = attend(q, torch.stack([k, v], 1), Segments.of(np.array(queries)), Segments.of(np.array(keys)))
    assert torch.allclose(found, slow(q, k, v, same_segment(queries, keys)), atol=1e-12)


def test_the_source_does_not_see_the_target() -> None:
    halves = [4, 6, 19, 3]
    pairs = [10, 22]
    total = sum(halves)
    q, k, v = (numbers(total, seed) for seed in range(3))
    half = torch.repeat_interleave(torch.arange(4), torch.tensor(halves))
    is_target = half % 2 == 1
    allowed = same_segment(pairs, pairs) & (is_target[:, None] | ~is_target[None])
    pattern = SourceIsolated(Segments.of(np.array(pairs)), Segments.of(np.array(halves)), is_target)
    assert torch.allclose(pattern.attend(0, q, torch.stack([k, v], 1), None), slow(q, k, v, allowed), atol=1e-12)
    rows = torch.tensor([5, 9, 30])
    at = QueryPositions(rows, Segments.of(np.array([2, 1])))
    assert torch.allclose(
        pattern.attend(0, q[rows], torch.stack([k, v], 1), at), slow(q[rows], k, v, allowed[rows]), atol=1e-12
    )


def test_what_a_segment_gets_does_not_depend_on_its_neighbours() -> None:
    lengths = [3, 17, 30, 16, 2, 29, 18]
    q, k, v = (numbers(sum(lengths), seed).float() for seed in range(3))
    segments = Segments.of(np.array(lengths))
    together = FullAttention(segments).attend(0, q, torch.stack([k, v], 1), None)
    start = 0
    for length in lengths:
        here = slice(start, start + length)
        alone = FullAttention(Segments.of(np.array([length]))).attend(
            0, q[here], torch.stack([k[here], v[here]], 1), None
        )
        assert torch.equal(together[here], alone)
        start += length


def test_chunks_of_segments_are_the_whole() -> None:
    torch.manual_seed(0)
    queries, keys = Segments.of(np.array([2, 0, 5, 1, 3, 3, 1])), Segments.of(np.array([4, 1, 2, 2, 6, 1, 3]))
    q, both = torch.randn(15, 2, 8, dtype=torch.float64), torch.randn(19, 2, 2, 8, dtype=torch.float64)
    chunks = list(zip(queries.chunks(3), keys.chunks(3), strict=True))
    assert [len(own.cu_seqlens) - 1 for (_, own), _ in chunks] == [3, 3, 1]
    parts = [attend(q[i], both[j], own, other) for (i, own), (j, other) in chunks]
    assert torch.equal(torch.cat(parts), attend(q, both, queries, keys))


def test_the_first_segments_only() -> None:
    segments = Segments.of(np.array([4, 9, 2])).first(2)
    assert segments.cu_seqlens.tolist() == [0, 4, 13]
    assert segments.max_seqlen == 9


def test_host_lengths_are_asked_for() -> None:
    q = numbers(3, 0)
    bare = Segments(torch.tensor([0, 3], dtype=torch.int32), 3)
    with pytest.raises(ValueError, match="host"):
        attend(q, torch.stack([q, q], 1), bare, bare)


@pytest.mark.parametrize(("module", "expected"), [(None, False), (ModuleType("triton"), False)])
def test_a_triton_that_cannot_be_found(
    module: ModuleType | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, or a stand-in without a specification, as some programs put there."""
    monkeypatch.setitem(sys.modules, "triton", module)  # type: ignore[arg-type]
    assert _has_triton() == expected

"""Who attends to whom in a packed batch. The Transformer asks an `AttentionPattern`; it never sees sentences itself.

Sequences are packed end to end, and `Segments` says where each begins. On CUDA in half precision, attention is one
variable-length kernel; elsewhere, sequences of equal (rounded) length go through SDPA together. Rounding depends on the
sequence alone, so its result does not depend on the rest of the batch.

On CUDA, decoding has kernels of its own (`triton_kernels`): sentences are short, but libraries expect long ones. The
usual attention kernels work on blocks of 128 queries; a target has about twenty, so five sixths of the work is wasted.
The kernels have no gradient: training uses the libraries' own, and so does decoding without Triton (it comes with torch
for CUDA on Linux).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.data.packing import padded_rows, round_up, same_shapes, starts_of
from anyorder.device import to_device

MAX_SEGMENTS = 65_535
"""Maximum segments per call of the variable-length kernel: a CUDA grid allows no more blocks in its second axis."""
MAX_SHORT = 256
"""Segments up to this length are short enough for Triton's kernel."""
HEAD_SIZES = (16, 32, 64, 128)
"""Head sizes that Triton's kernel supports."""


def _has_triton() -> bool:
    try:
        return find_spec("triton") is not None
    except ValueError:  # something else has put a module without a specification there
        return False


_HAS_TRITON = _has_triton()
"""A constant, which `torch.compile` can see through."""


@dataclass(eq=False)
class Segments:
    """Sequences of a packed batch, end to end."""

    cu_seqlens: Tensor
    """(segments + 1,) int32 on the device: where each begins, and where the last one ends."""
    max_seqlen: int
    """Length of the longest segment, or an upper bound."""
    lengths: np.ndarray | None = None
    """(segments,) on the host; needed wherever the variable-length kernel cannot run."""
    _plans: dict["Segments", "_Plan"] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, lengths: np.ndarray, device: torch.device | str = "cpu") -> "Segments":
        cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=cu_seqlens[1:])
        max_seqlen = int(lengths.max()) if len(lengths) else 0
        return cls(to_device(cu_seqlens, device), max_seqlen, lengths)

    def first(self, count: int) -> "Segments":
        """Only the first `count` segments."""
        assert self.lengths is not None
        lengths = self.lengths[:count]
        return Segments(self.cu_seqlens[: count + 1], int(lengths.max()), lengths)

    def chunks(self, size: int) -> Iterator[tuple[slice, "Segments"]]:
        """At most `size` segments at a time, with the rows they cover."""
        assert self.lengths is not None
        end = 0
        for first in range(0, len(self.lengths), size):
            lengths = self.lengths[first : first + size]
            start, end = end, end + int(lengths.sum())
            cu_seqlens = self.cu_seqlens[first : first + len(lengths) + 1] - start
            yield slice(start, end), Segments(cu_seqlens, int(lengths.max()), lengths)

    def plan(self, keys: "Segments") -> "_Plan":
        """How these queries attend to those keys in SDPA; computed once for all layers."""
        if keys not in self._plans:
            self._plans[keys] = _Plan(self, keys)
        return self._plans[keys]


@dataclass(frozen=True)
class QueryPositions:
    """Some positions of a packed batch: the only ones at which the last layer is computed."""

    rows: Tensor
    """(queries,) int64, ascending."""
    segments: Segments
    """How many of them are in each segment."""


def attend(query: Tensor, keys_values: Tensor, queries: Segments, keys: Segments) -> Tensor:
    """Attention of segment i of the queries to segment i of the keys and values; all packed.

    query: (tokens, heads, size), keys_values: (tokens, 2, heads, size)
    """
    short = max(queries.max_seqlen, keys.max_seqlen) <= MAX_SHORT and query.shape[-1] in HEAD_SIZES
    if short and runs_triton(query):
        return _attend_short(query, keys_values, queries, keys)
    key, value = keys_values[:, 0], keys_values[:, 1]
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        if len(queries.cu_seqlens) - 1 <= MAX_SEGMENTS:
            return _attend_packed(query, key, value, queries, keys)
        chunks = zip(queries.chunks(MAX_SEGMENTS), keys.chunks(MAX_SEGMENTS), strict=True)
        return torch.cat(
            [
                _attend_packed(query[rows], key[key_rows], value[key_rows], query_segments, key_segments)
                for (rows, query_segments), (key_rows, key_segments) in chunks
            ]
        )
    return queries.plan(keys).attend(query, key, value)


def _attend_packed(query: Tensor, key: Tensor, value: Tensor, queries: Segments, keys: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(query, key, value, queries.cu_seqlens, keys.cu_seqlens, queries.max_seqlen, keys.max_seqlen)
    assert isinstance(out, Tensor)
    return out


def runs_triton(tensor: Tensor) -> bool:
    """Whether Triton's kernels can run on this tensor now."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.is_cuda and half and not torch.is_grad_enabled() and _HAS_TRITON


def _attend_short(query: Tensor, keys_values: Tensor, queries: Segments, keys: Segments) -> Tensor:
    """`attend` in one kernel."""
    from anyorder.models.native.triton_kernels import attention

    tokens, heads, size = query.shape
    out = torch.empty((tokens, heads, size), dtype=query.dtype, device=query.device)
    block_q = min(64, max(16, next_power(queries.max_seqlen)))
    block_k = min(64, max(16, next_power(keys.max_seqlen)))
    grid = (len(queries.cu_seqlens) - 1, heads, -(-queries.max_seqlen // block_q))
    attention[grid](
        query, keys_values, out, queries.cu_seqlens, keys.cu_seqlens,
        query.stride(0), query.stride(1), keys_values.stride(0), keys_values.stride(1), keys_values.stride(2),
        out.stride(0), out.stride(1),
        SCALE=size**-0.5 * 1.4426950408889634,  # log2(e): the kernel uses exp2
        SIZE=size, BLOCK_Q=block_q, BLOCK_K=block_k, num_warps=2 if block_q <= 32 else 4,
    )  # fmt: skip
    return out


def next_power(number: int) -> int:
    """The smallest power of two >= `number`."""
    return 1 << max(0, number - 1).bit_length()


class AttentionPattern(ABC):
    """The attention rule of one forward pass."""

    @abstractmethod
    def attend(self, layer: int, query: Tensor, keys_values: Tensor, at: QueryPositions | None) -> Tensor:
        """query: (queries or tokens, heads, size); keys_values: (tokens, 2, heads, size), keys and values."""


@dataclass(frozen=True)
class FullAttention(AttentionPattern):
    """Every token attends to the whole of its segment."""

    segments: Segments

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, at: QueryPositions | None) -> Tensor:
        return attend(query, keys_values, at.segments if at else self.segments, self.segments)


@dataclass(frozen=True)
class SourceIsolated(AttentionPattern):
    """Pairs in which the target attends to both halves but the source only to itself."""

    pairs: Segments
    halves: Segments
    """Each pair cut in two: source, target, source, target, ..."""
    is_target: Tensor
    """(tokens,) bool"""

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, at: QueryPositions | None) -> Tensor:
        if at:  # queries are target positions
            return attend(query, keys_values, at.segments, self.pairs)
        whole = attend(query, keys_values, self.pairs, self.pairs)
        apart = attend(query, keys_values, self.halves, self.halves)
        return torch.where(self.is_target[:, None, None], whole, apart)


@dataclass(frozen=True)
class Prefill(AttentionPattern):
    """Sources alone, each attending to itself; their keys and values go into a cache."""

    sources: Segments
    rows: Tensor
    """(tokens,) the cache row of each source token."""
    cache: list[Tensor]
    """Per layer (tokens of all pairs, 2, heads, size): keys and values."""

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, at: QueryPositions | None) -> Tensor:
        store(self.cache[layer], self.rows, keys_values)
        return attend(query, keys_values, self.sources, self.sources)


@dataclass(frozen=True)
class CachedSource(AttentionPattern):
    """Targets alone, each attending to its cached source and itself."""

    targets: Segments
    pairs: Segments
    rows: Tensor
    """(tokens,) the cache row of each target token."""
    cache: list[Tensor]

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, at: QueryPositions | None) -> Tensor:
        store(self.cache[layer], self.rows, keys_values)
        return attend(query, self.cache[layer], at.segments if at else self.targets, self.pairs)


def store(cache: Tensor, rows: Tensor, keys_values: Tensor) -> None:
    """Write keys and values, (rows, 2, heads, size), into these rows of one layer's cache."""
    _wide(cache).index_copy_(0, rows, _wide(keys_values))


def _wide(tensor: Tensor) -> Tensor:
    """Rows as int64 if their size allows it: copying 8-byte elements takes a quarter of the time of 2-byte ones."""
    flat = tensor.flatten(1)
    return flat.view(torch.int64) if flat.shape[1] * flat.element_size() % 8 == 0 else flat


ROUND = 16
"""Segments go through SDPA grouped by length, rounded up to a multiple of this."""
SINGLE_QUERY = 4
"""A single query is padded to this many rows. With fewer, some matrix libraries' results depend on the batch."""


class _Plan:
    """Packed attention through SDPA: one call per pair of rounded lengths."""

    def __init__(self, queries: Segments, keys: Segments):
        if queries.lengths is None or keys.lengths is None:
            raise ValueError("attention outside CUDA half precision needs the segment lengths on the host")
        device = queries.cu_seqlens.device
        q_lengths, k_lengths = queries.lengths.astype(np.int64), keys.lengths.astype(np.int64)
        q_starts, k_starts = starts_of(q_lengths), starts_of(k_lengths)
        q_sizes = np.where(q_lengths == 1, SINGLE_QUERY, round_up(q_lengths, ROUND))
        back = np.zeros(int(q_lengths.sum()), np.int64)
        self._groups: list[tuple[Tensor, ...]] = []
        """(queries to take, keys to take, which keys are real): (B, Q), (B, K), (B, 1, 1, K)."""
        done = 0
        for (q_size, k_size), members in same_shapes(q_sizes, round_up(k_lengths, ROUND)):
            if q_size == 0:
                continue
            take_q, is_query = padded_rows(q_starts[members], q_lengths[members], q_size)
            take_k, is_key = padded_rows(k_starts[members], k_lengths[members], k_size)
            self._groups.append(tuple(to_device(array, device) for array in (take_q, take_k, is_key[:, None, None])))
            back[take_q[is_query]] = done + np.flatnonzero(is_query)
            done += is_query.size
        self._back = to_device(back, device)
        """(tokens,) index of each packed query's result in the groups' concatenated results."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        results = []
        for take_q, take_k, real in self._groups:
            q, k, v = (one.transpose(1, 2) for one in (query[take_q], key[take_k], value[take_k]))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=real)
            results.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(results)[self._back]

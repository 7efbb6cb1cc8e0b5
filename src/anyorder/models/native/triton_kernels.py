"""Kernels for half-precision decoding on CUDA; `attention` and `transformer` call them. Importing this needs Triton.

Floating-point arguments are compile-time constants: inside a compiled model they would otherwise arrive as float64.
"""

import triton
import triton.language as tl


@triton.jit
def attention(
    query, keys_values, out, query_cu_seqlens, key_cu_seqlens,
    query_row, query_head, kv_row, kv_half, kv_head, out_row, out_head,
    SCALE: tl.constexpr, SIZE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    segment, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_query = tl.load(query_cu_seqlens + segment)
    queries = tl.load(query_cu_seqlens + segment + 1) - first_query
    if block * BLOCK_Q < queries:
        first_key = tl.load(key_cu_seqlens + segment)
        keys = tl.load(key_cu_seqlens + segment + 1) - first_key
        column = tl.arange(0, SIZE)
        row = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
        real_row = row[:, None] < queries
        at = (first_query + row).to(tl.int64)[:, None] * query_row + head * query_head + column[None, :]
        q = tl.load(query + at, mask=real_row, other=0.0)
        highest = tl.full([BLOCK_Q], -1e30, tl.float32)
        total = tl.zeros([BLOCK_Q], tl.float32)
        sums = tl.zeros([BLOCK_Q, SIZE], tl.float32)
        for start in range(0, keys, BLOCK_K):
            place = start + tl.arange(0, BLOCK_K)
            real = place < keys
            key_at = (first_key + place).to(tl.int64)[:, None] * kv_row + head * kv_head + column[None, :]
            k = tl.load(keys_values + key_at, mask=real[:, None], other=0.0)
            v = tl.load(keys_values + kv_half + key_at, mask=real[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k)) * SCALE
            scores = tl.where(real[None, :], scores, -1e30)
            now = tl.maximum(highest, tl.max(scores, 1))
            weights = tl.exp2(scores - now[:, None])
            shrink = tl.exp2(highest - now)
            total = total * shrink + tl.sum(weights, 1)
            sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
            highest = now
        out_at = (first_query + row).to(tl.int64)[:, None] * out_row + head * out_head + column[None, :]
        tl.store(out + out_at, (sums / total[:, None]).to(q.dtype), mask=real_row)


@triton.jit
def norm(
    states, change, weight, bias, out, states_row, change_row, out_row, width,
    EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    real = column < width
    x = tl.load(states + row * states_row + column, mask=real, other=0.0).to(tl.float32)
    x += tl.load(change + row * change_row + column, mask=real, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / width
    centered = tl.where(real, x - mean, 0.0)
    deviation = tl.sqrt(tl.sum(centered * centered, 0) / width + EPSILON)
    scale = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=real, other=0.0).to(tl.float32)
    y = centered / deviation * scale + shift
    tl.store(out + row * out_row + column, y.to(out.dtype.element_ty), mask=real)

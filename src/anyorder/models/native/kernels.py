"""Two Triton kernels for half-precision decoding on CUDA: sentences are short, but libraries expect long ones.

The usual attention kernels work on blocks of 128 queries; a target has about twenty, so five sixths of the work is
wasted. Fusing addition and normalization into one pass reads and writes a third less. Neither kernel has a gradient:
training uses the libraries' own, and so does decoding without Triton (it comes with torch for CUDA on Linux).
"""

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from anyorder.models.native.attention import Segments

MAX_LENGTH = 256
"""Segments up to this length are short enough for the attention kernel."""
HEAD_SIZES = (16, 32, 64, 128)
"""Head sizes that the attention kernel supports."""


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def usable(tensor: Tensor) -> bool:
    """Whether the kernels can run on this tensor now."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.is_cuda and half and not torch.is_grad_enabled() and _installed()


def attend_short(query: Tensor, keys_values: Tensor, queries: "Segments", keys: "Segments") -> Tensor:
    """`attention.attend` in one kernel."""
    from anyorder.models.native.triton_kernels import attention

    tokens, heads, size = query.shape
    out = torch.empty((tokens, heads, size), dtype=query.dtype, device=query.device)
    block_q = min(64, max(16, _power(queries.max_seqlen)))
    block_k = min(64, max(16, _power(keys.max_seqlen)))
    grid = (len(queries.cu_seqlens) - 1, heads, -(-queries.max_seqlen // block_q))
    attention[grid](
        query, keys_values, out, queries.cu_seqlens, keys.cu_seqlens,
        query.stride(0), query.stride(1), keys_values.stride(0), keys_values.stride(1), keys_values.stride(2),
        out.stride(0), out.stride(1),
        SCALE=size**-0.5 * 1.4426950408889634,  # log2(e): the kernel uses exp2
        SIZE=size, BLOCK_Q=block_q, BLOCK_K=block_k, num_warps=2 if block_q <= 32 else 4,
    )  # fmt: skip
    return out


def add_norm(states: Tensor, change: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """The LayerNorm of `states + change`, each (rows, hidden_size)."""
    from anyorder.models.native.triton_kernels import norm

    rows, width = states.shape
    out = torch.empty_like(states)
    if rows:
        norm[(rows,)](
            states, change, weight, bias, out, states.stride(0), change.stride(0), out.stride(0), width,
            EPSILON=epsilon, BLOCK=_power(width), num_warps=4 if width <= 1024 else 8,
        )  # fmt: skip
    return out


def _power(number: int) -> int:
    """The smallest power of two >= `number`."""
    return 1 << max(0, number - 1).bit_length()

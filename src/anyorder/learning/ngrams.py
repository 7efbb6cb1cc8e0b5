"""N-gram counts of padded sentences, in batches, on the device of their tensors. The host never waits for it.

Tokens are plain integers: they may be subwords, words or characters.
"""

import torch
from torch import Tensor


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """(N, width) bool: true in the first `lengths`, (N,), columns of each row."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def ngram_totals(lengths: Tensor, max_order: int) -> Tensor:
    """How many n-grams of 1, 2, ..., `max_order` tokens a sentence has: (N,) to (N, max_order)."""
    return (lengths.unsqueeze(1) - torch.arange(max_order, device=lengths.device)).clamp(min=0)


def ngram_matches(
    ids: Tensor, lengths: Tensor, references: Tensor, reference_lengths: Tensor, max_order: int
) -> Tensor:
    """How many n-grams of 1, 2, ..., `max_order` tokens two sentences share, repeats included.

    (N, T), (N,), (N, R), (N,) to (N, max_order) int64. Equal n-grams in a pair of sentences get the same
    number, which is computed from that of the first n - 1 tokens and that of the last token.
    """
    both = torch.cat([ids, references], 1)
    width, size = ids.shape[1], both.shape[1]
    token = gram = dense_ranks(both)
    matches = []
    for n in range(max_order):
        if n:
            gram = dense_ranks(gram * size + token.roll(-n, 1))
        counts = count_values(gram[:, :width], lengths - n, size)
        reference_counts = count_values(gram[:, width:], reference_lengths - n, size)
        matches.append(torch.minimum(counts, reference_counts).sum(1))
    return torch.stack(matches, 1)


def dense_ranks(keys: Tensor) -> Tensor:
    """Ranks 0, 1, 2, ... of integers within their row; equal integers have equal ranks: (N, L) to (N, L)."""
    ordered, index = keys.sort(1)
    ranks = (ordered != ordered.roll(1, 1)).cumsum(1)
    return torch.empty_like(ranks).scatter_(1, index, ranks - ranks[:, :1])


def count_values(values: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Count each of 0, ..., `size` - 1 in the first `lengths`, (N,), columns of each row: (N, L) to (N, size)."""
    inside = length_mask(lengths, values.shape[1]).int()
    return inside.new_zeros(len(values), size).scatter_add_(1, values, inside)

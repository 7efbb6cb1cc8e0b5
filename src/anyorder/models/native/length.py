"""Target length prediction: a small network on the encoded source, and the paper's table of counts."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.errors import InputError
from anyorder.models.native.transformer import Linear

REACH = 64
"""Predicted targets are at most this much longer or shorter than their source."""


class LengthPredictor(nn.Module):
    """A distribution over target length minus source length, both in subwords.

    Its input is the mean state of the source, encoded alone, below the last layer. No gradient flows back: the
    translation model is the same with and without it.
    """

    def __init__(self, width: int, positions: int, languages: int):
        super().__init__()
        self.source_length = nn.Embedding(positions, width)
        self.language = nn.Embedding(languages, width)
        self.inner = Linear(width, width)
        self.outer = Linear(width, 2 * REACH + 1)
        for table in (self.source_length, self.language):
            nn.init.normal_(table.weight, std=width**-0.5)

    def forward(self, pooled: Tensor, lengths: Tensor, languages: Tensor) -> Tensor:
        """pooled: (sentences, width); source lengths, target languages: (sentences,). Scores: (sentences, offsets)"""
        states = pooled.detach() + self.source_length(lengths) + self.language(languages)
        return self.outer(F.gelu(self.inner(states)))


def pool(states: Tensor, sentence: Tensor, sentences: int, counts: Tensor | None = None) -> Tensor:
    """Mean over the counted tokens of each sentence. states: (tokens, width); sentence, counts (bool): (tokens,)"""
    weights = torch.ones_like(states[:, 0], dtype=torch.float32) if counts is None else counts.float()
    states = states.float() * weights[:, None]
    total = states.new_zeros(sentences, states.shape[-1]).index_add_(0, sentence, states)
    number = states.new_zeros(sentences).index_add_(0, sentence, weights)
    return total / number.clamp(min=1)[:, None]


def offset_class(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The predictor's output class for a pair of lengths."""
    return np.clip(target - source, -REACH, REACH) + REACH


def likely_lengths(scores: np.ndarray, source: np.ndarray, count: int, longest: int) -> list[list[int]]:
    """The `count` best target lengths of each sentence, best first, between 1 and `longest`."""
    candidates = source[:, None] + np.arange(-REACH, REACH + 1)
    allowed = np.where((candidates >= 1) & (candidates <= longest), scores, -np.inf)
    # Stable: of equally likely lengths the shortest comes first, on every machine.
    best = np.argsort(-allowed, axis=1, kind="stable")[:, :count]
    chosen = np.take_along_axis(candidates, best, axis=1)
    possible = np.isfinite(np.take_along_axis(allowed, best, axis=1))
    rows = [row[keep].tolist() for row, keep in zip(chosen, possible, strict=True)]
    return [row or [min(int(own), longest)] for row, own in zip(rows, source, strict=True)]


@dataclass(frozen=True)
class LengthTable:
    """The paper's method: the most common target lengths per source length in training."""

    seen: dict[str, dict[int, list[int]]]
    """By direction and source length: target lengths, most frequent first."""

    KEEP = 8

    @classmethod
    def count(cls, lengths: dict[str, tuple[np.ndarray, np.ndarray]]) -> "LengthTable":
        """Count the source and target lengths of all training pairs per direction."""
        seen: dict[str, dict[int, list[int]]] = {}
        for direction, (source, target) in lengths.items():
            pairs, counts = np.unique(np.stack([source, target]), axis=1, return_counts=True)
            # By source length, then by count, then the shorter one: never by where a pair stands in the corpus.
            order = np.lexsort((pairs[1], -counts, pairs[0]))
            rows: dict[int, list[int]] = {}
            for s, t in pairs[:, order].T.tolist():
                if len(rows.setdefault(s, [])) < cls.KEEP:
                    rows[s].append(t)
            seen[direction] = rows
        return cls(seen)

    def candidates(self, direction: str, source: int, count: int) -> list[int]:
        """Falls back to the nearest source length that was seen, shifted."""
        rows = self.seen.get(direction)
        if not rows:
            raise InputError(f"the model's table of lengths is empty for {direction}: use length predicted or gold")
        nearest = min(rows, key=lambda length: (abs(length - source), length))
        shift = source - nearest
        return [max(1, target + shift) for target in rows[nearest][:count]]

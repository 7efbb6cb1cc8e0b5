"""Which sentences a training step sees and which positions are masked; both depend only on the seed and a cursor.

An epoch is a flat sequence of sentences, split into batches by token count. Only numpy runs here, in a thread ahead of
the device. Batch n is the same no matter which process asks for it, so several processes train as one would.
Knows nothing about models or objectives.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from anyorder.data.packing import starts_of
from anyorder.errors import InputError

Batch = TypeVar("Batch")

IGNORED = -100
"""The label of a position that is not predicted; `cross_entropy` ignores it."""
MAX_REPEATS = 1000
"""The largest weight of a corpus; it is limited because an epoch is held in memory."""


@dataclass(frozen=True)
class Cursor:
    """How far training has come: batches so far, the current epoch, and batches taken from it."""

    batch: int = 0
    epoch: int = 0
    offset: int = 0


def batch_boundaries(sizes: np.ndarray, max_tokens: int, max_rows: int) -> list[int]:
    """Where each batch starts, and where the last one ends: `[0, ..., len(sizes)]`.

    Every batch holds as many items as fit within `max_tokens`, and at most `max_rows`.
    """
    ends = np.cumsum(sizes)
    boundaries = [0]
    while boundaries[-1] < len(sizes):
        start = boundaries[-1]
        before = int(ends[start - 1]) if start else 0
        full = max(int(np.searchsorted(ends, before + max_tokens, side="right")), start + 1)
        boundaries.append(min(full, start + max_rows))
    return boundaries


def shuffled(rows: np.ndarray, weights: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
    """Rows in random order; a row with weight 2.3 appears twice, and a third time with probability 0.3."""
    if weights is not None:
        times = np.floor(weights).astype(np.int64) + (random.random(len(rows)) < weights % 1)
        rows = np.repeat(rows, times)
    return random.permutation(rows)


def sample_mask(lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Masked translation's corruption: mask 1 to n of a sentence's n tokens, every number equally likely.

    (sentences,) lengths to (tokens,) bool over the concatenated sentences.
    """
    total = int(lengths.sum())
    masked_count = np.ceil((1 - random.random(len(lengths))) * lengths).astype(np.int64)
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    # Every token gets a random key; those with the smallest keys in each sentence are masked.
    by_key = np.argsort(sentence + random.random(total), kind="stable")
    rank = np.arange(total) - starts_of(lengths)[sentence]
    mask = np.zeros(total, bool)
    mask[by_key[rank < masked_count[sentence]]] = True
    return mask


def prefetch(items: Iterator[Batch], depth: int = 4) -> Generator[Batch, None, None]:
    """The items of an endless iterator that runs in a thread, a few of them ahead of their reader.

    Closing it waits for the thread to end: one that is still running when Python exits can crash the process.
    """
    executor = ThreadPoolExecutor(1)
    try:
        ahead = deque(executor.submit(next, items) for _ in range(depth))
        while True:
            ahead.append(executor.submit(next, items))
            yield ahead.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def weights_by_corpus(corpora: Sequence[str], corpus: np.ndarray, weights: dict[str, float]) -> np.ndarray | None:
    """(sentences,) how often each is used per epoch; None if each is used once.

    corpus: (sentences,) the index of each sentence's corpus. weights: by the name of a corpus, one of `corpora`; by
    default 1.
    """
    if not weights:
        return None
    for name, weight in weights.items():
        if not 0 <= weight <= MAX_REPEATS:
            raise InputError(f"the weight of corpus '{name}' is {weight}: expected a number from 0 to {MAX_REPEATS}")
    by_sentence = np.array([weights.get(name, 1.0) for name in corpora])[corpus]
    if by_sentence.sum() < 1:
        raise InputError("the weights of the corpora leave less than one sentence in an epoch")
    return by_sentence

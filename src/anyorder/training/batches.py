"""Which sentences a training step sees, and what is hidden in them. All of it follows from the seed and a cursor.

An epoch is laid out as one flat sequence and cut into batches of so many tokens; nothing but numpy runs here, in a
thread ahead of the device. Batch number n is the same whichever process asks for it: many processes train like one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import Queue
from threading import Thread
from typing import Generic, TypeVar

import numpy as np

from anyorder.data.packing import starts_of
from anyorder.errors import InputError, check_number, unknown

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Cursor:
    """How far training has come: batches so far, the current epoch, and batches taken from it."""

    batch: int = 0
    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True)
class BatchRows:
    """Sentences of one batch."""

    rows: np.ndarray
    random: np.random.Generator
    """Belongs to this batch alone."""


def draw(
    cursor: Cursor,
    epoch_rows: Callable[[int], np.ndarray],
    sizes: Callable[[np.ndarray], np.ndarray],
    room: tuple[int, int],
    seed: int,
    first: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Iterator[tuple[BatchRows, Cursor]]:
    """This process's batches from number `first` on, each with the cursor behind it. Never ends.

    `cursor` was handed out before and is not behind `first`. `epoch_rows(n)` gives the sentences of epoch n in order,
    `sizes` how many tokens each takes; a batch has room for so many tokens and so many sentences.
    """
    while True:
        rows = epoch_rows(cursor.epoch)
        cuts = cut(sizes(rows), *room)
        for start, stop in zip(cuts[cursor.offset : -1], cuts[cursor.offset + 1 :], strict=True):
            here = cursor.batch
            cursor = replace(cursor, batch=here + 1, offset=cursor.offset + 1)
            if here >= first and here % world == rank:
                yield BatchRows(rows[start:stop], random_for(seed, "batch", here)), cursor
        cursor = replace(cursor, epoch=cursor.epoch + 1, offset=0)


def cut(sizes: np.ndarray, most: int, most_items: int) -> list[int]:
    """Cut points that leave as many items as fit within `most`, and not more than `most_items`, in every piece.

    `[0, ..., len(sizes)]`
    """
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(sizes):
        before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        full = max(int(np.searchsorted(ends, before + most, side="right")), cuts[-1] + 1)
        cuts.append(min(full, cuts[-1] + most_items))
    return cuts


def random_for(seed: int, purpose: str, number: int) -> np.random.Generator:
    """A stream of random numbers for one batch or one epoch, independent of all others."""
    key = np.array([seed, int.from_bytes(purpose.encode(), "little")], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, number]))


def shuffled(rows: np.ndarray, weights: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
    """Rows in random order; a row of weight 2.3 comes twice, and a third time with chance 0.3."""
    if weights is not None:
        times = np.floor(weights).astype(np.int64) + (random.random(len(rows)) < weights % 1)
        rows = np.repeat(rows, times)
    return random.permutation(rows)


def hide(lengths: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Masked translation's corruption: in a sentence of n words, 1 to n of them, every number equally likely.

    Returns a bool for every word of the sentences end to end.
    """
    total = int(lengths.sum())
    how_many = np.ceil((1 - random.random(len(lengths))) * lengths).astype(np.int64)
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    # Lots are drawn per word; those with the smallest hash_uniform in a sentence are hidden.
    ranked = np.argsort(sentence + random.random(total), kind="stable")
    rank = np.arange(total) - starts_of(lengths)[sentence]
    hidden = np.zeros(total, bool)
    hidden[ranked[rank < how_many[sentence]]] = True
    return hidden


class Prefetcher(Generic[Batch]):
    """Run an iterator in a thread, a few items ahead of its reader."""

    def __init__(self, items: Iterator[Batch], depth: int = 4):
        self._queue: Queue[tuple[Batch | None, BaseException | None]] = Queue(depth)
        self._closed = False
        self._thread = Thread(target=self._run, args=(items,), daemon=True)
        self._thread.start()

    def _run(self, items: Iterator[Batch]) -> None:
        try:
            for item in items:
                self._queue.put((item, None))
                if self._closed:
                    return
        except BaseException as error:  # handed to the reader, who raises it
            self._queue.put((None, error))

    def __next__(self) -> Batch:
        item, error = self._queue.get()
        if error is not None:
            raise error
        assert item is not None
        return item

    def close(self) -> None:
        """Wait until the thread has ended: one that still runs when Python exits can take the process down."""
        self._closed = True
        while self._thread.is_alive():
            while not self._queue.empty():
                self._queue.get_nowait()
            self._thread.join(0.01)


MOST_TIMES = 1000
"""A corpus's sentences do not come more often in an epoch: it is laid out in memory."""

IGNORED = -100
"""The label of a place that is not predicted."""


def tail(real: int, size: int, longest: int) -> np.ndarray:
    """Lengths of the segments that fill a row of `size` tokens behind its `real` ones."""
    return np.diff([*range(0, size - real, longest), size - real])


def pad_places(rows: np.ndarray, labels: np.ndarray, size: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Exactly `places` places of a row of `size` tokens, ascending, and their labels.

    Too many lose their last; too few are made up by others whose label is ignored. Those lie in real segments too, so
    no kernel meets an undefined number.
    """
    label_at = np.full(size, IGNORED)
    label_at[rows[:places]] = labels[:places]
    others = np.flatnonzero(label_at == IGNORED)[: max(0, places - len(rows))]
    chosen = np.sort(np.concatenate([rows[:places], others]))
    return chosen, label_at[chosen]


def pad_to(array: np.ndarray, size: int, value: int) -> np.ndarray:
    """The array with `value` behind it, or cut, so that it has exactly this size."""
    out = np.full(size, value, array.dtype)
    out[: min(size, len(array))] = array[:size]
    return out


def offsets_of(lengths: np.ndarray, count: int) -> np.ndarray:
    """(count + 1,) int32 starts of segments, with empty segments at the end to make up the number."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pad_to(offsets, count + 1, int(offsets[-1]))


def weights_by_corpus(corpora: Sequence[str], corpus: np.ndarray, wanted: dict[str, float]) -> np.ndarray | None:
    """(sentences,) how often each comes in an epoch; None where all come once."""
    if not wanted:
        return None
    for name, weight in wanted.items():
        if name not in corpora:
            raise unknown("corpus", name, corpora)
        check_number(f"the weight of corpus '{name}' is", weight, at_least=0, at_most=MOST_TIMES)
    weights = np.array([wanted.get(name, 1.0) for name in corpora])[corpus]
    if weights.sum() < 1:
        raise InputError("the weights of the corpora leave less than one sentence in an epoch")
    return weights

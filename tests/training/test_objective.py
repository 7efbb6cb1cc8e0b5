import threading
import time
from collections.abc import Iterator
from itertools import count, islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder.data.random_streams import random_for
from anyorder.training.loop import prefetch
from anyorder.training.objective import (
    IGNORED,
    Objective,
    batch_boundaries,
    pad_predictions,
    padded_cu_seqlens,
    sample_mask,
    shuffled,
    tail_lengths,
    weights_by_corpus,
)
from anyorder.training.run_folder import Cursor


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 100), st.integers(2, 9))
def test_every_batch_is_as_full_as_it_can_be(sizes: list[int], most: int, items: int) -> None:
    boundaries = batch_boundaries(np.array(sizes), most, items)
    assert (boundaries[0], boundaries[-1]) == (0, len(sizes))
    for start, stop in pairwise(boundaries):
        assert sum(sizes[start:stop]) <= most
        assert stop - start <= items
        assert stop == len(sizes) or sum(sizes[start : stop + 1]) > most or stop - start == items


class Sentences(Objective[tuple[list[int], float]]):
    """50 sentences of different sizes; a batch is their numbers, and a random one."""

    seed = 3
    sizes = np.random.default_rng(0).integers(5, 20, 50)
    minibatches = cost = save = fingerprint = None  # type: ignore[assignment]

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        rows = shuffled(np.arange(50), None, random_for(3, "epoch", epoch))
        return [rows[start:stop] for start, stop in pairwise(batch_boundaries(self.sizes[rows], 100, 50))]

    def build(self, rows: np.ndarray, random: np.random.Generator) -> tuple[list[int], float]:
        return rows.tolist(), float(random.random())


def stream(cursor: Cursor = Cursor(), first: int = 0, rank: int = 0, world: int = 1):  # noqa: B008
    return Sentences().batches(cursor, first, rank, world)


def seen(batches) -> list[tuple[list[int], float]]:
    return [batch for batch, _ in batches]


def test_every_epoch_takes_every_sentence_once_in_a_new_order() -> None:
    rows: dict[int, list[int]] = {}
    epoch = 0
    for (batch, _), behind in islice(stream(), 30):
        rows.setdefault(epoch, []).extend(batch)
        epoch = behind.epoch if behind.offset else behind.epoch + 1
        if len(rows[max(rows)]) == 50:
            epoch = max(rows) + 1
    assert sorted(rows[0]) == sorted(rows[1]) == list(range(50))
    assert rows[0] != rows[1]


def test_two_processes_share_the_batches_of_one() -> None:
    one = seen(islice(stream(), 24))
    first, second = (seen(islice(stream(rank=rank, world=2), 12)) for rank in (0, 1))
    assert one == [batch for pair in zip(first, second, strict=True) for batch in pair]


@pytest.mark.parametrize("taken", [1, 5, 7, 16])
def test_a_cursor_continues_where_it_was_handed_out(taken: int) -> None:
    whole = seen(islice(stream(), 24))
    *_, (_, cursor) = islice(stream(), taken)
    assert seen(islice(stream(cursor, first=taken), 24 - taken)) == whole[taken:]
    *_, (_, cursor) = islice(stream(rank=0, world=2), (taken + 1) // 2)  # what the main process of two would save
    first = 2 * ((taken + 1) // 2)
    assert seen(islice(stream(cursor, first=first), 24 - first)) == whole[first:]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=10), st.integers(0, 99))
def test_at_least_one_token_of_every_sentence_is_masked(lengths: list[int], seed: int) -> None:
    mask = sample_mask(np.array(lengths), np.random.default_rng(seed))
    per_sentence = [part.sum() for part in np.split(mask, np.cumsum(lengths)[:-1])]
    assert all(1 <= count <= length for count, length in zip(per_sentence, lengths, strict=True))


def test_every_number_and_every_position_is_masked_equally_often() -> None:
    mask = sample_mask(np.full(20_000, 5), np.random.default_rng(1)).reshape(-1, 5)
    numbers = np.bincount(mask.sum(1), minlength=6)[1:]
    assert np.abs(numbers - 4000).max() < 250  # four standard deviations
    assert np.abs(mask.mean(0) - 0.6).max() < 0.014


def test_weights_repeat_sentences() -> None:
    weights = weights_by_corpus(["a", "b", "c"], np.array([0, 0, 1, 2]), {"b": 3, "c": 0})
    rows = shuffled(np.arange(4), weights, np.random.default_rng(0))
    assert sorted(rows.tolist()) == [0, 1, 2, 2, 2]
    half = shuffled(np.arange(4000), np.full(4000, 1.5), np.random.default_rng(0))
    assert abs(len(half) - 6000) < 150
    assert weights_by_corpus(["a"], np.array([0]), {}) is None


def test_padding() -> None:
    assert tail_lengths(7, 20, 5).tolist() == [5, 5, 3]
    assert tail_lengths(20, 20, 5).tolist() == []
    assert padded_cu_seqlens(np.array([2, 3]), 4).tolist() == [0, 2, 5, 5, 5]
    positions, labels = pad_predictions(np.array([3, 5]), np.array([70, 71]), 10, 4)
    assert positions.tolist() == [0, 1, 3, 5]
    assert labels.tolist() == [IGNORED, IGNORED, 70, 71]
    positions, labels = pad_predictions(np.array([3, 5, 8]), np.array([70, 71, 72]), 10, 2)
    assert (positions.tolist(), labels.tolist()) == ([3, 5], [70, 71])


def test_errors_in_the_thread_reach_the_reader() -> None:
    def broken():
        yield 1
        raise ValueError("broken")

    items = prefetch(broken())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)


def test_closing_waits_for_the_thread() -> None:
    def endless() -> Iterator[int]:
        for item in count():
            time.sleep(0.02)
            yield item

    for taken in (0, 3):
        before = set(threading.enumerate())
        items = prefetch(endless(), depth=2)
        assert [next(items) for _ in range(taken)] == list(range(taken))
        items.close()
        assert set(threading.enumerate()) <= before
        items.close()  # again does no harm

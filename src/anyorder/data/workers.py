"""A pool of processes that work on chunks of a long stream, in order. Knows nothing of what the work is."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

CHUNK = 2048
"""Items that a process gets at a time."""
In = TypeVar("In")
Out = TypeVar("Out")


class Workers:
    """A pool of `count` processes."""

    def __init__(self, count: int):
        # The pool is the parallelism; threads of the tokenizer inside each process would compete with it.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._count = count
        self._pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def map(self, work: Callable[[list[In]], Out], items: Iterable[In]) -> Iterator[Out]:
        """The result of `work` for each chunk of the items, in order. Only a few chunks are in memory at a time."""
        pending: deque[Future[Out]] = deque()
        iterator = iter(items)
        while chunk := list(islice(iterator, CHUNK)):
            pending.append(self._pool.submit(work, chunk))
            if len(pending) >= 4 * self._count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

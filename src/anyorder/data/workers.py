"""A pool of processes of this machine that work on blocks of a long stream, in order. Knows nothing about the work.

The processes exit when their parent does, however it ends, and leave Ctrl-C to it.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import TypeVar

from anyorder.errors import InputError

MAX_WORKERS = 1024
PARALLELISM = "TOKENIZERS_PARALLELISM"
"""The environment variable that the tokenizers library reads."""
In = TypeVar("In")
Out = TypeVar("Out")


def blocks(items: Iterable[In], size: int) -> Iterator[list[In]]:
    """Lists of `size` items, the last one perhaps shorter.

    >>> list(blocks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    remaining = iter(items)
    return iter(lambda: list(islice(remaining, size)), [])


class Workers:
    """A pool of `count` processes; a single worker is this process itself."""

    def __init__(self, count: int):
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            self._pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_end_with_parent)

    def __enter__(self) -> "Workers":
        # The pool provides the parallelism; tokenizer threads inside each process would compete with it.
        self._before = os.environ.get(PARALLELISM)
        os.environ[PARALLELISM] = "false"
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            del os.environ[PARALLELISM]
        else:
            os.environ[PARALLELISM] = self._before
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, work: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        """The result of `work` for each item, in order. Only a few items are in memory at a time."""
        if self._pool is None:
            yield from map(work, items)
            return
        pending: deque[Future[Out]] = deque()
        try:
            for item in items:
                with _interrupts_held_back():
                    pending.append(self._pool.submit(work, item))
                if len(pending) >= 4 * self._count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            message = f"{self._count}: one of these processes was killed, perhaps for lack of memory; try fewer"
            raise InputError(message, "workers") from None


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Defer Ctrl-C until the block ends. A process started inside never gets it: it inherits the signal mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """In a worker: a thread ends this process when its parent is gone."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()

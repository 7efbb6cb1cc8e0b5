"""One worker thread runs the models. Requests wait in a bounded queue; compatible calls run in one batch.

Nothing here knows about HTTP routes or models: a call is a function and its argument.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from starlette.exceptions import HTTPException

from anyorder.app import QUEUE

Item = TypeVar("Item")
Result = TypeVar("Result")

RESULT_TIMEOUT = 120.0
"""Seconds until a request is given up."""
BATCH_TOKENS = 512
"""Target subwords to decode per batch; this bounds the memory."""


@dataclass(eq=False)
class QueuedCall(Generic[Item, Result]):
    """One item of work and the function that does it."""

    run: Callable[[Sequence[Item]], Iterable[Result]]
    """Processes a batch of items."""
    item: Item
    batch_key: Hashable = field(default_factory=object)
    """Calls with the same key may run in one batch; one without runs alone."""
    cost: int = 0
    """Target subwords; the costs of a batch add up to at most `BATCH_TOKENS`."""
    result: Future[Result] = field(default_factory=Future, init=False)


class BatchQueue:
    """A bounded queue with one worker thread; torch spreads the work of each batch over the cores."""

    def __init__(self, size: int = QUEUE):
        self._size, self._admitted = size, 0
        self._waiting: deque[QueuedCall[Any, Any]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="batch-queue", daemon=True)
        self._worker.start()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Hold one place in the queue for a request, however many calls it makes. Only for the event loop's thread."""
        if self._admitted >= self._size:
            raise _overloaded(f"{self._admitted} requests are already waiting: try again soon", retry_after=2)
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def run(self, calls: Sequence[QueuedCall[Item, Result]]) -> list[Result]:
        """The results of all calls. If the caller is cancelled or times out, its calls are dropped from the queue."""
        with self._changed:
            if self._closed:
                raise _overloaded("the server is closing", retry_after=10)
            self._waiting.extend(calls)
            self._changed.notify()
        try:
            async with asyncio.timeout(RESULT_TIMEOUT):
                return await asyncio.gather(*(asyncio.wrap_future(call.result) for call in calls))
        except TimeoutError:
            message = f"no result within {RESULT_TIMEOUT:g} seconds: try again, or a shorter sentence"
            raise _overloaded(message, retry_after=10) from None
        finally:
            for call in calls:
                if call.result.cancel():  # it has not started
                    with self._changed, suppress(ValueError):
                        self._waiting.remove(call)

    def close(self) -> None:
        """Cancel the waiting calls and wait for the running batch."""
        with self._changed:
            self._closed = True
            for call in self._waiting:
                call.result.cancel()
            self._waiting.clear()
            self._changed.notify()
        self._worker.join(timeout=5)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                batch = [call for call in self._next_batch() if call.result.set_running_or_notify_cancel()]
            if not batch:
                continue
            try:
                for call, result in zip(batch, batch[0].run([call.item for call in batch]), strict=True):
                    call.result.set_result(result)
            except Exception as error:
                for call in batch:
                    if not call.result.done():
                        call.result.set_exception(error)

    def _next_batch(self) -> list[QueuedCall[Any, Any]]:
        """The first waiting call and the later ones with its key, up to the token limit."""
        first = self._waiting.popleft()
        batch, cost = [first], first.cost
        for call in list(self._waiting):
            if call.batch_key == first.batch_key and cost + call.cost <= BATCH_TOKENS:
                batch.append(call)
                cost += call.cost
                self._waiting.remove(call)
        return batch


def _overloaded(message: str, retry_after: int) -> HTTPException:
    """The error of a request that may succeed some seconds later."""
    return HTTPException(503, message, {"Retry-After": str(retry_after)})

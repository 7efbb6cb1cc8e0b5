"""One worker thread runs the models. Requests wait in a bounded queue; compatible calls run in one batch.

Nothing here knows about HTTP routes or models: a call is a function and its argument.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from anyorder.app.limits import Limits, overloaded

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class QueuedCall(Generic[Item, Result]):
    """One item of work and the function that does it."""

    run: Callable[[Sequence[Item]], Sequence[Result]]
    """Processes a batch of items."""
    item: Item
    batch_key: Hashable = None
    """Calls with the same key may run in one batch; one with None runs alone."""
    cost: int = 0
    """Target subwords; the costs of a batch add up to at most `Limits.batch_tokens`."""


@dataclass(eq=False)
class _Job:
    call: QueuedCall[Any, Any]
    future: "Future[Any]" = field(default_factory=Future)


class BatchQueue:
    """A bounded queue with one worker thread; torch spreads the work of each batch over the cores."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._admitted = 0
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="batch-queue", daemon=True)
        self._worker.start()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Hold one place in the queue for a request, however many calls it makes. Only for the event loop's thread."""
        if self._admitted >= self._limits.queue:
            raise overloaded(f"{self._admitted} requests are already waiting: try again soon", retry_after=2)
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def run(self, calls: Sequence[QueuedCall[Item, Result]]) -> list[Result]:
        """The results of all calls. If the caller is cancelled or times out, its calls are dropped from the queue."""
        jobs = [_Job(call) for call in calls]
        with self._changed:
            if self._closed:
                raise overloaded("the server is closing", retry_after=10)
            self._waiting.extend(jobs)
            self._changed.notify()
        try:
            async with asyncio.timeout(self._limits.result_timeout):
                return await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        except TimeoutError:
            message = f"no result within {self._limits.result_timeout:g} seconds: try again, or a shorter sentence"
            raise overloaded(message, retry_after=10) from None
        finally:
            self._drop(jobs)

    def close(self) -> None:
        """Cancel the waiting calls and wait for the running batch."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job.future.cancel()
            self._waiting.clear()
            self._changed.notify()
        self._worker.join(timeout=5)

    def _drop(self, jobs: Sequence[_Job]) -> None:
        for job in jobs:
            if job.future.done() and not job.future.cancelled():
                continue
            job.future.cancel()
            with self._changed, suppress(ValueError):
                self._waiting.remove(job)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                batch = self._next_batch()
            jobs = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if not jobs:
                continue
            try:
                results = jobs[0].call.run([job.call.item for job in jobs])
                for job, result in zip(jobs, results, strict=True):
                    job.future.set_result(result)
            except Exception as error:
                for job in jobs:
                    if not job.future.done():
                        job.future.set_exception(error)

    def _next_batch(self) -> list[_Job]:
        """The first waiting job and the later ones with its key, up to the token limit."""
        first = self._waiting.popleft()
        batch, cost = [first], first.call.cost
        if first.call.batch_key is None:
            return batch
        for job in list(self._waiting):
            if job.call.batch_key == first.call.batch_key and cost + job.call.cost <= self._limits.batch_tokens:
                batch.append(job)
                cost += job.call.cost
                self._waiting.remove(job)
        return batch

"""One thread does the models' work. Requests wait their turn; those that ask alike are answered together."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from anyorder.app.middleware import Limits, RefusedError

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Task(Generic[Item, Result]):
    """A piece of work and how it is done."""

    run: Callable[[Sequence[Item]], Sequence[Result]]
    """Does several that are alike."""
    item: Item
    alike: Hashable = None
    """Tasks with the same value may go together; None goes alone."""
    cost: int = 0
    """In target subwords; so many are taken together as `Limits.tokens` allows."""


@dataclass(eq=False)
class _Job:
    task: Task[Any, Any]
    future: "Future[Any]" = field(default_factory=Future)


class BatchQueue:
    """A line of bounded length before one worker: torch spreads each piece of work over the cores by itself."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._inside = 0
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="desk", daemon=True)
        self._worker.start()

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the line for one request, however many tasks it has. Only for the event loop's thread."""
        if self._inside >= self._limits.queue:
            raise RefusedError(503, f"{self._inside} requests are waiting already: try again soon", again_after=2)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def ask(self, tasks: Sequence[Task[Item, Result]]) -> list[Result]:
        """The results of all tasks. Whoever is cancelled or loses patience leaves the line."""
        jobs = [_Job(task) for task in tasks]
        with self._changed:
            if self._closed:
                raise RefusedError(503, "the server is closing", again_after=10)
            self._waiting.extend(jobs)
            self._changed.notify()
        try:
            async with asyncio.timeout(self._limits.patience):
                return await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        except TimeoutError:
            line = f"no result within {self._limits.patience:g} seconds: try again, or a shorter sentence"
            raise RefusedError(503, line, again_after=10) from None
        finally:
            self._forget(jobs)

    def close(self) -> None:
        """Answer nobody any more, and wait for the task under way."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job.future.cancel()
            self._waiting.clear()
            self._changed.notify()
        self._worker.join(timeout=5)

    def _forget(self, jobs: Sequence[_Job]) -> None:
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
                taken = self._take()
            jobs = [job for job in taken if job.future.set_running_or_notify_cancel()]
            if not jobs:
                continue
            try:
                results = jobs[0].task.run([job.task.item for job in jobs])
                for job, result in zip(jobs, results, strict=True):
                    job.future.set_result(result)
            except Exception as error:
                for job in jobs:
                    if not job.future.done():
                        job.future.set_exception(error)

    def _take(self) -> list[_Job]:
        """The first of the line and those like it, as far as there is room."""
        first = self._waiting.popleft()
        taken, cost = [first], first.task.cost
        if first.task.alike is None:
            return taken
        for job in list(self._waiting):
            if job.task.alike == first.task.alike and cost + job.task.cost <= self._limits.tokens:
                taken.append(job)
                cost += job.task.cost
                self._waiting.remove(job)
        return taken

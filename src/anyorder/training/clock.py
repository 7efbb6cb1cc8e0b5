"""When a run must end: how much of it is done, and whether another step still fits. Knows seconds and steps only."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """The time of a run, over all its sessions.

    A run limited in minutes leaves time for its last validation, and does not start a step that would end too late.

    Args:
        steps: Length of the run in steps, or None.
        minutes: Length of the run in minutes, or None.
        spent: Seconds of earlier sessions.
        first_step_counts: Whether the time of a session's first step is typical; it is not if that step compiles.
    """

    def __init__(self, steps: int | None, minutes: float | None, spent: float, first_step_counts: bool):
        self._steps = steps
        self._limit = None if minutes is None else minutes * 60
        self._began = time.monotonic() - spent
        self._first_step_counts = first_step_counts
        self._reserve = 0.0
        self._paused = 0.0
        self._session_steps = 0
        self._first_step = 0.0
        self._session_start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds spent on the run so far, over all its sessions."""
        return time.monotonic() - self._began

    def start(self) -> None:
        """Start training: the time before this counts toward the run, but not toward its steps."""
        self._session_start = time.monotonic()

    def reserve(self, seconds: float) -> None:
        """Reserve time for the last validation, at most half of the run."""
        self._reserve = seconds if self._limit is None else min(seconds, self._limit / 2)

    def step_done(self) -> float | None:
        """Record that a step has ended; returns how long it took if it was the first of this session."""
        self._session_steps += 1
        if self._session_steps > 1:
            return None
        self._first_step = self._training_seconds()
        return self._first_step

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time in this block counts toward the run, but not toward its steps."""
        start = time.monotonic()
        yield
        self._paused += time.monotonic() - start

    def progress(self, step: int) -> float:
        """The fraction of the run that is done; 1 or more if it is over."""
        if self._steps is not None:
            return step / self._steps
        assert self._limit is not None
        left = self._limit - self._reserve - self.seconds
        if left < self._step_seconds():
            return 1.0
        return self.seconds / (self.seconds + left)

    def _training_seconds(self) -> float:
        return time.monotonic() - self._session_start - self._paused

    def _step_seconds(self) -> float:
        """Expected time of the next step: the mean of this session's steps, without the first if possible."""
        if self._session_steps > 1:
            return (self._training_seconds() - self._first_step) / (self._session_steps - 1)
        return self._first_step if self._first_step_counts else 0.0

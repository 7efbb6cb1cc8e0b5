"""Time and speed of a run: when it must end, and what its log reports. Knows nothing about losses or files."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from accelerate import Accelerator
from torch import Tensor


class Clock:
    """The time of a run, over all its sessions.

    A run limited in minutes leaves time for its last validation, and does not start a step that would end too late.

    steps, minutes: length of the run; one of them is None. spent: seconds of earlier sessions.
    first_step_counts: whether a session's first step takes as long as the others; it does not if it compiles.
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

    @property
    def training_seconds(self) -> float:
        """Seconds spent on the steps of this session."""
        return time.monotonic() - self._session_start - self._paused

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of a run that is limited in minutes."""
        assert self._limit is not None
        return self._limit - self.seconds

    @property
    def reserved(self) -> float:
        """Seconds for the last validation."""
        return self._reserve

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
        self._first_step = self.training_seconds
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
        left = self.seconds_left - self._reserve
        if left < self._step_seconds():
            return 1.0
        return self.seconds / (self.seconds + left)

    def _step_seconds(self) -> float:
        """Expected time of the next step: the mean of this session's steps, without the first if possible."""
        if self._session_steps > 1:
            return (self.training_seconds - self._first_step) / (self._session_steps - 1)
        return self._first_step if self._first_step_counts else 0.0


class Meter:
    """Sums on the device between two log entries; the host waits for the device only when it reads them."""

    def __init__(self, device: torch.device, reports: int):
        self._sum = torch.zeros(reports, device=device)
        self._peak = peak_flops(device)
        self._count = self._units = 0
        self._flops = self._since = 0.0

    def add(self, report: Tensor) -> None:
        """Add the (reports,) numbers of one minibatch."""
        self._sum += report
        self._count += 1

    def count(self, units: int, flops: float) -> None:
        """Add the cost of one batch."""
        self._units += units
        self._flops += flops

    def read(self, accelerator: Accelerator, clock: Clock) -> tuple[list[float], float, float]:
        """Mean reports, units per second and share of the peak, over all processes since the last reading.

        All processes must call it.
        """
        world = accelerator.num_processes
        total = accelerator.reduce(self._sum, "sum") / (self._count * world)
        reports = total.tolist()  # waits for the device, so the time below is accurate
        now = clock.training_seconds
        seconds = now - self._since
        speed, share_of_peak = self._units * world / seconds, self._flops / seconds / self._peak
        self._sum = torch.zeros_like(self._sum)
        self._count = self._units = 0
        self._flops, self._since = 0.0, now
        return reports, speed, share_of_peak


@cache
def peak_flops(device: torch.device) -> float:
    """FLOPS of a large matrix product on this device, in training precision. Measured once per process."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a = torch.randn(size, size, device=device, dtype=dtype)
    best = 0.0
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best

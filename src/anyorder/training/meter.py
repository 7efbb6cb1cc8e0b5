"""What the log reports during training: means of the objective's reports, speed, and the share of the device's peak.

Knows nothing about losses or files.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from accelerate import Accelerator
from torch import Tensor


@dataclass(frozen=True)
class Reading:
    """Means since the last reading."""

    reports: list[float]
    units_per_second: float
    share_of_peak: float


class Meter:
    """Sums on the device between two log entries; the host waits for the device only when it reads them."""

    def __init__(self, device: torch.device, reports: int):
        self._zero = torch.zeros(reports, device=device)
        self._peak = peak_flops(device)
        self._start()

    def _start(self) -> None:
        self._sum = self._zero.clone()
        self._count = 0
        self._units = 0
        self._flops = 0.0
        self._since = time.monotonic()

    def add(self, report: Tensor) -> None:
        """Add the (reports,) numbers of one minibatch."""
        self._sum += report
        self._count += 1

    def count(self, units: int, flops: float) -> None:
        """Add the cost of one batch."""
        self._units += units
        self._flops += flops

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time in this block does not count as training."""
        start = time.monotonic()
        yield
        self._since += time.monotonic() - start

    def read(self, accelerator: Accelerator) -> Reading:
        """Means over all processes since the last reading. All processes must call it."""
        world = accelerator.num_processes
        total = accelerator.reduce(self._sum, "sum") / (self._count * world)
        reports = total.tolist()  # waits for the device, so the time below is accurate
        seconds = time.monotonic() - self._since
        reading = Reading(reports, self._units * world / seconds, self._flops / seconds / self._peak)
        self._start()
        return reading


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

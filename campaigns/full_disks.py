"""Part c of chaos: the disk is full when some of the output is written; nothing is lost, and the next run succeeds."""

import ctypes
import os
import random
import resource
import signal
from pathlib import Path

from campaigns.sandbox import Process, in_child
from campaigns.seed_files import ANALYZE, EVALUATE, TRANSLATE
from campaigns.stage import JOBS, SECONDS, ChaosError, Stage, compare, expect, put_before, timeless

TENTHS = 10
PAGE = 4096
LARGE = 1 << 14
"""Pages of a disk that is large enough."""
_DEVICE_JOBS = [
    [*TRANSLATE[:-1], "full", "--model", "model", "text/few.de"],
    [*EVALUATE[:-1], "full", "--model", "model", "--orders", "margin"],
    [*EVALUATE, "--timings", "full", "--model", "model", "--orders", "margin"],
    [*ANALYZE[:-1], "full", "a.jsonl"],
    [*ANALYZE, "--html", "full", "a.jsonl"],
]
STORIES = range(len(JOBS) * TENTHS + len(_DEVICE_JOBS) + len(JOBS) + 1)


def play_full_disk(stage: Stage, draw: random.Random, number: int) -> str:
    """Let a command run out of space after some tenths of its output; or write to /dev/full."""
    if number >= len(JOBS) * TENTHS:
        return _play_full_device(stage, number - len(JOBS) * TENTHS)
    verb, tenth = list(JOBS)[number // TENTHS], number % TENTHS
    expected, _, _ = stage.unbroken(verb, continued=True)
    folder = stage.scene(f"disk {number}")
    return in_child(lambda: _fill_disk(verb, tenth, folder, expected))


def _play_full_device(stage: Stage, number: int) -> str:
    """What is written to /dev/full, or printed to it, is refused in one line."""
    folder = stage.scene(f"device {number}")
    (folder / "here" / "full").symlink_to("/dev/full")
    if number < len(_DEVICE_JOBS):
        arguments, stdout = _DEVICE_JOBS[number], ""
    else:
        printing = [*(job.arguments for job in JOBS.values()), ["orders"]]
        arguments, stdout = printing[number - len(_DEVICE_JOBS)], "/dev/full"
    ended = Process(folder, arguments, stdout=stdout).wait(SECONDS)
    fault = ended.fault(shows_progress=True)
    if fault or ended.code != 2:
        raise ChaosError(f"{arguments[0]} to /dev/full: {fault or f'exit code {ended.code}'}")
    return f"{arguments[0]}: /dev/full"


def _fill_disk(verb: str, tenth: int, folder: Path, expected: Path) -> str:
    """In a child with a disk of its own."""
    job, disk = JOBS[verb], folder / "here" / "disk"
    small = SmallDisk(disk)
    put_before(verb, disk)
    before = _contents(disk)
    pages = _pages(expected)
    limit = _pages(disk) + pages * tenth // TENTHS
    small.resize(max(1, limit))
    ended = Process(folder, job.again, small.limit_files, quick_workers=False).wait(SECONDS)
    if ended.code != 0:  # what fits a disk is less than what lies on it in between
        expect(ended, 2, verb)
        _check_kept(verb, disk, before, expected)
    small.resize(LARGE)
    if ended.code != 0:
        expect(Process(folder, job.again, quick_workers=False).wait(SECONDS), 0, verb)
    compare(verb, disk, expected)
    return f"{verb}: {limit} of {pages} pages, {small.kind}, {'they were enough' if ended.code == 0 else 'refused'}"


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _pages(folder: Path) -> int:
    """The pages of memory that a folder takes."""
    return sum(-(-path.stat().st_size // PAGE) if path.is_file() else 1 for path in folder.rglob("*"))


def _check_kept(verb: str, disk: Path, before: dict[str, bytes], expected: Path) -> None:
    """A `ChaosError` if a file is lost, half-written or left over: each is as before or as the command writes it."""
    after = _contents(disk)
    for name in sorted(before.keys() | after.keys()):
        if ".partial" in name or ".old" in name:
            raise ChaosError(f"{verb}: leaves {name}")
        if JOBS[verb].resume:
            continue  # the continued run ends like an unbroken one only if nothing was lost
        if name not in after:
            raise ChaosError(f"{verb}: loses {name}")
        if after[name] != before.get(name) and timeless(disk / name) != timeless(expected / name):
            raise ChaosError(f"{verb}: {name} is half-written")


class SmallDisk:
    """A disk with little space: a file system of its own where this process may mount one, else a limit on files."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._pages = LARGE
        self._mounted = _mount(folder, LARGE)
        self.kind = "no space" if self._mounted else "no larger files"

    def resize(self, pages: int) -> None:
        self._pages = pages
        if self._mounted and not _mount(self.folder, pages, again=True):
            raise ChaosError(f"a disk of {pages} pages cannot be made")

    def limit_files(self) -> None:
        """In the command's process."""
        if not self._mounted:
            size = self._pages * PAGE // 2
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _mount(folder: Path, pages: int, again: bool = False) -> bool:
    """Whether a file system of so many pages lies in a folder now, for this process and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, recursive_private, remount = 0x20000, (1 << 14) | (1 << 18), 1 << 5
    if not again:
        if libc.unshare(new_namespace) != 0:
            return False
        libc.mount(b"none", b"/", None, recursive_private, None)
    options = f"size={pages * PAGE}".encode()
    return bool(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", remount if again else 0, options) == 0)

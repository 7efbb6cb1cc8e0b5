"""Locks on files and folders. They end with the process that holds them, however it ends."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from anyorder.errors import InputError


@contextmanager
def lock_folder(folder: Path, message: str | None = None) -> Iterator[None]:
    """Keep other processes out of a folder until the block ends or this process does; `message` is their error."""
    while True:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise InputError(f"{folder}: cannot be opened ({error.strerror})") from None
        if not lock(descriptor):
            os.close(descriptor)
            raise InputError(message or f"{folder}: another process is working there")
        if is_at(descriptor, folder):
            break
        os.close(descriptor)  # replaced after it was opened here
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_lock(file: Path) -> Iterator[bool]:
    """Whether this process got the lock, which it holds until the block ends or the process does. Does not wait.

    file: An empty file that stands for what is locked. It is created, with its folder, and removed when the block
        ends. A file left by a killed process does no harm.
    """
    descriptor = _open_lock(file)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        file.unlink(missing_ok=True)  # before the lock is released, so that only this lock is removed
        os.close(descriptor)


def _open_lock(file: Path) -> int | None:
    """The locked file; None if another process has it."""
    for attempt in range(_ATTEMPTS):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if isinstance(error, FileNotFoundError | FileExistsError) and not file.parent.is_file():
                time.sleep(0.001 * attempt)  # another process created or removed the folder at the same time
                continue
            raise InputError(f"{file}: cannot be written ({error.strerror})") from None
        if not lock(descriptor):
            os.close(descriptor)
            return None
        if is_at(descriptor, file):
            return descriptor
        os.close(descriptor)  # removed after it was opened here
    raise InputError(f"{file}: cannot be locked; try again")


_ATTEMPTS = 100


@contextmanager
def wait_for_lock(file: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Wait for the lock of `try_lock`, and hold it. on_wait: Called once if the wait is not short."""
    for number, pause in enumerate(pauses()):
        with try_lock(file) as held:
            if held:
                yield
                return
        if number == 1:
            on_wait()
        time.sleep(pause)


def pauses() -> Iterator[float]:
    """Seconds to wait before checking again, increasing: a short wait ends soon, and a long one costs little."""
    pause = 0.05
    while True:
        yield pause
        pause = min(1.5 * pause, 2.0)


def is_locked(file: Path) -> bool:
    """Whether another process has the lock of `try_lock`."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError:
        return False
    try:
        return not lock(descriptor)
    finally:
        os.close(descriptor)


def knows_locks(folder: Path) -> bool:
    """Whether the file system of a folder supports locks."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock(descriptor: int) -> bool:
    """Lock a file or folder; returns whether it succeeded, and always True if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file or folder is the one at that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False

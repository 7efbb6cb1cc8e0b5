"""Locks on files and folders. They end with the process that holds them, however it ends.

What is written is locked itself, so no lock file is left in anyone's folder, as the package filelock would leave one.
"""

import fcntl
import os
from collections.abc import Iterator
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

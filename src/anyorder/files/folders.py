"""A folder that appears complete or not at all, even after a power cut, and is swapped with the one it replaces.

While it is being filled it is next to its final path, as with files. The swap is atomic if the file system supports
that, so a reader finds either the old folder or the new one, and `read_whole` never reads half of each.
"""

import ctypes
import errno
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from anyorder.errors import InputError
from anyorder.files.locks import is_at, lock_folder
from anyorder.files.output import PARTIAL, cannot_write, sha256, sync_folder, write_json
from anyorder.files.records import read_json

OLD = ".old"
"""Suffix of a folder that is being replaced, if that takes two steps."""
CHECKSUMS = "checksums.json"
"""A file in each folder from `atomic_folder`: the SHA-256 of each of its files."""
Result = TypeVar("Result")


@contextmanager
def atomic_folder(folder: Path, replace: bool = True) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` if the block succeeds and is removed otherwise.

    The checksums of its files are added, for `verify`.

    Args:
        folder: The folder to write; its parents are created.
        replace: Whether to replace an existing folder; otherwise it is an `InputError`.
    """
    recover_folder(folder)
    if folder.exists() and not replace:
        raise InputError(f"{folder}: already exists; remove it or choose another place")
    with _partial_folder(folder) as partial:
        yield partial
        sums = {file.name: sha256(file) for file in sorted(partial.iterdir()) if file.is_file()}
        write_json(partial / CHECKSUMS, sums)
        _sync_tree(partial)
        replace_folder(partial, folder)


@contextmanager
def added_files(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, whose files move into `folder` if the block succeeds. Other files there stay."""
    with _partial_folder(folder) as partial:
        yield partial
        _sync_tree(partial)
        for file in sorted(partial.iterdir()):
            folder.mkdir(exist_ok=True)
            file.replace(folder / file.name)


@contextmanager
def _partial_folder(folder: Path) -> Iterator[Path]:
    """An empty folder next to `folder` that this process locks, and removes at the end if it is still there."""
    partial = _beside(folder, PARTIAL)
    with _writing(folder):
        partial.mkdir(parents=True, exist_ok=True)
    with lock_folder(partial, f"{folder}: another process is writing it"):
        try:
            with _writing(folder):
                _empty(partial)
                yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Turns the errors of a full or read-only disk into an `InputError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise cannot_write(place, error) from None


_DISK_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR,
    errno.ENAMETOOLONG, errno.ENOENT,
}  # fmt: skip


def replace_folder(new: Path, old: Path) -> None:
    """Put `new` in the place of `old`, which moves to where `new` was or is removed."""
    if not old.exists():
        new.rename(old)
    elif not _exchange(new, old):
        aside = _beside(old, OLD)
        shutil.rmtree(aside, ignore_errors=True)
        old.rename(aside)
        new.rename(old)
        shutil.rmtree(aside)
    sync_folder(old.parent)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders atomically; False if the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        here, exchange = -100, 2
        failed = libc.renameat2(here, os.fsencode(a.absolute()), here, os.fsencode(b.absolute()), exchange)
    elif sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        swap = 2
        failed = libc.renamex_np(os.fsencode(a.absolute()), os.fsencode(b.absolute()), swap)
    else:
        return False
    return not failed


def _beside(folder: Path, ending: str) -> Path:
    """The same path with a suffix, even if it was given as `.` or `..`."""
    path = Path(os.path.abspath(folder))
    return path.with_name(path.name + ending) if path.name else path / ending


def recover_folder(folder: Path) -> None:
    """Restore a folder whose replacement was killed between its two steps."""
    aside = _beside(folder, OLD)
    if aside.is_dir() and not folder.exists():
        aside.rename(folder)


def remove_leftovers(folder: Path) -> None:
    """Clean up after killed processes in a folder: restore what they were replacing, remove what is unfinished."""
    for aside in folder.glob(f"*{OLD}"):
        recover_folder(aside.with_name(aside.name.removesuffix(OLD)))
    for pattern in (f"*{PARTIAL}", f"*{OLD}"):
        for leftover in folder.glob(pattern):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


def is_leftover(name: str) -> bool:
    """Whether a file or folder of this name is unfinished, or is being replaced."""
    return name.endswith((PARTIAL, OLD))


def check_plain_name(name: str) -> None:
    """Raise an `InputError` if a user's name cannot be that of a file or folder, or needs quotes in a shell."""
    if not re.fullmatch(r"\w[\w.+-]{0,99}", name) or is_leftover(name):
        raise InputError(f"'{name}': is not a plain name (letters, digits, '-', '+', '.' and '_', at most 100)", "name")


def read_whole(folder: Path, read: Callable[[Path], Result]) -> Result:
    """What `read` returns for a folder. If the folder was replaced meanwhile, it is read again: never half of each."""
    for attempt in range(_ATTEMPTS):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # let `read` say what is wrong, unless a two-step replacement is in progress
            if _beside(folder, OLD).exists():
                time.sleep(0.01)
                continue
            return read(folder)
        try:  # while it is open, no other folder can get its inode
            result = read(folder)
            if is_at(descriptor, folder):
                return result
        except (InputError, OSError):
            if is_at(descriptor, folder):
                raise
        finally:
            os.close(descriptor)
        time.sleep(random.uniform(0, 0.001 * attempt))  # a writer that never pauses would win every time
    raise InputError(f"{folder}: keeps being replaced; try again")


_ATTEMPTS = 100


def verify(folder: Path, *names: str) -> None:
    """Raise an `InputError` for a file that differs from what was written.

    A folder without checksums passes. A missing file is left to its reader.
    """
    file = folder / CHECKSUMS
    if not file.exists():
        return
    sums = read_json(file)
    for name in names:
        if not (folder / name).is_file():
            continue
        if name not in sums:
            raise InputError(f"{folder / name}: is not listed in {CHECKSUMS}, so it was not written with the others")
        if sha256(folder / name) != sums[name]:
            raise InputError(
                f"{folder / name}: damaged, it does not match {CHECKSUMS} (remove that file if the change was meant)"
            )


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _sync_tree(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


@contextmanager
def keep_folder(folder: Path, message: str) -> Iterator[None]:
    """Lock a folder against other processes, creating it if needed; `message` is the error they get.

    A new folder is removed again if nothing was written to it.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    with lock_folder(folder, message):
        try:
            yield
        finally:
            if is_new:
                with suppress(OSError):  # it is not empty
                    folder.rmdir()

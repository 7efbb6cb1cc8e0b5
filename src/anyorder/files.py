"""Results on disk: written completely or not at all, even after a power cut. Knows nothing about their contents.

While a file or folder is being written, it is next to its final path, with the suffix `.partial`, and its writer holds
a lock on it: a second writer is refused, and what a killed writer left behind does not block the next one. A folder is
swapped with the one that it replaces. The swap is atomic if the file system supports that, so a reader finds either the
old folder or the new one, and `read_whole` never reads half of each.

What is written is locked itself, so no lock file is left in anyone's folder, as the package filelock would leave one.
A lock ends with the process that holds it, however it ends. `records` reads files that may be damaged.
"""

import ctypes
import errno
import fcntl
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

from anyorder.errors import InputError
from anyorder.records import read_json

if TYPE_CHECKING:
    from torch import Tensor

PARTIAL = ".partial"
"""Suffix of what is being written."""
OLD = ".old"
"""Suffix of a folder that is being replaced, if that takes two steps."""
CHECKSUMS = "checksums.json"
"""A file in each folder from `atomic_folder`: the SHA-256 of each of its files."""
Result = TypeVar("Result")


@contextmanager
def atomic_file(file: Path, keep_on: tuple[type[BaseException], ...] = ()) -> Iterator[IO[str]]:
    """A text stream into a file that appears only if the block succeeds.

    A file named .gz or .xz is compressed. Anything but a regular file, such as /dev/stdout, is written to directly.
    keep_on: errors that end the block but leave what was written in place.
    """
    if file.is_dir():
        raise InputError(f"{file}: is a folder, expected a file to write")
    file = file.resolve() if file.is_file() else file  # a symbolic link stays one
    if file.exists() and not file.is_file():
        with io.BufferedWriter(_OutputFile(file, file, "wb")) as output, _text_stream(output, file.suffix) as stream:
            yield stream
        return
    partial = file.with_name(file.name + PARTIAL)
    with io.BufferedWriter(_open_locked(partial, file)) as output:
        try:
            try:
                with _text_stream(output, file.suffix) as stream:
                    yield stream
            except keep_on:
                _move_into_place(output, partial, file)
                raise
            _move_into_place(output, partial, file)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


class _OutputFile(io.FileIO):
    """A file whose write errors, such as a full disk, become an `InputError` that names its final path."""

    def __init__(self, path: Path, place: Path, mode: str):
        self._place = place
        with _writing(place):
            super().__init__(path, mode)

    def write(self, data: Any) -> int:
        with _writing(self._place):
            return super().write(data)


@contextmanager
def _writing(place: Path, errors: Collection[int] = ()) -> Iterator[None]:
    """A failure to write is an `InputError` that names the place; if `errors` are given, only one of these numbers."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if errors and error.errno not in errors:
            raise
        raise cannot_write(place, error) from None


def cannot_write(place: Path, error: OSError) -> InputError:
    return InputError(f"{place}: cannot be written ({error.strerror or error})")


def _open_locked(partial: Path, file: Path) -> _OutputFile:
    """The partial file, empty and locked by this process."""
    while True:
        output = _OutputFile(partial, file, "ab")
        if not _lock(output.fileno()):
            output.close()
            raise InputError(f"{file}: another process is writing it")
        if _is_at(output.fileno(), partial):
            output.truncate(0)
            return output
        output.close()  # its writer moved it into place after it was opened here


@contextmanager
def _text_stream(output: IO[bytes], suffix: str) -> Iterator[IO[str]]:
    """Text into a binary file, which stays open."""
    compressed: IO[bytes] | None = None
    if suffix == ".gz":  # without a timestamp, so that equal text gives equal bytes
        compressed = cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", fileobj=output, mtime=0))
    elif suffix == ".xz":
        compressed = cast(IO[bytes], lzma.LZMAFile(output, "wb"))  # noqa: SIM115 - closed below
    stream = io.TextIOWrapper(compressed or output, encoding="utf-8")
    try:
        yield stream
    finally:
        stream.detach()
        if compressed:
            compressed.close()
        output.flush()


def _move_into_place(output: IO[bytes], partial: Path, file: Path) -> None:
    with _writing(file):
        os.fsync(output.fileno())  # contents before the name, so that no power cut leaves the name of an empty file
        partial.replace(file)
        _sync(file.parent)


def _sync(path: Path) -> None:
    """Make a file or folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def atomic_folder(folder: Path, replace: bool = True) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` if the block succeeds and is removed otherwise.

    The checksums of its files are added, for `verify`. An existing folder is an `InputError` unless `replace`.
    """
    recover_folder(folder)
    if folder.exists() and not replace:
        raise InputError(f"{folder}: already exists; remove it or choose another place")
    with _partial_folder(folder) as partial:
        yield partial
        sums = {file.name: sha256(file) for file in sorted(partial.iterdir()) if file.is_file()}
        write_json(partial / CHECKSUMS, sums)
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        replace_folder(partial, folder)


@contextmanager
def added_files(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, whose files move into `folder` if the block succeeds. Other files there stay."""
    with _partial_folder(folder) as partial:
        yield partial
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        for file in sorted(partial.iterdir()):
            folder.mkdir(exist_ok=True)
            file.replace(folder / file.name)


@contextmanager
def _partial_folder(folder: Path) -> Iterator[Path]:
    """An empty folder next to `folder` that this process locks, and removes at the end if it is still there."""
    partial = _beside(folder, PARTIAL)
    with _writing(folder, _DISK_ERRORS):
        partial.mkdir(parents=True, exist_ok=True)
    with lock_folder(partial, f"{folder}: another process is writing it"):
        try:
            with _writing(folder, _DISK_ERRORS):
                for leftover in partial.iterdir():
                    _remove(leftover)
                yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


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
    _sync(old.parent)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders atomically; False if the system cannot."""
    libc, one, other = ctypes.CDLL(None), os.fsencode(a.absolute()), os.fsencode(b.absolute())
    if hasattr(libc, "renameat2"):  # Linux
        here, exchange = -100, 2
        return not libc.renameat2(here, one, here, other, exchange)
    if hasattr(libc, "renamex_np"):  # macOS
        swap = 2
        return not libc.renamex_np(one, other, swap)
    return False


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
            _remove(leftover, ignore_errors=True)


def _remove(path: Path, ignore_errors: bool = False) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors)
    else:
        path.unlink(missing_ok=True)


def is_leftover(name: str) -> bool:
    """Whether a file or folder of this name is unfinished, or is being replaced."""
    return name.endswith((PARTIAL, OLD))


def check_plain_name(name: str) -> None:
    """Raise an `InputError` if a user's name cannot be that of a file or folder, or needs quotes in a shell."""
    if not re.fullmatch(r"\w[\w.+-]{0,99}", name) or is_leftover(name):
        raise InputError(f"'{name}': is not a plain name (letters, digits, '-', '+', '.' and '_', at most 100)", "name")


def read_whole(folder: Path, read: Callable[[Path], Result]) -> Result:
    """What `read` returns for a folder. If the folder was replaced meanwhile, it is read again: never half of each."""
    for attempt in range(100):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # let `read` say what is wrong, unless a two-step replacement is in progress
            if _beside(folder, OLD).exists():
                time.sleep(0.01)
                continue
            return read(folder)
        try:  # while it is open, no other folder can get its inode
            result = read(folder)
            if _is_at(descriptor, folder):
                return result
        except (InputError, OSError):
            if _is_at(descriptor, folder):
                raise
        finally:
            os.close(descriptor)
        time.sleep(random.uniform(0, 0.001 * attempt))  # a writer that never pauses would win every time
    raise InputError(f"{folder}: keeps being replaced; try again")


def verify(folder: Path, *names: str) -> None:
    """Raise an `InputError` for a file that differs from what was written.

    A folder without checksums passes. A missing file is left to its reader.
    """
    if not (folder / CHECKSUMS).exists():
        return
    sums = read_json(folder / CHECKSUMS)
    for name in names:
        file = folder / name
        if not file.is_file():
            continue
        if name not in sums:
            raise InputError(f"{file}: is not listed in {CHECKSUMS}, so it was not written with the others")
        if sha256(file) != sums[name]:
            raise InputError(
                f"{file}: damaged, it does not match {CHECKSUMS} (remove that file if the change was meant)"
            )


@contextmanager
def keep_folder(folder: Path, message: str) -> Iterator[None]:
    """Lock a folder against other processes, creating it if needed; `message` is the error they get.

    A new folder is removed again if nothing was written to it.
    """
    is_new = not folder.exists()
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, message):
        try:
            yield
        finally:
            if is_new:
                with suppress(OSError):  # it is not empty
                    folder.rmdir()


@contextmanager
def lock_folder(folder: Path, message: str | None = None) -> Iterator[None]:
    """Keep other processes out of a folder until the block ends or this process does; `message` is their error."""
    while True:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise InputError(f"{folder}: cannot be opened ({error.strerror})") from None
        if not _lock(descriptor):
            os.close(descriptor)
            raise InputError(message or f"{folder}: another process is working there")
        if _is_at(descriptor, folder):
            break
        os.close(descriptor)  # replaced after it was opened here
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a file or folder; returns whether it succeeded, and always True if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file or folder is the one at that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def check_writable(folder: Path) -> None:
    """Raise an `InputError` unless something can be written into a folder, which need not exist yet."""
    with _writing(folder):
        place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise InputError(f"{folder}: {place} is a file, expected a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: {place} may not be written")


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file into a folder that is not visible yet."""
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_tensors(file: Path, tensors: dict[str, "Tensor"]) -> None:
    """Write a safetensors file into a folder that is not visible yet. Tied weights are written under each name."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    held: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous().cpu()
        held[name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
    try:
        save_file(held, file, {"format": "pt"})
    except SafetensorError as error:
        raise InputError(f"{file}: cannot be written ({error})") from None
    file.chmod(0o644)  # safetensors writes files that only their owner may read


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

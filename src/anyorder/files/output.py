"""A file that appears complete or not at all, even after a power cut.

While it is being written it is next to its final path, with the suffix `.partial`, and its writer holds a lock on it.
So a second writer is refused, and what a killed writer left behind does not block the next one.
"""

import errno
import gzip
import hashlib
import io
import json
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from anyorder.errors import InputError
from anyorder.files.locks import is_at, lock

if TYPE_CHECKING:
    from torch import Tensor

PARTIAL = ".partial"
"""Suffix of what is being written."""


@contextmanager
def atomic_file(file: Path, keep_on: tuple[type[BaseException], ...] = ()) -> Iterator[IO[str]]:
    """A text stream into a file that appears only if the block succeeds.

    A file named .gz or .xz is compressed. Anything but a regular file, such as /dev/stdout, is written to directly.

    Args:
        file: Where to write.
        keep_on: Errors that end the block but leave what was written in place.
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
        try:
            super().__init__(path, mode)
        except OSError as error:
            raise cannot_write(place, error) from None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise cannot_write(self._place, error) from None


def cannot_write(place: Path, error: OSError) -> InputError:
    return InputError(f"{place}: cannot be written ({error.strerror or error})")


def _open_locked(partial: Path, file: Path) -> _OutputFile:
    """The partial file, empty and locked by this process."""
    while True:
        output = _OutputFile(partial, file, "ab")
        if not lock(output.fileno()):
            output.close()
            raise InputError(f"{file}: another process is writing it")
        if is_at(output.fileno(), partial):
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
    try:
        os.fsync(output.fileno())  # contents before the name, so that no power cut leaves the name of an empty file
        partial.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        raise cannot_write(file, error) from None


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def check_writable(folder: Path) -> None:
    """Raise an `InputError` unless something can be written into a folder, which need not exist yet."""
    try:
        place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise cannot_write(folder, error) from None
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

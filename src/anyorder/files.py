"""Files and folders that appear whole or not at all, and JSON and tensors that are checked when they are read.

The only place that writes results to disk and the only place that reads files which may be damaged. It knows nothing of
what they hold.
"""

import gzip
import hashlib
import json
import lzma
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from anyorder.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

PARTIAL, OLD = ".partial-", ".old-"
"""What stands between a name and the process id while something is written, and while it is being replaced."""


@contextmanager
def atomic_file(file: Path, keep_on: tuple[type[BaseException], ...] = ()) -> Iterator[IO[str]]:
    """A text stream into a file that appears when the block ends well, and not at all otherwise.

    A name that ends in .gz or .xz is compressed. What is no plain file, such as /dev/stdout, is written to directly.

    Args:
        file: Where to write.
        keep_on: Errors that end the block but leave what was written in place.
    """
    if file.is_dir():
        raise InputError(f"{file}: is a folder, expected a file to write")
    file = file.resolve() if file.is_file() else file  # a link stays one
    is_device = file.exists() and not file.is_file()
    partial = file if is_device else file.with_name(f"{file.name}{PARTIAL}{os.getpid()}")
    try:
        stream = _open_for_writing(partial, file.suffix)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror})") from None
    try:
        try:
            with stream:
                yield stream
        except keep_on:
            if not is_device:
                partial.replace(file)
            raise
        if not is_device:
            partial.replace(file)
    except BaseException:
        if not is_device:
            partial.unlink(missing_ok=True)
        raise


def _open_for_writing(file: Path, suffix: str) -> IO[str]:
    if suffix == ".gz":
        return cast(IO[str], gzip.open(file, "wt", encoding="utf-8"))
    if suffix == ".xz":
        return cast(IO[str], lzma.open(file, "wt", encoding="utf-8"))
    return file.open("w", encoding="utf-8")


@contextmanager
def atomic_folder(folder: Path, replace: bool = True) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `folder` when the block ends well and vanishes otherwise.

    Args:
        folder: The folder to write; its parents are made.
        replace: Whether one that exists is replaced; otherwise it is an `InputError`.
    """
    if folder.exists() and not replace:
        raise InputError(f"{folder}: already exists; remove it or choose another place")
    partial = folder.with_name(f"{folder.name}{PARTIAL}{os.getpid()}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    try:
        yield partial
        replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(new: Path, old: Path) -> None:
    """Put `new` in the place of `old`."""
    if not old.exists():
        new.rename(old)
        return
    aside = old.with_name(f"{old.name}{OLD}{os.getpid()}")
    old.rename(aside)
    new.rename(old)
    shutil.rmtree(aside)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process had begun to write or to replace."""
    for pattern in (f"*{PARTIAL}*", f"*{OLD}*"):
        for leftover in folder.glob(pattern):
            shutil.rmtree(leftover)


def is_leftover(name: str) -> bool:
    """Whether a file or folder of this name is what a killed process left behind."""
    return PARTIAL in name or OLD in name


def check_writable(folder: Path) -> None:
    """An `InputError` unless something can be written into a folder, which need not exist yet."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise InputError(f"{folder}: {place} is a file, expected a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: {place} may not be written")


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file into a folder that is not visible yet."""
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; an `InputError` names the file and what is wrong with it."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{file}: expected a JSON object")
    return value


def read_tensors(file: Path) -> dict[str, "Tensor"]:
    """The tensors of a safetensors file. Pickled files are never opened."""
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        pickled = sorted(file.parent.glob("*.bin")) + sorted(file.parent.glob("*.pt*"))
        hint = f"; {pickled[0].name} is pickled and will not be opened, convert it to safetensors" if pickled else ""
        raise InputError(f"{file}: no such file{hint}")
    try:
        with safe_open(file, "pt") as tensors:
            return {key: tensors.get_tensor(key) for key in tensors.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{file}: corrupted checkpoint ({error})") from None


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

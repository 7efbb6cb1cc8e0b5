"""Read text files line by line: plain, .gz or .xz, one or several that run in parallel. Knows nothing of languages."""

import gzip
import lzma
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, cast

from anyorder.errors import InputError


def open_bytes(path: Path) -> IO[bytes]:
    """The decompressed bytes of a file."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a text file")
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends. Only line feeds end a line, as in every aligned corpus."""
    with open_bytes(path) as stream:
        yield from decode_lines(stream, str(path))


def decode_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """The same for bytes that come from anywhere; `name` is what messages call them."""
    number = 0
    try:
        for block in _blocks(stream):
            try:
                lines = block.decode("utf-8").split("\n")
            except UnicodeDecodeError:
                raise _invalid(name, block, number) from None
            if number == 0:
                lines[0] = lines[0].removeprefix("\ufeff")
            if lines[-1] == "":
                lines.pop()
            for line in lines:
                yield line.removesuffix("\r")
            number += len(lines)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"{name}: cannot be read after line {number} ({error})") from error


def read_parallel(paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """The n-th lines of all files together; an `InputError` if the files are not equally long."""
    missing: Any = object()
    readers = [read_lines(path) for path in paths]
    for number, lines in enumerate(zip_longest(*readers, fillvalue=missing)):
        if missing in lines:
            counts = [
                number + (line is not missing) + sum(1 for _ in reader)
                for line, reader in zip(lines, readers, strict=True)
            ]
            told = [f"{path} has {count:,} lines" for path, count in zip(paths, counts, strict=True)]
            raise InputError(f"{' but '.join(told)}: parallel files need one line for each other's line")
        yield lines


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Bytes of whole lines, a few thousand at a time, so that decoding costs one call a block."""
    while lines := stream.readlines(1 << 20):
        yield b"".join(lines)


def _invalid(name: str, block: bytes, lines_before: int) -> InputError:
    for number, line in enumerate(block.split(b"\n"), start=lines_before + 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = line[error.start]
            return InputError(f"{name}, line {number}: invalid UTF-8 (byte 0x{byte:02x} at column {error.start + 1})")
    raise AssertionError("the block was invalid but none of its lines is")

"""Corpora: their files, and the lines in them (plain, .gz or .xz, several files in parallel).

Knows nothing of words, ids or stores.
"""

import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, Literal, cast

from anyorder.errors import InputError

MAX_LINE = 1 << 26
"""Maximum bytes per line; a longer one is not text, or comes from an endless device."""
OnInvalid = Literal["strict", "replace"]
"""Bytes that are not UTF-8 raise an `InputError`, or each becomes U+FFFD."""


@dataclass(frozen=True)
class Corpus:
    """Parallel files, one for each language in the store's order, or a single file of one language."""

    name: str
    files: tuple[Path, ...]
    labels: Path | None = None
    """A file that names the corpus of each line; these names then replace `name`."""

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Every file that is read."""
        return (*self.files, self.labels) if self.labels else self.files

    def lines(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each line in all languages, with the name of its corpus."""
        for row in read_parallel(self.inputs):
            yield (row[-1], row[:-1]) if self.labels else (self.name, row)


def parse_corpora(spec: str, languages: Sequence[str]) -> list[Corpus]:
    """`[NAME=]PATTERN[@LABELS]`, several separated by commas; `%` in a pattern stands for the language.

    >>> parse_corpora("news=n.%.xz", ["de", "en"])[0].files
    (PosixPath('n.de.xz'), PosixPath('n.en.xz'))
    """
    corpora = []
    for entry in filter(None, (part.strip() for part in spec.split(","))):
        pattern, _, labels = entry.partition("@")
        name, equals, rest = pattern.partition("=")
        pattern = rest if equals else pattern
        if "%" not in pattern:
            raise InputError(f"'{entry}': a corpus is written with % for the language, such as data/train.%.xz")
        name = name if equals else Path(pattern).name.split(".%")[0]
        files = tuple(Path(pattern.replace("%", language)) for language in languages)
        corpora.append(Corpus(name, files, Path(labels) if labels else None))
    return corpora


def split_by_language(corpora: Sequence[Corpus], languages: Sequence[str]) -> dict[str, list[Corpus]]:
    """The monolingual corpora of each language that has any. Files of different languages need not be aligned."""
    by_language: dict[str, list[Corpus]] = {}
    for corpus in corpora:
        if corpus.labels:
            raise InputError(f"{corpus.labels}: labels go with parallel corpora only")
        if not any(file.exists() for file in corpus.files):
            raise InputError(f"{corpus.files[0]}: no such file, nor one for another language")
        for file, language in zip(corpus.files, languages, strict=True):
            if file.exists():
                by_language.setdefault(language, []).append(Corpus(corpus.name, (file,)))
    return by_language


def read_lines(path: Path, on_invalid: OnInvalid = "strict") -> Iterator[str]:
    """The lines of a UTF-8 file, without line endings. Only line feeds end a line, as in aligned corpora."""
    with open_bytes(path) as stream:
        yield from decode_lines(stream, str(path), on_invalid)


def read_text(stream: IO[bytes], name: str, on_invalid: OnInvalid = "strict") -> str:
    """All of a UTF-8 stream, as it is; `name` is what messages call it."""
    try:
        found = stream.read(MAX_LINE + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{name}: cannot be read ({error})") from error
    if len(found) > MAX_LINE:
        raise InputError(f"{name}: has more than {MAX_LINE:,} bytes")
    try:
        return found.decode("utf-8", on_invalid)
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: invalid UTF-8 (byte 0x{found[error.start]:02x} at {error.start + 1})") from None


def read_parallel(paths: Sequence[Path], on_invalid: OnInvalid = "strict") -> Iterator[tuple[str, ...]]:
    """The n-th lines of all files together; an `InputError` if the files have different numbers of lines."""
    missing: Any = object()
    readers = [read_lines(path, on_invalid) for path in paths]
    for number, lines in enumerate(zip_longest(*readers, fillvalue=missing)):
        if missing in lines:
            counts = [
                number + (line is not missing) + sum(1 for _ in reader)
                for line, reader in zip(lines, readers, strict=True)
            ]
            sizes = [f"{path} has {count:,} lines" for path, count in zip(paths, counts, strict=True)]
            raise InputError(f"{' but '.join(sizes)}: parallel files need the same number of lines")
        yield lines


def decode_lines(stream: IO[bytes], name: str, on_invalid: OnInvalid = "strict") -> Iterator[str]:
    """`read_lines` for any byte stream; `name` is what messages call it."""
    number = 0
    try:
        for block in _blocks(stream):
            try:
                lines = block.decode("utf-8", on_invalid).split("\n")
            except UnicodeDecodeError as error:
                before, byte = block[: error.start], block[error.start]
                number, column = number + before.count(b"\n") + 1, error.start - before.rfind(b"\n")
                message = f"{name}, line {number}: invalid UTF-8 (byte 0x{byte:02x} at column {column})"
                raise InputError(message) from None
            if number == 0:
                lines[0] = lines[0].removeprefix("\ufeff")
            if lines[-1] == "":
                lines.pop()
            for line in lines:
                yield line.removesuffix("\r")
            number += len(lines)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{name}: cannot be read after line {number} ({error})") from error


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


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Bytes of whole lines, about a megabyte at a time: decoding is one call per block."""
    rest = b""
    while read := stream.read(1 << 20):
        rest += read
        end = rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
        elif len(rest) > MAX_LINE:
            raise OSError(f"a line has more than {MAX_LINE:,} bytes")
    if rest:
        yield rest

"""The folder of a run: who may write to it, and its log. Knows nothing about the contents of checkpoints."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anyorder.errors import InputError
from anyorder.files import OLD, PARTIAL, atomic_file, cannot_write, check_writable, keep_folder, remove_leftovers
from anyorder.files.records import Record, parse_json
from anyorder.progress import is_main_process

LOG = "log.jsonl"
RUN_FILES = (LOG, "checkpoint-*", f"*{PARTIAL}", f"*{OLD}", "anyorder")
"""What the folder of a started run may contain; the last one is TensorBoard's."""


def check_run_folder(out: Path, resume: bool) -> None:
    """Raise an `InputError` unless a run can use the folder: it must be new, empty, or hold the run to resume."""
    check_writable(out)
    if not out.exists() or not any(out.iterdir()):
        return
    if not resume:
        raise InputError(f"is needed to continue {out}, which already exists; or choose another place", "resume")
    if not any(match for pattern in RUN_FILES for match in out.glob(pattern)):
        raise InputError(f"{out}: is not the folder of a run, so there is nothing to resume")


@contextmanager
def open_run_folder(out: Path, resume: bool) -> Iterator[None]:
    """Reserve the folder of a run for this process: no other run can work there until the block ends.

    Unfinished files of killed runs are removed. A new folder is removed again if nothing was written to it. If several
    processes share a run, only the main one reserves and writes the folder.
    """
    if not is_main_process():
        yield
        return
    with keep_folder(out, f"{out}: another run is using this folder"):
        check_run_folder(out, resume)
        remove_leftovers(out)
        yield


def append_to_log(out: Path, entry: dict[str, float]) -> None:
    """Add a line to the log. JSON has no NaN or infinity; they become null."""
    line = json.dumps({name: value if math.isfinite(value) else None for name, value in entry.items()})
    try:
        with (out / LOG).open("a", encoding="utf-8") as log:
            log.write(line + "\n")
    except OSError as error:
        raise cannot_write(out / LOG, error) from None


def truncate_log(out: Path, step: int) -> None:
    """Drop the entries of steps that will be repeated, and the incomplete last line of a killed run."""
    file = out / LOG
    if not file.exists():
        return
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    whole = [_entry_step(line, f"{file}, line {number}") for number, line in enumerate(lines[:-1], 1)]
    with suppress(InputError):  # incomplete, unless only the newline is missing
        whole.append(_entry_step(lines[-1], str(file)))
    kept = [line for line, of in zip(lines, whole, strict=False) if of <= step]
    with atomic_file(file) as log:
        log.writelines(line.decode() + "\n" for line in kept)


def _entry_step(line: bytes, where: str) -> int:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8") from None
    return Record(where, parse_json(text, where)).integer("step")

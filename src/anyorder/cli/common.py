"""What several verbs share: check where they write, choose the device, load the model, report on lines."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from anyorder.decoder import Decoder, load
from anyorder.device import join_processes, resolve_device
from anyorder.errors import InputError
from anyorder.files import atomic_file
from anyorder.models.hf.pretrained import PREFIX
from anyorder.progress import is_main_process
from anyorder.registry import is_count
from anyorder.tasks import Task


def open_decoder(model: str, device: str, task: str | Task | None = None) -> Decoder:
    """The model on this process's device; joins the other processes if a launcher started several."""
    place = resolve_device(device)
    join_processes(place)
    return load(model, task=task, device=place)


def masked_model(name: str) -> str:
    """The name of what must be a masked language model; a user may leave out the prefix."""
    return f"{PREFIX}{name.removeprefix(PREFIX)}"


def split_limits(text: str) -> list[int | None]:
    """Length limits separated by commas, such as 20,30,none."""
    limits: list[int | None] = []
    for part in text.split(","):
        if part.strip() != "none" and not is_count(part.strip()):
            raise InputError(f"'{part}': expected a whole number from 1, or none", "max_length")
        limits.append(None if part.strip() == "none" else int(part))
    return limits


@contextmanager
def output_file(file: Path | None) -> Iterator[IO[str] | None]:
    """A stream into a file that appears if the block succeeds. None without a file, and in all but one process."""
    if file is None or not is_main_process():
        yield None
        return
    with atomic_file(file) as stream:
        yield stream


def print_note(verb: str, note: str) -> None:
    """One line on standard error about what was done; nothing if there is nothing to say."""
    if note and is_main_process():
        print(f"anyorder {verb}: {note}", file=sys.stderr)


def check_apart(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Raise an `InputError` if two of the files to write, given by flag, are the same, or if one is also read."""
    read = {os.path.realpath(file) for file in inputs if file is not None}  # unlike resolve, accepts circular links
    flags: dict[str, str] = {}
    for flag, file in outputs.items():
        if file is None or (os.path.exists(file) and not os.path.isfile(file)):  # such as /dev/stdout
            continue
        place = os.path.realpath(file)
        if place in read:
            raise InputError(f"{flag} {file}: would replace a file that is read")
        if place in flags:
            raise InputError(f"{flag} {file}: is the file of {flags[place]} as well")
        flags[place] = flag

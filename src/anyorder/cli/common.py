"""What several verbs do before they begin."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import torch

from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel
from anyorder.progress import is_main_process
from anyorder.translator import Translator

Device = Literal["auto", "cpu", "cuda"]


def limit_threads() -> None:
    """Processes that a launcher started share the cores instead of each taking all of them."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local))


RUN = ("log.jsonl", "checkpoint-*", "*.partial-*", "anyorder")
"""What may be found in the folder of a run that has begun; the last is TensorBoard's."""


def check_run_folder(out: Path, resume: bool) -> None:
    """Whether a run can write its folder: there is none yet, it is empty, or it holds the run to be resumed."""
    check_folder(out)
    if not out.exists() or not any(out.iterdir()):
        return
    if not resume:
        raise InputError(f"{out}: already exists; continue it with --resume or choose another place")
    if not any(found for pattern in RUN for found in out.glob(pattern)):
        raise InputError(f"{out}: is not the folder of a run, --resume has nothing to continue")


def check_folder(folder: Path) -> None:
    """Whether something can be written into a folder, which need not exist yet."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise InputError(f"{folder}: {place} is a file, expected a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: {place} may not be written")


def check_apart(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Whether files to write, by option, are different ones and none is also read."""
    read = {os.path.realpath(file) for file in inputs if file is not None}  # links that go in circles do not stop it
    taken: dict[str, str] = {}
    for option, file in outputs.items():
        if file is None or (os.path.exists(file) and not os.path.isfile(file)):  # such as /dev/stdout
            continue
        place = os.path.realpath(file)
        if place in read:
            raise InputError(f"{option} {file}: would replace a file that is read")
        if place in taken:
            raise InputError(f"{option} {file}: is the file of {taken[place]} as well")
        taken[place] = option


@contextmanager
def whole_file(file: Path | None) -> Iterator[IO[str] | None]:
    """A stream into a file that appears when the block ends well, and not at all otherwise. Main process only."""
    if file is None or not is_main_process():
        yield None
        return
    if file.is_dir():
        raise InputError(f"{file}: is a folder, expected a file to write")
    file = file.resolve() if file.is_file() else file  # a link stays one
    device = file.exists() and not file.is_file()  # such as /dev/stdout: nothing to put in its place
    partial = file if device else file.with_name(f"{file.name}.partial-{os.getpid()}")
    try:
        stream = partial.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror})") from None
    try:
        with stream:
            yield stream
        if not device:
            partial.replace(file)
    except BaseException:
        if not device:
            partial.unlink(missing_ok=True)
        raise


def check_device(device: Device) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no CUDA device")


def open_translator(model: str, device: Device) -> Translator:
    """The model on this process's device; joins the other processes where a launcher started several."""
    check_device(device)
    place = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    limit_threads()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        place = PartialState(cpu=place.type == "cpu").device
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    return Translator(TranslationModel.from_pretrained(model, place, dtype))

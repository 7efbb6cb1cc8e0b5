"""What several verbs do before they begin."""

import os
from pathlib import Path
from typing import Literal

import torch

from anyorder.errors import InputError
from anyorder.model.model import Model
from anyorder.translator import Translator

Device = Literal["auto", "cpu", "cuda"]


def limit_threads() -> None:
    """Processes that a launcher started share the cores instead of each taking all of them."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local))


def check_out(out: Path, resume: bool) -> None:
    if out.exists() and not resume and any(out.iterdir() if out.is_dir() else [out]):
        raise InputError(f"{out}: already exists; continue it with --resume or choose another place")


def open_translator(model: str, device: Device) -> Translator:
    """The model on this process's device; joins the other processes where a launcher started several."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no CUDA device")
    place = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    limit_threads()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        place = PartialState(cpu=place.type == "cpu").device
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    return Translator(Model.from_pretrained(model, place, dtype))

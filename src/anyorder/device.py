"""Where to run: the one place that chooses a device and the precision that goes with it."""

import os
from typing import Literal

import torch

from anyorder.errors import InputError

Device = Literal["auto", "cpu", "cuda"]


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name; `auto` is CUDA where there is one.

    In a process that `accelerate launch` or `torchrun` started it is this process's own device.
    """
    if isinstance(device, torch.device):
        return device
    if device not in ("auto", "cpu") and not device.startswith("cuda"):
        raise InputError(f"'{device}': expected auto, cpu or cuda", "device")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"{device}: this machine has no CUDA device", "device")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if device == "auto" or device == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) if process_count() > 1 else 0)
    return torch.device(device)


def inference_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on CUDA, float32 on the CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def process_count() -> int:
    """How many processes a launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join_processes(device: torch.device) -> None:
    """Meet the other processes where a launcher started several; they share the cores instead of each taking all."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local))
    if process_count() > 1:
        from accelerate import PartialState

        PartialState(cpu=device.type == "cpu")

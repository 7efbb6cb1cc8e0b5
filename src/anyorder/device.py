"""Where to run: the device, the precision that goes with it, and the processes that a launcher started."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anyorder.errors import InputError, LostProcessError

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name; `auto` is CUDA if available.

    In a process started by `accelerate launch` or `torchrun`, it is this process's own device.
    """
    if isinstance(device, torch.device):
        return device
    if device not in ("auto", "cpu") and not device.startswith("cuda"):
        raise InputError(f"'{device}': expected auto, cpu or cuda", "device")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"{device}: this machine has no CUDA device", "device")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if device in ("auto", "cuda"):
        return torch.device("cuda", _from_launcher("LOCAL_RANK", 0) if process_count() > 1 else 0)
    return torch.device(device)


def describe_device(device: torch.device) -> str:
    """The device in words: the CPU with its number of threads, or the name of the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"the CPU ({threads} thread{'s' if threads > 1 else ''})"


def inference_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on CUDA, float32 on the CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The precision of that name; auto is `inference_dtype`."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in get_args(DType):
        raise InputError(f"'{dtype}': expected {', '.join(get_args(DType))}", "dtype")
    return inference_dtype(device) if dtype == "auto" else getattr(torch, dtype)


def to_device(array: np.ndarray, device: torch.device | str) -> Tensor:
    """Copy a host array to the device without making the host wait for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules built in this block have weights with shapes, but allocate no memory and initialize nothing."""
    with torch.device("meta"), Uninitialized():  # initializing there would import torch's compiler: seconds
        yield


class Uninitialized(TorchFunctionMode):
    """Modules that are built in this context are not initialized: their weights are loaded next."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if function in (torch.Tensor.uniform_, torch.Tensor.normal_):  # what other functions of torch.nn.init call
            return args[0]
        return function(*args, **kwargs)


def process_count() -> int:
    """How many processes a launcher started."""
    return _from_launcher("WORLD_SIZE", 1)


def _from_launcher(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise InputError(f"the environment variable {name} is '{value}': expected a number, which a launcher sets")
    return int(value)


def join_processes(device: torch.device) -> None:
    """Join the other processes if a launcher started several; they share the cores instead of each using all."""
    local = _from_launcher("LOCAL_WORLD_SIZE", 1)
    if local > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local))
    if process_count() > 1:
        from accelerate import PartialState

        if "TORCHELASTIC_RUN_ID" in os.environ:
            Thread(target=_end_with_launcher, args=(os.getppid(),), daemon=True).start()
        with report_lost_process():
            PartialState(cpu=device.type == "cpu")


@contextmanager
def report_lost_process() -> Iterator[None]:
    """Turns errors in communication with a lost process into a `LostProcessError`."""
    try:
        yield
    except RuntimeError as error:
        if process_count() == 1 or not _CONNECTION.search(str(error)):
            raise
        rank = _from_launcher("RANK", 0)
        other = f"process {1 - rank}" if process_count() == 2 else "another process"
        # The first sentence of the library's message, without the place in its source.
        reason = re.sub(r"^\[[^\]]*\] ?", "", str(error).strip().splitlines()[0]).split(". ")[0]
        raise LostProcessError(f"process {rank} lost {other} ({reason})") from None


_CONNECTION = re.compile("gloo|nccl|tcpstore|connect|socket|broken pipe|timed? ?out", re.IGNORECASE)


def _end_with_launcher(launcher: int) -> None:
    """End this process as a signal to stop would, once its launcher is gone."""
    while os.getppid() == launcher:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)

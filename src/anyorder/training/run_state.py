"""A run on disk: everything that `--resume` needs, written as a whole or not at all, and checked when read.

    checkpoint-00001000/
      state.json             step, place in the data, clock, best score, checksums
      model.safetensors      weights · average.safetensors · optimizer.safetensors

Random numbers need no saving: every batch and epoch draws its own from the seed.
"""

import json
import math
import os
import shutil
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from anyorder.errors import InputError
from anyorder.files import read_json, read_tensors
from anyorder.training.batches import Cursor

STATE = "state.json"


@dataclass
class RunState:
    """Where a run stands."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    seconds: float = 0.0
    best: float = -math.inf
    scores: dict[str, float] = field(default_factory=dict)
    validated: int = -1
    """The step of the last validation."""
    stale: int = 0
    """Validations since the best one."""
    settings: dict[str, object] = field(default_factory=dict)
    """What the run was told to do besides what its fingerprint holds."""


def save_state(
    out: Path,
    state: RunState,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    fingerprint: dict[str, object],
) -> None:
    """Write `out/checkpoint-STEP`, then remove older ones. A reader never sees half of one."""
    folder = out / f"checkpoint-{state.step:08d}"
    partial = out / f"{folder.name}.partial-{os.getpid()}"
    partial.mkdir(parents=True)
    tensors = {
        "model": dict(model.state_dict()),
        "average": dict(average.state_dict()),
        "optimizer": _optimizer_tensors(model, optimizer),
    }
    checksums = {}
    for name, values in tensors.items():
        file = partial / f"{name}.safetensors"
        save_file({key: value.detach().contiguous().cpu() for key, value in values.items()}, file)
        checksums[file.name] = _checksum(file)
    about = {**asdict(state), "fingerprint": fingerprint, "checksums": checksums}
    (partial / STATE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    partial.rename(folder)
    for old in _checkpoints(out):
        if old != folder:
            shutil.rmtree(old)


def load_latest(
    out: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    fingerprint: dict[str, object],
) -> RunState | None:
    """Load the newest checkpoint of a run into these objects; None where there is none yet."""
    found = _checkpoints(out)
    if not found:
        return None
    folder = found[-1]
    about = read_json(folder / STATE)
    try:
        for name, expected in about["checksums"].items():
            if not (folder / name).exists() or _checksum(folder / name) != expected:
                raise InputError(f"{folder / name}: corrupted checkpoint (its checksum is wrong)")
        theirs = about["fingerprint"]
        state = RunState(
            step=about["step"],
            cursor=Cursor(**about["cursor"]),
            seconds=about["seconds"],
            best=about["best"],
            scores=about["scores"],
            validated=about["validated"],
            stale=about.get("stale", 0),
            settings=about.get("settings", {}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / STATE}: corrupted checkpoint ({error})") from None
    if changed := changes(theirs, fingerprint):
        raise InputError(f"{folder}: cannot resume: {'; '.join(changed)}")
    model.load_state_dict(read_tensors(folder / "model.safetensors"))
    average.load_state_dict(read_tensors(folder / "average.safetensors"))
    _load_optimizer(model, optimizer, read_tensors(folder / "optimizer.safetensors"))
    return state


def changes(before: dict[str, Any], now: dict[str, Any], group: str = "") -> list[str]:
    """What is different, in words. What was not recorded is passed over.

    >>> changes({"seed": 1, "shape": {"width": 32, "heads": 2}}, {"seed": 1, "shape": {"width": 64, "heads": 2}})
    ['shape.width was 32, now it is 64']
    """
    found = []
    for key, value in now.items():
        was = before.get(key, value)
        if isinstance(was, dict) and isinstance(value, dict) and was.keys() == value.keys():
            found += changes(was, value, f"{group}{key}.")
        elif was != value:
            found.append(f"{group}{key} was {was}, now it is {value}")
    return found


def _checkpoints(out: Path) -> list[Path]:
    return sorted(path for path in out.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit())


_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():
        for moment in _MOMENTS:
            if parameter in optimizer.state:
                tensors[f"{name}/{moment}"] = optimizer.state[parameter][moment]
    return tensors


def _load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for name, parameter in model.named_parameters():
        if f"{name}/step" in tensors:
            loaded = {moment: tensors[f"{name}/{moment}"] for moment in _MOMENTS}
            for moment in _MOMENTS if fused else _MOMENTS[1:]:
                loaded[moment] = loaded[moment].to(parameter.device)
            optimizer.state[parameter] = loaded


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            value = zlib.crc32(block, value)
    return value

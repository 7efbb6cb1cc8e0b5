"""A run on disk: everything needed to resume it, written as a whole or not at all, and checked when read.

    checkpoint-00001000/
      state.json             step, cursor in the data, clock, best score, checksums
      model.safetensors      weights · average.safetensors · optimizer.safetensors

Random numbers need no saving: those of every batch and epoch follow from the seed. Knows no objective.
"""

import math
import shutil
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from anyorder.errors import InputError
from anyorder.files import atomic_folder, check_writable, read_json, read_tensors, write_json
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
    validated_step: int = -1
    """The step of the last validation."""
    stale: int = 0
    """Validations since the best one."""
    settings: dict[str, object] = field(default_factory=dict)
    """Settings that may change when the run is resumed."""


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
    tensors = {
        "model": dict(model.state_dict()),
        "average": dict(average.state_dict()),
        "optimizer": _optimizer_tensors(model, optimizer),
    }
    with atomic_folder(folder) as partial:
        checksums = {}
        for name, values in tensors.items():
            file = partial / f"{name}.safetensors"
            save_file({key: value.detach().contiguous().cpu() for key, value in values.items()}, file)
            checksums[file.name] = _checksum(file)
        write_json(partial / STATE, {**asdict(state), "fingerprint": fingerprint, "checksums": checksums})
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
    saved = read_json(folder / STATE)
    try:
        for name, expected in saved["checksums"].items():
            if not (folder / name).exists() or _checksum(folder / name) != expected:
                raise InputError(f"{folder / name}: corrupted checkpoint (its checksum is wrong)")
        saved_fingerprint = saved["fingerprint"]
        state = RunState(
            step=saved["step"],
            cursor=Cursor(**saved["cursor"]),
            seconds=saved["seconds"],
            best=saved["best"],
            scores=saved["scores"],
            validated_step=saved["validated_step"],
            stale=saved["stale"],
            settings=saved["settings"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / STATE}: corrupted checkpoint ({error})") from None
    if changed := describe_changes(saved_fingerprint, fingerprint):
        raise InputError(f"{folder}: cannot resume: {'; '.join(changed)}")
    model.load_state_dict(read_tensors(folder / "model.safetensors"))
    average.load_state_dict(read_tensors(folder / "average.safetensors"))
    _load_optimizer(model, optimizer, read_tensors(folder / "optimizer.safetensors"))
    return state


def describe_changes(before: dict[str, Any], now: dict[str, Any], group: str = "") -> list[str]:
    """What is different, in words. What was not recorded is skipped.

    >>> before, now = {"seed": 1, "rl": {"gamma": 0.9, "epochs": 4}}, {"seed": 1, "rl": {"gamma": 0.5, "epochs": 4}}
    >>> describe_changes(before, now)
    ['rl.gamma was 0.9, now it is 0.5']
    """
    changed = []
    for key, value in now.items():
        was = before.get(key, value)
        if isinstance(was, dict) and isinstance(value, dict) and was.keys() == value.keys():
            changed += describe_changes(was, value, f"{group}{key}.")
        elif was != value:
            changed.append(f"{group}{key} was {was}, now it is {value}")
    return changed


RUN_FILES = ("log.jsonl", "checkpoint-*", "*.partial-*", "anyorder")
"""What may be found in the folder of a run that has begun; the last is TensorBoard's."""


def check_run_folder(out: Path, resume: bool) -> None:
    """An `InputError` unless a run can write its folder: new, empty, or holding the run to be resumed."""
    check_writable(out)
    if not out.exists() or not any(out.iterdir()):
        return
    if not resume:
        raise InputError(f"is needed to continue {out}, which already exists; or choose another place", "resume")
    if not any(match for pattern in RUN_FILES for match in out.glob(pattern)):
        raise InputError(f"{out}: is not the folder of a run, so there is nothing to resume")


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

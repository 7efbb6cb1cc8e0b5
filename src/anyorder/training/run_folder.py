"""A run on disk: its folder, its log, and checkpoints with everything needed to resume it.

    log.jsonl
    checkpoint-00001000/       written completely or not at all, and checked when read
      state.json               step, cursor in the data, clock, best score
      model.safetensors        weights · average.safetensors · optimizer.safetensors
      checksums.json

Random states are not saved: those of every batch and epoch follow from the seed. Knows nothing about objectives.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec import to_builtins
from torch import Tensor, nn

from anyorder.errors import InputError
from anyorder.files import (
    OLD,
    PARTIAL,
    atomic_file,
    atomic_folder,
    cannot_write,
    check_writable,
    keep_folder,
    remove_leftovers,
    verify,
    write_json,
    write_tensors,
)
from anyorder.progress import is_main_process
from anyorder.records import Record, parse_json, read_record, read_tensors

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


def truncate_log(out: Path, step: int, validated_step: int) -> None:
    """Drop the entries of steps and validations that will be repeated, and the incomplete last line of a killed run."""
    file = out / LOG
    if not file.exists():
        return
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    whole = [_read_entry(line, f"{file}, line {number}") for number, line in enumerate(lines[:-1], 1)]
    with suppress(InputError):  # incomplete, unless only the newline is missing
        whole.append(_read_entry(lines[-1], str(file)))
    last = {False: step, True: validated_step}
    kept = [line for line, (of, validates) in zip(lines, whole, strict=False) if of <= last[validates]]
    with atomic_file(file) as log:
        log.writelines(line.decode() + "\n" for line in kept)


def _read_entry(line: bytes, where: str) -> tuple[int, bool]:
    """The step of an entry, and whether it is that of a validation."""
    entry = Record(where, parse_json(line, where))
    return entry.integer("step"), "learning_rate" not in entry


STATE = "state.json"


@dataclass(frozen=True)
class Cursor:
    """How far training has come: batches so far, the current epoch, and batches taken from it."""

    batch: int = 0
    epoch: int = 0
    offset: int = 0


@dataclass
class RunState:
    """The progress of a run."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    seconds: float = 0.0
    best: float | None = None
    """The selection metric of the saved result; None if there is none yet."""
    scores: dict[str, float] = field(default_factory=dict)
    validated_step: int = -1
    """The step of the last validation."""
    stale: int = 0
    """Validations since the best one."""
    settings: dict[str, object] = field(default_factory=dict)
    """Settings that may change when the run is resumed."""

    @classmethod
    def from_record(cls, record: Record) -> "RunState":
        scores = record.record("scores")
        return cls(
            step=record.integer("step"),
            cursor=Cursor(*(record.record("cursor").integer(name) for name in ("batch", "epoch", "offset"))),
            seconds=record.number("seconds", at_least=0),
            best=None if record.values.get("best") is None else record.number("best"),
            scores={name: scores.number(name) for name in scores},
            validated_step=record.integer("validated_step", at_least=-1),
            stale=record.integer("stale"),
            settings=record.record("settings").values,
        )


def save_state(
    out: Path,
    state: RunState,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    fingerprint: dict[str, object],
) -> None:
    """Write `out/checkpoint-STEP`, then remove older ones. A reader never sees an incomplete one."""
    folder = out / f"checkpoint-{state.step:08d}"
    with atomic_folder(folder) as partial:
        write_tensors(partial / "model.safetensors", dict(model.state_dict()))
        write_tensors(partial / "average.safetensors", dict(average.state_dict()))
        write_tensors(partial / "optimizer.safetensors", _optimizer_tensors(model, optimizer))
        scores = {name: score for name, score in state.scores.items() if math.isfinite(score)}
        write_json(partial / STATE, {**asdict(state), "scores": scores, "fingerprint": _plain(fingerprint)})
    for old in checkpoints(out):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)


def _plain(fingerprint: dict[str, object]) -> Any:
    """The fingerprint as JSON can hold it; a setting may be a number of NumPy's."""
    return to_builtins(fingerprint, enc_hook=lambda value: value.item())


def load_latest(
    out: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    fingerprint: dict[str, object],
) -> RunState | None:
    """Load the newest checkpoint of a run into these objects; None if there is none yet.

    fingerprint: what must be the same as in the checkpoint. In a run that was begun before a setting of one of its
    configs existed, that setting had its default.
    """
    found = checkpoints(out)
    if not found:
        return None
    folder = found[-1]
    with _way_out(found):
        state, saved_fingerprint = _read_state(folder)
    defaults = {name: to_builtins(type(config)()) for name, config in fingerprint.items() if is_dataclass(type(config))}
    if changed := describe_changes(with_defaults(saved_fingerprint, defaults), _plain(fingerprint)):
        raise InputError(f"{folder}: cannot resume: {'; '.join(changed)}")
    with _way_out(found):
        _load_weights(model, folder / "model.safetensors")
        _load_weights(average, folder / "average.safetensors")
        _load_optimizer(model, optimizer, folder / "optimizer.safetensors")
    return state


def _read_state(folder: Path) -> tuple[RunState, dict[str, Any]]:
    """The state in a checkpoint, and the fingerprint of its run."""
    verify(folder, STATE, *(f"{name}.safetensors" for name in ("model", "average", "optimizer")))
    record = read_record(folder / STATE)
    if "checksums" in record:
        raise InputError(f"{folder}: an older version wrote this checkpoint, so it cannot be resumed")
    state = RunState.from_record(record)
    if folder.name != f"checkpoint-{state.step:08d}":
        raise record.error("step", f"{state.step}, but the folder is {folder.name}")
    return state, record.record("fingerprint").values


def saved_settings(out: Path, group: str) -> dict[str, Any]:
    """A group of settings that the run in this folder was begun with; empty if it has no checkpoint."""
    found = checkpoints(out)
    if not found:
        return {}
    with _way_out(found):
        settings = _read_state(found[-1])[1].get(group)
    return settings if isinstance(settings, dict) else {}


@contextmanager
def _way_out(found: list[Path]) -> Iterator[None]:
    """Adds advice to the error if the newest checkpoint cannot be read."""
    try:
        yield
    except InputError as error:
        way = f"continue from {found[-2].name}" if len(found) > 1 else "begin the run again"
        raise InputError(f"{error}; remove {found[-1].name} to {way}") from None


def with_defaults(saved: dict[str, Any], defaults: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Saved settings, in groups, with the defaults of those that did not exist when they were saved.

    >>> with_defaults({"seed": 1, "rl": {"gamma": 0.9}}, {"rl": {"gamma": 1.0, "epochs": 4}})
    {'seed': 1, 'rl': {'gamma': 0.9, 'epochs': 4}}
    """
    known = {group: settings for group, settings in defaults.items() if isinstance(saved.get(group), dict)}
    return saved | {group: {**settings, **saved[group]} for group, settings in known.items()}


def describe_changes(before: dict[str, Any], now: dict[str, Any], group: str = "") -> list[str]:
    """The differences, in words. Settings that were not recorded are skipped.

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


def checkpoints(out: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [path for path in out.glob("checkpoint-*") if _STEP.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


_STEP = re.compile(r"checkpoint-[0-9]{8,}")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def _load_weights(module: nn.Module, file: Path) -> None:
    module.load_state_dict(
        read_tensors(file, {name: tuple(value.shape) for name, value in module.state_dict().items()})
    )


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():
        for moment in _MOMENTS:
            if parameter in optimizer.state:
                tensors[f"{name}/{moment}"] = optimizer.state[parameter][moment]
    return tensors


def _load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, file: Path) -> None:
    tensors = read_tensors(file)
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for name, parameter in model.named_parameters():
        loaded = {moment: tensors.pop(f"{name}/{moment}") for moment in _MOMENTS if f"{name}/{moment}" in tensors}
        if not loaded:  # it never had a gradient
            continue
        for moment in _MOMENTS:
            shape = () if moment == "step" else tuple(parameter.shape)
            if moment not in loaded or loaded[moment].dtype != torch.float32 or loaded[moment].shape != shape:
                raise InputError(f"{file}: {name}/{moment} is not float32 of shape {shape}")
        for moment in _MOMENTS if fused else _MOMENTS[1:]:
            loaded[moment] = loaded[moment].to(parameter.device)
        optimizer.state[parameter] = loaded
    if tensors:
        raise InputError(f"{file}: has unknown {min(tensors)}")

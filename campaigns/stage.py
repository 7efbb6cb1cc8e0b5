"""Where chaos plays its stories: the commands, what unbroken runs of them write, and how two results are compared.

Numbers that are times (`seconds`, `..._per_second`, `share_of_peak`) may differ between equal runs; nothing else may.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns.sandbox import Ended, Process
from campaigns.seed_files import ANALYZE, EVALUATE, LEARN_ORDER, PREPARE, TRAIN, TRANSLATE

SECONDS = 120.0
"""A command that takes longer hangs."""


@dataclass(frozen=True)
class Job:
    """A command that writes into the folder `disk`."""

    arguments: list[str]
    resume: bool = False
    """Whether a run that was ended can be continued; otherwise the command is given again."""
    shows_progress: bool = False
    sign: str = ""
    """What appears when it has begun to write."""

    @property
    def again(self) -> list[str]:
        return [*self.arguments, "--resume"] if self.resume else self.arguments


JOBS = {
    "prepare": Job([*PREPARE, "--workers", "2", "--out", "disk/out"], sign="disk/out.partial"),
    "train": Job(
        [*TRAIN, "--out", "disk/out", "--run.steps", "12", "--run.validate-every", "3"],
        resume=True, shows_progress=True, sign="disk/out/log.jsonl",
    ),
    "learn-order": Job(
        [*LEARN_ORDER, "--out", "disk/out", "--run.steps", "6", "--run.validate-every", "2"],
        resume=True, shows_progress=True, sign="disk/out/log.jsonl",
    ),
    "translate": Job(
        [*TRANSLATE[:-1], "disk/out.jsonl", "--model", "model", "text/train.de"], sign="disk/out.jsonl.partial"
    ),
    "evaluate": Job(
        [*EVALUATE[:-1], "disk/out.json", "--table", "disk/out.md", "--model", "model",
         "--orders", "margin,uniform,learned", "--source", "text/train.de", "--reference", "text/train.en"],
        sign="disk/out.json.partial",
    ),
    "analyze": Job(
        [*ANALYZE[:-1], "disk/out.json", "--html", "disk/out.html", "--figures", "disk/figures", "a.jsonl"],
        sign="disk/out.json.partial",
    ),
}  # fmt: skip


LEARN_TEXT = "learn-text"
"""The job that is interrupted at random moments; a model and a text of one's own may take the place of these."""


def learn_text(model: str, text: str) -> Job:
    """An order is learned for a model of Transformers on lines of text."""
    sizes = [
        "--rl.sentences",
        "4",
        "--rl.rollouts",
        "4",
        "--rl.validation-sentences",
        "2",
        "--policy.kind",
        "confidence",
    ]
    run = ["--run.device", "cpu", "--run.warmup", "1", "--run.log-every", "1", "--run.steps", "4"]
    arguments = ["learn-order", "--model", model, "--text", text, *sizes, *run, "--run.validate-every", "2"]
    return Job([*arguments, "--out", "disk/out"], resume=True, shows_progress=True, sign="disk/out/log.jsonl")


OTHER_JOBS = {LEARN_TEXT: learn_text("masked", "solutions.txt")}


def job_of(name: str) -> Job:
    return JOBS.get(name) or OTHER_JOBS[name]


class ChaosError(Exception):
    """What is wrong."""


@dataclass
class Stage:
    """Where stories are played: the files that commands read, and what unbroken runs made of them."""

    seeds: Path
    work: Path

    def scene(self, name: str) -> Path:
        """A folder with fresh copies of all files."""
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.seeds, folder / "here", symlinks=True)
        (folder / "here" / "disk").mkdir()
        return folder

    def unbroken(self, verb: str, continued: bool = False, limit: float = SECONDS) -> tuple[Path, float, int]:
        """The output of an unbroken run, how long it took and how many file operations it made.

        With `continued` the run goes on from one of the seed files, and older results are replaced.
        """
        folder = self.work / f"unbroken {verb}{' continued' if continued else ''}"
        if not folder.exists():
            self.scene(folder.name)
            if continued:
                put_before(verb, folder / "here" / "disk")
            calls = folder / "calls"
            start = time.monotonic()
            ended = Process(
                folder,
                job_of(verb).again if continued else job_of(verb).arguments,
                lambda: _count_calls(calls),
                quick_workers=False,
            ).wait(limit)
            expect(ended, 0, verb)
            (folder / "seconds").write_text(str(time.monotonic() - start))
        return folder / "here" / "disk", float((folder / "seconds").read_text()), int((folder / "calls").read_text())


def put_before(verb: str, disk: Path) -> None:
    """What was complete before the command: the run to be continued, or older results."""
    if JOBS[verb].resume:
        shutil.copytree(disk.parent / ("run" if verb == "train" else "order-run"), disk / "out")
    elif verb != "prepare":
        for name in ("out.json", "out.jsonl", "out.md", "out.html"):
            (disk / name).write_text("complete before\n")


def expect(ended: Ended, code: int, verb: str) -> None:
    """A `ChaosError` unless a command ended as it should."""
    fault = ended.fault(job_of(verb).shows_progress)
    if fault or ended.code != code:
        last = ended.stderr.strip().splitlines()[-1:] or [""]
        raise ChaosError(f"{verb}: {fault or f'exit code {ended.code}, expected {code}'} ({last[0][:300]})")


_CALLS = ("rename", "replace", "fsync", "unlink", "rmdir", "mkdir")


def _count_calls(file: Path) -> None:
    """In a command's process: keep the number of its file operations in a file."""
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1
        file.write_text(str(count))

    counted()
    before_calls(counted)


def before_calls(action: Callable[[], None]) -> None:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            action()
            return function(*arguments, **options)

        return wrapped

    for name in _CALLS:
        setattr(os, name, wrap(getattr(os, name)))


def compare(verb: str, ours: Path, theirs: Path) -> None:
    left = [path.name for path in ours.rglob("*") if ".partial" in path.name or path.name.endswith(".old")]
    if left:
        raise ChaosError(f"{verb}: leaves {left[0]}")
    if what := difference(ours, theirs):
        raise ChaosError(f"{verb}: {what}")


def difference(ours: Path, theirs: Path) -> str:
    """What is different between two folders, times apart; empty if nothing is."""
    names = [
        {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} for folder in (ours, theirs)
    ]
    if names[0] != names[1]:
        return f"the files differ: {sorted(names[0] ^ names[1])[:5]}"
    for name in sorted(names[0]):
        first, second = ours / name, theirs / name
        if first.read_bytes() != second.read_bytes() and (one := timeless(first)) != (other := timeless(second)):
            return f"{name} differs from the unbroken run's{_first_difference(one, other)}"
    return ""


def _first_difference(ours: Any, theirs: Any, path: str = "") -> str:
    """Where two JSON values differ first, and how."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        pairs: Any = ((key, ours[key], theirs[key]) for key in ours)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = zip(range(len(ours)), ours, theirs, strict=True)
    else:
        return (
            "" if isinstance(ours, bytes) else f" at {path[1:] or 'the top'}: {str(ours)[:80]}, not {str(theirs)[:80]}"
        )
    return next((_first_difference(one, other, f"{path}.{key}") for key, one, other in pairs if one != other), "")


def timeless(file: Path) -> Any:
    """What a file holds, without times and without checksums of files that hold times."""
    if file.name == "checksums.json":
        sums = json.loads(file.read_text())
        return {name: value for name, value in sums.items() if name != "state.json"}
    if file.name == "log.jsonl":
        return [_without_times(json.loads(line)) for line in file.read_text().splitlines()]
    if file.suffix == ".json":
        return _without_times(json.loads(file.read_text()))
    return file.read_bytes()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if not _is_time(key)}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _is_time(key: str) -> bool:
    return key in ("seconds", "share_of_peak") or key.endswith("_per_second")

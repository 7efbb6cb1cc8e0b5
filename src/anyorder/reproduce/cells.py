"""Trajectories of a test set on disk, in a folder named by the settings that determine them, and the jobs that fill it.

    decode/MODEL/DIRECTION/SET/LENGTH/ORDER    cell.json and trajectories.jsonl.xz

A cell may hold only the short sentences; a job that needs longer ones decodes only those. Knows nothing about tables.
"""

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anyorder import progress
from anyorder.decoding.sentence import Sentence
from anyorder.decoding.trajectory import Trajectory, read_trajectories, write_trajectories
from anyorder.errors import InputError
from anyorder.files import atomic_file, atomic_folder, read_whole, recover_folder, sha256, verify, write_json
from anyorder.files.records import Record, parse_json, read_record
from anyorder.reproduce.evaluation_sets import EvaluationSet
from anyorder.training.run_folder import LOG

CELL, TRAJECTORIES = "cell.json", "trajectories.jsonl.xz"


@dataclass(frozen=True)
class Spent:
    """What one session of a job cost."""

    kind: str
    """learn, decode or train."""
    seconds: float
    device: str
    amount: int
    """Steps or sentences."""
    ended: float | None = None
    """When it ended, in seconds since 1970; None if that is not known."""


class Job(ABC):
    """Something to do once, by one process."""

    kind: str
    """learn, decode or train."""
    needs: "tuple[Job, ...]"
    """Jobs that must be done first."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder of its result. No two processes work on the same folder at the same time."""

    @property
    @abstractmethod
    def title(self) -> str:
        """A one-line description for the user."""

    @property
    @abstractmethod
    def amount(self) -> int:
        """Steps or sentences."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether there is nothing left to do. False while a process is working on it."""

    @abstractmethod
    def spent(self) -> list[Spent]:
        """What it has cost so far."""

    @abstractmethod
    def run(self) -> bool:
        """Do the missing work; False if a signal stopped it."""


@dataclass(frozen=True)
class CellJob(Job):
    """Decode the sentences of a test set up to some length.

    Args:
        results: The folder of all results.
        label: The folder of the model.
        data: The test set.
        rule: The length rule.
        name: The order, or another way to decode.
        max_length: Maximum number of subwords on both sides; None for all sentences.
        needs: Jobs that must be done first; the contents of their folders may change until then.
    """

    results: Path
    label: str
    data: EvaluationSet
    rule: str
    name: str
    max_length: int | None
    needs: tuple[Job, ...]
    kind = "decode"

    @abstractmethod
    def key(self) -> dict[str, Any] | None:
        """What determines the trajectories besides the folder names; None if it is not known yet."""

    @abstractmethod
    def decode(self, sentences: Sequence[Sentence], on_progress: Callable[[int], None]) -> list[Trajectory]: ...

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device to decode on."""

    @property
    def folder(self) -> Path:
        of_set = f"{self.data.split}-{self.data.fingerprint}"
        of_order = Path(of_set, plain_name(self.rule), plain_name(self.name))
        return self.results / "decode" / self.label / self.data.direction / of_order

    @property
    def title(self) -> str:
        limit = "" if self.max_length is None else f" ≤{self.max_length}"
        return f"decode {self.data.direction} {self.data.split}{limit}, {self.rule}, {self.name}"

    @property
    def amount(self) -> int:
        return len(self.data.within(self.max_length))

    @property
    def done(self) -> bool:
        if not all(need.done for need in self.needs):
            return False
        cell = self.cell()
        return cell is not None and set(self.data.within(self.max_length)) <= set(cell.rows)

    def spent(self) -> list[Spent]:
        cell = self.cell()
        return [] if cell is None else cell.spent

    def run(self) -> bool:
        recover_folder(self.folder)
        cell, key = self.cell(), self.key()
        assert key is not None
        known = {} if cell is None else dict(zip(cell.rows, cell.trajectories(), strict=True))
        missing = [row for row in self.data.within(self.max_length) if row not in known]
        if not missing:
            return True
        start = time.perf_counter()
        with progress.bar(self.title, len(missing), "sentences") as bar:
            fresh = self.decode([self.data.sentences[row] for row in missing], bar.advance)
        seconds = round(time.perf_counter() - start, 3)
        known |= dict(zip(missing, fresh, strict=True))
        now = Spent("decode", seconds, device_name(self.device), len(missing), round(time.time(), 3))
        write_cell(self.folder, key, known, [*([] if cell is None else cell.spent), now])
        return True

    def cell(self) -> "CellFiles | None":
        """What is already there, unless something else was decoded under the same name."""
        cell, key = read_cell(self.folder), self.key()
        return cell if cell is not None and cell.key == key else None

    def result(self) -> "CellFiles":
        """The result of a finished job, even while another process adds longer sentences to it."""
        cell = read_whole(self.folder, _read_cell)
        if cell.key != self.key():
            raise _replaced(self.folder)
        return cell


@dataclass(frozen=True)
class CellFiles:
    """Trajectories on disk."""

    folder: Path
    key: dict[str, Any]
    rows: list[int]
    """The indices of the sentences, ascending."""
    spent: list[Spent]
    checksum: str
    """Checksum of the trajectories."""

    def trajectories(self) -> Iterator[Trajectory]:
        verify(self.folder, TRAJECTORIES)
        return read_trajectories(self.folder / TRAJECTORIES)

    def select(self, rows: Sequence[int]) -> list[Trajectory]:
        """The trajectories of some sentences. Another process may have added longer ones to the folder."""
        cell, known = read_whole(self.folder, _read_trajectories)
        if cell.key != self.key:
            raise _replaced(self.folder)
        return [known[row] for row in rows]


def read_cell(folder: Path) -> CellFiles | None:
    """The trajectories in a folder; None if there are none."""
    return read_whole(folder, _read_cell) if (folder / CELL).exists() else None


def _read_cell(folder: Path) -> CellFiles:
    verify(folder, CELL)
    record = read_record(folder / CELL)
    rows = record.values.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise record.error("rows", "expected the numbers of sentences")
    return CellFiles(folder, record.record("key").values, rows, read_spent(record), record.text("trajectories"))


def _read_trajectories(folder: Path) -> tuple[CellFiles, dict[int, Trajectory]]:
    """The cell, and its trajectories by sentence index."""
    cell = _read_cell(folder)
    trajectories = list(cell.trajectories())
    if len(trajectories) != len(cell.rows):
        raise InputError(f"{folder}: {len(trajectories)} trajectories, expected {len(cell.rows)}")
    return cell, dict(zip(cell.rows, trajectories, strict=True))


def _replaced(folder: Path) -> InputError:
    return InputError(f"{folder}: another process decoded something else under this name")


def write_cell(folder: Path, key: dict[str, Any], by_row: dict[int, Trajectory], spent: Sequence[Spent]) -> None:
    """Write trajectories, completely or not at all."""
    rows = sorted(by_row)
    trajectories = [by_row[row] for row in rows]
    with atomic_folder(folder) as partial:
        write_trajectories(partial / TRAJECTORIES, trajectories)
        record = {
            "signature": next((one.signature for one in trajectories), ""),
            "sentences": len(rows),
            "spent": [asdict(one) for one in spent],
            "trajectories": sha256(partial / TRAJECTORIES),
            "key": key,
            "rows": rows,
        }
        write_json(partial / CELL, record)


def write_whole_json(file: Path, value: Any) -> None:
    """Write a JSON file, completely or not at all; creates its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as stream:
        stream.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def plain_name(text: str) -> str:
    """A name as part of a path: readable, without characters that are special to a shell or a file system.

    >>> plain_name("bleu, λ=0.0005"), plain_name("table:4")
    ('bleu,lambda=0.0005', 'table-4')
    """
    text = text.replace("λ", "lambda").replace(", ", ",").replace(":", "-")
    return re.sub(r"[^\w.,=+-]+", "_", text) or "_"


def read_spent(record: Record) -> list[Spent]:
    """What the sessions of a job cost, from its record; empty if it has no such field."""
    entries = record.values.get("spent", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise record.error("spent", "expected a list of objects")
    return [Record(record.where, entry, f"spent.{i}.").config(Spent) for i, entry in enumerate(entries)]


def read_log_seconds(run: Path) -> float:
    """The seconds that a training run took over all its sessions, from its log."""
    file = run / LOG
    if not file.exists():
        return 0.0
    *lines, _ = file.read_text(encoding="utf-8", errors="replace").split("\n")  # a killed run may truncate the last one
    return max((float(parse_json(line, str(file)).get("seconds") or 0) for line in lines), default=0.0)


def device_name(device: torch.device) -> str:
    """A device's name for users."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"

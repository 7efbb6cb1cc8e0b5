"""The jobs behind the tables, and the files that say which of them are done. Knows nothing about tables.

    learn/MODEL/DIRECTIONS/ORDER/seed-N        a run that learns an order, and seed-N.json beside it
    baseline/MODEL/MINUTES                     a run that trains a baseline, and MINUTES.json beside it
    decode/MODEL/DIRECTION/SET/LENGTH/ORDER    cell.json and trajectories.jsonl.xz

Names encode what determines the contents, so finished work is never repeated. A run that was killed continues from its
last checkpoint. A decoded set may hold only the short sentences; a job that needs longer ones decodes only those.
"""

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from anyorder import progress
from anyorder.decoder import Decoder
from anyorder.decoding.trajectory import Trajectory, read_trajectories, write_trajectories
from anyorder.errors import InputError
from anyorder.files import atomic_file, atomic_folder, read_whole, recover_folder, sha256, verify, write_json
from anyorder.models.native.storage import WEIGHTS, find
from anyorder.records import Record, parse_json, read_record
from anyorder.reproduce.data_folders import SplitSet
from anyorder.training.run_folder import LOG, describe_changes, with_defaults

CELL, TRAJECTORIES = "cell.json", "trajectories.jsonl.xz"


@dataclass(frozen=True)
class OpenModel:
    """A model that decodes."""

    place: str
    """A bundled name, a folder or a hub id."""
    label: str
    """What folders call it."""
    decoder: Decoder

    @property
    def device(self) -> torch.device:
        return self.decoder.model.device


def model_label(model: str | Path) -> str:
    """A name for folders: that of a model, and a hash of its weights."""
    path = find(str(model))
    path = path.resolve() if path.name in ("", ".", "..") else path
    name = path.parent.name if path.name == "model" else path.name
    return f"{plain_name(name)}-{sha256(path / WEIGHTS)[:8]}"


@dataclass(frozen=True)
class Cost:
    """What a job took."""

    kind: str
    """train, learn or decode."""
    seconds: float
    device: str


@dataclass(frozen=True)
class RunJob:
    """A run that trains something; a record beside its folder holds its settings, and whether it is finished."""

    kind: str
    """train or learn."""
    title: str
    folder: Path
    result: Path
    """A file or folder that the run writes."""
    key: Mapping[str, Any]
    """The settings that a run in this folder must have."""
    device: torch.device
    train: Callable[[], bool]
    """Starts or resumes the run; False if a signal stopped it."""
    defaults: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """By group of the key, the values of settings that an older record may lack."""
    needs = None

    @property
    def done(self) -> bool:
        """Raises an `InputError` if the folder holds a run with other settings."""
        record = self._read()
        return record is not None and record.boolean("finished", True) and self.result.exists()

    def run(self) -> bool:
        self._write(finished=False)
        finished = self.train()
        self._write(finished)
        return finished

    def costs(self) -> list[Cost]:
        """From the log, which counts every session, also one that was killed."""
        record, log = self._read(), self.folder / LOG
        if record is None or not log.exists():
            return []
        *lines, _ = log.read_text(encoding="utf-8", errors="replace").split("\n")  # the last may be cut off
        seconds = max((float(parse_json(line, str(log)).get("seconds") or 0) for line in lines), default=0.0)
        return [Cost(self.kind, seconds, record.text("device"))]

    @property
    def _file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def _read(self) -> Record | None:
        if not self._file.exists():
            return None
        record = read_record(self._file)
        before = with_defaults(record.values.get("key", record.values), self.defaults)
        if changes := describe_changes(before, json.loads(json.dumps(self.key))):
            raise InputError(f"{self.folder}: has other settings ({changes[0]}); choose another folder for the results")
        return record

    def _write(self, finished: bool) -> None:
        write_whole_json(self._file, {"key": self.key, "device": device_name(self.device), "finished": finished})


@dataclass(frozen=True)
class DecodeJob(ABC):
    """Decode the sentences of a test set up to some length."""

    results: Path
    """The folder of all results."""
    label: str
    """The model, as its folder is called."""
    data: SplitSet
    rule: str
    """The length rule."""
    name: str
    """The order, or another way to decode."""
    max_length: int | None
    """Maximum number of subwords on both sides; None for all sentences."""
    needs: RunJob | None
    """What trains the order or the model."""

    @abstractmethod
    def key(self) -> dict[str, Any] | None:
        """What determines the trajectories besides the names of folders; None if that is not known yet."""

    @abstractmethod
    def decode(self, rows: Sequence[int], on_progress: Callable[[int], None]) -> list[Trajectory]:
        """Decode some sentences of the test set."""

    @property
    def decoder(self) -> Decoder:
        return self.data.test_set.decoder

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
    def done(self) -> bool:
        if self.needs is not None and not self.needs.done:
            return False
        cell = self.cell()
        return cell is not None and set(self.data.test_set.within(self.max_length)) <= set(cell.rows)

    def run(self) -> bool:
        recover_folder(self.folder)
        cell, key = self.cell(), self.key()
        known = {} if cell is None else self.trajectories()
        missing = [row for row in self.data.test_set.within(self.max_length) if row not in known]
        if not missing:  # only the replacement of a folder had been interrupted
            return True
        start = time.perf_counter()
        with progress.bar(self.title, len(missing), "sentences") as bar:
            fresh = self.decode(missing, bar.advance)
        cost = Cost("decode", round(time.perf_counter() - start, 3), device_name(self.decoder.model.device))
        known |= dict(zip(missing, fresh, strict=True))
        write_cell(self.folder, key, known, [*self.costs(), cost])
        return True

    def costs(self) -> list[Cost]:
        cell = self.cell()
        return [] if cell is None else cell.spent

    def cell(self) -> "Cell | None":
        """The record of what is there, unless something else was decoded under the same name."""
        cell = read_whole(self.folder, _read_cell) if (self.folder / CELL).exists() else None
        return cell if cell is not None and cell.key == self.key() else None

    def checksum(self) -> str:
        """That of the trajectories, once all are there."""
        cell = self.cell()
        if cell is None:
            raise InputError(f"{self.folder}: another process decoded something else under this name")
        return cell.trajectories

    def trajectories(self) -> dict[int, Trajectory]:
        """Those that are there, by the index of the sentence."""
        return read_whole(self.folder, _read_trajectories)


Job = RunJob | DecodeJob


def run_jobs(jobs: Sequence[Job], part: tuple[int, int], on_line: Callable[[str], None]) -> bool:
    """Do the missing jobs of a part, such as `(1, 4)`, one after the other; False if a signal stopped it.

    Each job comes after the one that it needs. `on_line` is called with a line before each.
    """
    for number in choose_part(jobs, part):
        if not jobs[number].done:
            on_line(f"{number + 1} of {len(jobs)}: {jobs[number].title}")
            if not jobs[number].run():
                return False
    return True


def choose_part(jobs: Sequence[Job], part: tuple[int, int]) -> list[int]:
    """The numbers of a part's jobs.

    Jobs that write to one folder, or that need the same job, are in the same part: so two parts never do the same work,
    and none waits for another. What is done already does not change the parts.
    """
    index, count = part
    places = [(job.needs or job).folder for job in jobs]
    groups = {place: group for group, place in enumerate(dict.fromkeys(places))}
    return [number for number, place in enumerate(places) if groups[place] % count == index - 1]


@dataclass(frozen=True)
class Cell:
    """The record of a folder with trajectories."""

    signature: str
    sentences: int
    trajectories: str
    """Their checksum."""
    key: dict[str, Any] | None
    """What determines them besides the names of folders."""
    rows: list[int]
    """The indices of the sentences, ascending."""
    spent: list[Cost] = field(default_factory=list)


def _read_cell(folder: Path) -> Cell:
    verify(folder, CELL)
    return read_record(folder / CELL).config(Cell)


def _read_trajectories(folder: Path) -> dict[int, Trajectory]:
    verify(folder, TRAJECTORIES)
    rows, found = _read_cell(folder).rows, list(read_trajectories(folder / TRAJECTORIES))
    if len(rows) != len(found):
        raise InputError(f"{folder}: {len(found)} trajectories, expected {len(rows)}")
    return dict(zip(rows, found, strict=True))


def write_cell(folder: Path, key: dict[str, Any] | None, by_row: dict[int, Trajectory], costs: Sequence[Cost]) -> None:
    """Write trajectories, completely or not at all."""
    rows = sorted(by_row)
    trajectories = [by_row[row] for row in rows]
    with atomic_folder(folder) as partial:
        write_trajectories(partial / TRAJECTORIES, trajectories)
        checksum = sha256(partial / TRAJECTORIES)
        cell = Cell(trajectories[0].signature, len(rows), checksum, key, rows, list(costs))
        write_json(partial / CELL, asdict(cell))


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


def device_name(device: torch.device) -> str:
    """A device's name for users."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"

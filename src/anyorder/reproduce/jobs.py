"""The jobs behind the tables, the settings of orders to learn, and the files that say which jobs are done.

Knows nothing about scores.

    learn/MODEL/DIRECTIONS/ORDER/seed-N        a run that learns an order, and seed-N.json beside it
    baseline/MODEL/MINUTES                     a run that trains a baseline, and MINUTES.json beside it
    decode/MODEL/DIRECTION/SET/LENGTH/ORDER    cell.json and trajectories.jsonl.xz

Names encode what determines the contents, so finished work is never repeated. A run that was killed continues from its
last checkpoint. A decoded set may hold only the short sentences; a job that needs longer ones decodes only those.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from anyorder import progress
from anyorder.data.store import MANIFEST, Store
from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory, read_trajectories, write_trajectories
from anyorder.errors import InputError
from anyorder.files import atomic_file, atomic_folder, read_whole, recover_folder, sha256, verify, write_json
from anyorder.learning.config import LEARN_ORDER_RUN, RLConfig
from anyorder.learning.learn_order import FOLDER as ORDER
from anyorder.learning.learn_order import learn_order
from anyorder.models.native.storage import WEIGHTS, find
from anyorder.orders.learned import CONFIG as ORDER_CONFIG
from anyorder.orders.learned import UnboundLearnedOrder
from anyorder.orders.policy import PolicyConfig
from anyorder.records import Record, parse_json, read_record
from anyorder.reproduce.data_folders import SplitSet
from anyorder.reproduce.tables import Row
from anyorder.training.config import TrainConfig
from anyorder.training.run_folder import LOG, describe_changes, with_defaults

CELL, TRAJECTORIES = "cell.json", "trajectories.jsonl.xz"
Scale = Literal["here", "paper"]


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
        # An older record may lack settings.
        defaults = {"policy": asdict(PolicyConfig()), "rl": asdict(RLConfig())}
        before = with_defaults(record.values.get("key", record.values), defaults)
        if changes := describe_changes(before, json.loads(json.dumps(self.key))):
            raise InputError(f"{self.folder}: has other settings ({changes[0]}); choose another folder for the results")
        return record

    def _write(self, finished: bool) -> None:
        write_whole_json(self._file, {"key": self.key, "device": device_name(self.device), "finished": finished})


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

    @classmethod
    def read(cls, folder: Path) -> "Cell":
        verify(folder, CELL)
        return read_record(folder / CELL).config(cls)


@dataclass(frozen=True)
class DecodeJob:
    """Decode the sentences of a test set up to some length."""

    place: Path
    """The folder of all that the model decodes."""
    data: SplitSet
    rule: str
    """The length rule."""
    name: str
    """The order, or another way to decode."""
    max_length: int | None
    """Maximum number of subwords on both sides; None for all sentences."""
    needs: RunJob | None
    """What trains the order or the model."""
    describe: Callable[[], dict[str, Any]]
    """What determines the trajectories besides the names of folders; called once what the job needs is there."""
    decode: Callable[[Sequence[int], Callable[[int], None]], list[Trajectory]]
    """Decodes some sentences of the test set, by index, and reports how many are done."""

    @property
    def folder(self) -> Path:
        of_order = Path(f"{self.data.split}-{self.data.fingerprint}", plain_name(self.rule), plain_name(self.name))
        return self.place / self.data.direction / of_order

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
        known = {} if self.cell() is None else self.trajectories()
        missing = [row for row in self.data.test_set.within(self.max_length) if row not in known]
        if not missing:  # only the replacement of a folder had been interrupted
            return True
        key, start = self.describe(), time.perf_counter()
        with progress.bar(self.title, len(missing), "sentences") as bar:
            known |= dict(zip(missing, self.decode(missing, bar.advance), strict=True))
        device = device_name(self.data.test_set.decoder.model.device)
        cost = Cost("decode", round(time.perf_counter() - start, 3), device)
        write_cell(self.folder, key, known, [*self.costs(), cost])
        return True

    def costs(self) -> list[Cost]:
        cell = self.cell()
        return [] if cell is None else cell.spent

    def cell(self) -> Cell | None:
        """The record of what is there, unless something else was decoded under the same name."""
        cell = read_whole(self.folder, Cell.read) if (self.folder / CELL).exists() else None
        return cell if cell is not None and cell.key == self.describe() else None

    def checksum(self) -> str:
        """That of the trajectories, once all are there."""
        cell = self.cell()
        if cell is None:
            raise InputError(f"{self.folder}: another process decoded something else under this name")
        return cell.trajectories

    def trajectories(self) -> dict[int, Trajectory]:
        """Those that are there, by the index of the sentence."""
        return read_whole(self.folder, _read_trajectories)


def _read_trajectories(folder: Path) -> dict[int, Trajectory]:
    verify(folder, TRAJECTORIES)
    rows, found = Cell.read(folder).rows, list(read_trajectories(folder / TRAJECTORIES))
    if len(rows) != len(found):
        raise InputError(f"{folder}: {len(found)} trajectories, expected {len(rows)}")
    return dict(zip(rows, found, strict=True))


def write_cell(folder: Path, key: dict[str, Any], by_row: Mapping[int, Trajectory], costs: list[Cost]) -> None:
    """Write trajectories, completely or not at all."""
    rows = sorted(by_row)
    with atomic_folder(folder) as partial:
        write_trajectories(partial / TRAJECTORIES, [by_row[row] for row in rows])
        checksum = sha256(partial / TRAJECTORIES)
        write_json(partial / CELL, asdict(Cell(by_row[rows[0]].signature, len(rows), checksum, key, rows, costs)))


@dataclass(frozen=True)
class Settings:
    """The settings of one run that learns an order."""

    policy: PolicyConfig
    rl: RLConfig
    run: TrainConfig


def settings_of(row: Row, scale: Scale, seed: int, steps: int | None, device: str) -> Settings:
    """How the order of a row is learned; `steps` overrides the scale's if given."""
    settings = SETTINGS[scale][row.kind]
    reward = settings.rl.reward if row.reward in (None, "bleu") else row.reward  # at the paper's scale, its code's BLEU
    entropy_coef = settings.rl.entropy_coef if row.entropy_coef is None else row.entropy_coef
    usual = ABLATION_STEPS if row.is_ablation and scale == "here" else settings.run.steps
    place: Any = device
    return replace(
        settings,
        rl=replace(settings.rl, reward=reward, entropy_coef=entropy_coef),
        run=replace(settings.run, steps=steps or usual, seed=seed, device=place),
    )


def learn_job(
    out: Path, label: str, decoder: Decoder, directions: list[str], kind: str, settings: Settings, stores: list[Store]
) -> RunJob:
    """Learn an order with one seed, for one direction or for several that share it. Tables call this kind `kind`."""
    policy, rl, run = settings.policy, settings.rl, settings.run
    key = asdict(settings)
    for name in ("device", "compile", "track", "log_every", "save_every", "seed", "steps"):
        del key["run"][name]
    data = "+".join(sha256(store.path / MANIFEST)[:8] for store in stores)
    shared = ",shared" if len(directions) > 1 else ""
    # Named by the settings in which orders differ, so that tables with the same order share it.
    name = f"{kind},reward={rl.reward},lambda={rl.entropy_coef:g},steps={run.steps}{shared}"
    together = "+".join(directions)
    folder = out / "learn" / label / together / name / f"seed-{run.seed}"

    def learn() -> bool:
        place = decoder.model.path
        return learn_order(place, directions, folder, stores, policy=policy, rl=rl, run=run, resume=True).finished

    title, result = f"learn {together} {name}, seed {run.seed}", folder / ORDER / ORDER_CONFIG
    return RunJob("learn", title, folder, result, {"model": label, "data": data, **key}, decoder.model.device, learn)


def order_job(
    place: Path, data: SplitSet, name: str, max_length: int | None, config: DecodingConfig, needs: RunJob | None
) -> DecodeJob:
    """Decode in the config's order, which is the name of the one that is learned first, if any."""

    def learned() -> DecodingConfig:
        if needs is None:
            return config
        order = UnboundLearnedOrder(str(needs.result.parent))
        order.name = str(config.order)  # not its path, which differs between machines
        return replace(config, order=order)

    def describe() -> dict[str, Any]:
        bound = data.test_set.decoder.bind(learned())
        return {"order": bound.order.identity, "seed": bound.seed}

    def decode(rows: Sequence[int], on_progress: Callable[[int], None]) -> list[Trajectory]:
        return data.test_set.decode(learned(), rows, on_progress)

    return DecodeJob(place, data, config.length, name, max_length, needs, describe, decode)


ABLATION_STEPS = 300
"""Steps `here` of a run that is only compared with its neighbors."""

_RLOO = RLConfig(
    algorithm="rloo", reward="bleu", sentences=64, rollouts=8, num_minibatches=4, entropy_coef=0.0001,
    min_length=5, max_length=30, validation_orders="",
)  # fmt: skip
_RUN = replace(LEARN_ORDER_RUN, steps=600)
_FEATURES = PolicyConfig(kind="features", start="max-prob", init_scale=3)
_OURS = {
    "features": Settings(_FEATURES, _RLOO, _RUN),
    # .003 had a better selection BLEU over six directions (`multi`) than .001.
    "confidence": Settings(replace(_FEATURES, kind="confidence"), _RLOO, replace(_RUN, learning_rate=0.003)),
}
_HIDDEN = PolicyConfig(kind="hidden")
# 1,250 batches in 16 minibatches each are 20,000 updates. Learning rate and lambda had the best selection BLEU over six
# directions (`multi`) in short runs, of .0003, .001, .002 and .001, .0001.
_A2C = Settings(_HIDDEN, replace(_RLOO, algorithm="a2c", num_minibatches=16), replace(_RUN, steps=1250))
_PPO_RL = replace(_RLOO, algorithm="ppo", reward="edit-distance", entropy_coef=0.0)
# As in recipes/paper: Adam at a constant 1e-4, 4 GPUs with 32 sentences each, about 97,000 updates.
_PAPER_RL = RLConfig(
    algorithm="a2c", reward="bleu-paper", rollouts=1, sentences=128, gamma=0.999, entropy_coef=0.001,
    min_length=5, max_length=30, validation_orders="",
)  # fmt: skip
_PAPER_PPO_RL = replace(_PAPER_RL, algorithm="ppo", reward="edit-distance", entropy_coef=0.0)
_PAPER_RUN = TrainConfig(
    steps=97_000, learning_rate=0.0001, warmup=0, decay_from=1.0, weight_decay=0.0, max_grad_norm=5.0, ema=0.0,
    validate_every=2000, save_every=2000,
)  # fmt: skip
# Each batch of rollouts makes four updates.
_PAPER_PPO_RUN = replace(_PAPER_RUN, steps=24_250, validate_every=500, save_every=500)
_PAPER_POLICY = replace(_HIDDEN, dropout=0.1)
SETTINGS: dict[Scale, dict[str, Settings]] = {
    "here": {**_OURS, "hidden": _A2C, "ppo": Settings(_HIDDEN, _PPO_RL, replace(_RUN, steps=300))},
    "paper": {
        **_OURS,
        "hidden": Settings(_PAPER_POLICY, _PAPER_RL, _PAPER_RUN),
        "ppo": Settings(_PAPER_POLICY, _PAPER_PPO_RL, _PAPER_PPO_RUN),
    },
}
"""Settings by scale and kind of order."""


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
    places = [_place(job) for job in jobs]
    groups = {place: group for group, place in enumerate(dict.fromkeys(places))}
    return [number for number, place in enumerate(places) if groups[place] % count == index - 1]


def most_parts(jobs: Sequence[Job]) -> int:
    """The number of parts that the jobs can be divided into."""
    return len(set(map(_place, jobs)))


def _place(job: Job) -> Path:
    """Jobs with the same one are in the same part."""
    return (job.needs or job).folder


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


def model_label(model: str | Path) -> str:
    """A name for folders: that of a model, and a hash of its weights."""
    path = find(str(model))
    path = path.resolve() if path.name in ("", ".", "..") else path
    name = path.parent.name if path.name == "model" else path.name
    return f"{plain_name(name)}-{sha256(path / WEIGHTS)[:8]}"


def device_name(device: torch.device) -> str:
    """A device's name for users."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"

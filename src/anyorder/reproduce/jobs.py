"""Jobs that need a translation model: learn an order, decode in an order. Finished work is never repeated.

    learn/MODEL/DIRECTIONS/ORDER/seed-N    the folder of a run, next to seed-N.json

A run that was killed continues from its last checkpoint. Knows nothing about tables.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anyorder.data.store import MANIFEST, Store
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.sentence import Sentence
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.files import sha256
from anyorder.files.records import Record, read_record
from anyorder.models.storage import WEIGHTS, find
from anyorder.orders import Order
from anyorder.orders.learned import UnboundLearnedOrder
from anyorder.orders.policy import PolicyConfig
from anyorder.orders.storage import CONFIG as ORDER_CONFIG
from anyorder.reproduce.cells import (
    CellJob,
    Job,
    Spent,
    device_name,
    plain_name,
    read_log_seconds,
    read_spent,
    write_whole_json,
)
from anyorder.reproduce.settings import LearningSettings
from anyorder.training.checkpoint import describe_changes, with_defaults
from anyorder.training.learn_order import learn_order
from anyorder.training.order_loss import RLConfig
from anyorder.training.order_objective import FOLDER as ORDER
from anyorder.translator import Translator


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk."""

    place: str
    """A bundled name, a folder or a hub id."""

    @property
    def path(self) -> Path:
        return find(self.place)

    def label(self) -> str:
        """A name for folders: the model's name and a hash of its weights."""
        path = self.path.resolve() if self.path.name in ("", ".", "..") else self.path
        name = path.parent.name if path.name == "model" else path.name
        return f"{plain_name(name)}-{sha256(path / WEIGHTS)[:8]}"


@dataclass(frozen=True)
class LearnJob(Job):
    """Learn an order with one seed, for one direction or for several that share it."""

    results: Path
    model: ModelFiles
    label: str
    directions: tuple[str, ...]
    kind_of_order: str
    settings: LearningSettings
    stores: tuple[Store, ...]
    device: torch.device
    kind = "learn"
    needs = ()

    @property
    def folder(self) -> Path:
        place = self.results / "learn" / self.label / "+".join(self.directions)
        return place / self.name / f"seed-{self.settings.run.seed}"

    @property
    def name(self) -> str:
        """Named by the settings that differ between orders, so that tables with the same order share it."""
        rl = self.settings.rl
        shared = ",shared" if len(self.directions) > 1 else ""
        return f"{self.kind_of_order},reward={rl.reward},lambda={rl.entropy_coef:g},steps={self.amount}{shared}"

    @property
    def order(self) -> Path:
        """The folder of the learned order."""
        return self.folder / ORDER

    @property
    def title(self) -> str:
        return f"learn {'+'.join(self.directions)} {self.name}, seed {self.settings.run.seed}"

    @property
    def amount(self) -> int:
        return self.settings.run.steps or 0

    @property
    def key(self) -> dict[str, Any]:
        """What determines the order."""
        settings = asdict(self.settings)
        del settings["ablation_steps"]
        for name in ("device", "compile", "track", "log_every", "save_every", "seed", "steps"):
            del settings["run"][name]
        data = "+".join(sha256(store.path / MANIFEST)[:8] for store in self.stores)
        return {"model": self.label, "data": data, **settings}

    @property
    def done(self) -> bool:
        record = self._record()
        return record is not None and record.boolean("finished") and (self.order / ORDER_CONFIG).exists()

    def spent(self) -> list[Spent]:
        record = self._record()
        if record is None:
            return []
        spent = read_spent(record)
        # Sessions that were killed are only in the log.
        unrecorded = read_log_seconds(self.folder) - sum(session.seconds for session in spent)
        if unrecorded > 0:
            steps = self.amount - sum(session.amount for session in spent)
            spent.append(Spent("learn", unrecorded, record.text("device"), steps))
        return spent

    def run(self) -> bool:
        """Learn, or continue learning."""
        record = self._record()
        spent = [] if record is None else read_spent(record)
        if record is None:
            self._write(finished=False, spent=spent)
        settings, start = self.settings, time.time()
        result = learn_order(
            self.model.place,
            [store.path for store in self.stores],
            self.folder,
            self.directions,
            settings.policy,
            settings.rl,
            settings.run,
            resume=True,
        )
        end, steps = time.time(), result.steps - sum(session.amount for session in spent)
        spent.append(Spent("learn", round(end - start, 3), device_name(self.device), steps, round(end, 3)))
        self._write(result.finished, spent)
        return result.finished

    @property
    def _record_file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def _record(self) -> Record | None:
        """The record of the run; an `InputError` if it has other settings."""
        if not self._record_file.exists():
            return None
        record = read_record(self._record_file)
        defaults = {"policy": asdict(PolicyConfig()), "rl": asdict(RLConfig())}
        before = with_defaults(record.record("key").values, defaults)
        changes = describe_changes(before, json.loads(json.dumps(self.key)))
        if changes:
            raise InputError(
                f"{self.folder}: was learned with other settings ({changes[0]}); choose another folder for the results"
            )
        return record

    def _write(self, finished: bool, spent: Sequence[Spent]) -> None:
        sessions = [asdict(session) for session in spent]
        record = {"key": self.key, "device": device_name(self.device), "finished": finished, "spent": sessions}
        write_whole_json(self._record_file, record)


@dataclass(frozen=True)
class DecodeJob(CellJob):
    """Decode a test set in one order.

    Args:
        translator: The model.
        order: A name, or the folder of a learned order, which may not exist yet.
        order_name: What trajectories and signatures call a learned order.
        batch_tokens: Target tokens to decode per batch.
    """

    translator: Translator
    order: str | Path
    order_name: str = "learned"
    batch_tokens: int | None = None

    @property
    def device(self) -> torch.device:
        return self.translator.model.device

    def key(self) -> dict[str, Any] | None:
        if isinstance(self.order, Path) and not (self.order / ORDER_CONFIG).exists():
            return None
        bound = self._config().bind(self.translator.model, self.data.direction)
        return {"order": bound.order.identity, "seed": bound.seed}

    def decode(self, sentences: Sequence[Sentence], on_progress: Callable[[int], None]) -> list[Trajectory]:
        return list(self.translator.decode(sentences, self.data.direction, self._config(), on_progress))

    def _config(self) -> DecodingConfig:
        order: str | Order = str(self.order)
        if isinstance(self.order, Path):
            order = UnboundLearnedOrder(str(self.order))
            order.name = self.order_name  # not its path, which differs between machines
        return DecodingConfig(order=order, length=self.rule, batch_tokens=self.batch_tokens)

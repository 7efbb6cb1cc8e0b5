"""What a table needs: which jobs, and which of them make up each column. Runs none of them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Literal

from anyorder.data.store import Store
from anyorder.decoder import load
from anyorder.decoding.config import make_length
from anyorder.device import Device, resolve_device
from anyorder.errors import InputError, check_number
from anyorder.evaluation.significance import MAX_SAMPLES, MIN_SAMPLES, SAMPLES
from anyorder.files import check_plain_name
from anyorder.orders.learned import DEFAULT, find_order
from anyorder.reproduce.autoregressive import METHODS, RECORD, BaselineJob, baseline_job
from anyorder.reproduce.data_folders import DataFolders, SplitSet
from anyorder.reproduce.jobs import DecodeJob, Job, OpenModel, RunJob, model_label
from anyorder.reproduce.order_jobs import OrderJob, Scale, learn_job, settings_of
from anyorder.reproduce.tables import BASELINE, TABLES, Part, Row, direction_title, find_table


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to reproduce a table."""

    scale: Scale = "here"
    """here: learn from the stores, in minutes. paper: get WMT and XLM from the hub and train as in the paper."""
    learned: Literal["seeds", "model"] = "seeds"
    """seeds: learn the orders. model: use the orders saved with the model, and learn nothing."""
    seeds: int = 3
    """Number of seeds to learn each order with."""
    shared: bool = False
    """Learn one order for all directions of a model that have a store, not one per direction."""
    steps: int | None = None
    """Training steps per learned order; overrides the default of the scale, which is lower for table3, table4 and
    causes."""
    baseline: float | None = None
    """Minutes to train an autoregressive baseline, which adds rows (table1, table2)."""
    baseline_weights: dict[str, float] = field(default_factory=dict)
    """How often the baseline uses each pair of a corpus per epoch, by name, such as de-en/news; by default 1. Give it
    the weights that the model was trained with."""
    baseline_model: Path | None = None
    """Use the autoregressive baseline in this folder instead of training one."""
    datasets: dict[str, str] = field(default_factory=dict)
    """At the paper's scale, data sets to use instead of WMT's, by language pair, such as zh-en."""
    xlm: dict[str, str] = field(default_factory=dict)
    """At the paper's scale, models to use instead of the hub's, by language pair."""
    train_steps: int | None = None
    """At the paper's scale, training steps of the masked translation model."""
    sentences: int | None = None
    """Use only the first N sentences of every test set."""
    samples: int = SAMPLES
    """Resamples of the significance tests."""
    device: Device = "auto"
    """Device to run on."""
    batch_tokens: int | None = None
    """Target tokens to decode per batch. On CUDA, rounding may change a few results."""
    name: str | None = None
    """Write NAME.md, NAME.tex and NAME.json, for example to keep the tables of several commands in one folder."""


@dataclass(frozen=True)
class Request(Options):
    """What to reproduce, with what, and how."""

    table: str
    out: Path
    """The folder of all results."""
    models: Sequence[str] = ()
    """Bundled names, folders or hub ids; each direction takes the first model that translates it."""
    data: Sequence[Path] = ()
    """Prepared stores, and folders of text files."""
    directions: Sequence[str] = ()
    """By default, those of the table that the models translate."""
    rules: Sequence[str] = ()
    """Length rules; by default those of the table."""
    rows: Sequence[str] = ()
    """Rows of the table; by default all."""
    max_lengths: Sequence[int | None] = ()
    """Only the columns with these length limits, None for whole sets; by default all."""

    def __post_init__(self) -> None:
        check_number("seeds", self.seeds, at_least=1, at_most=100)
        for name in ("steps", "train_steps", "sentences"):
            check_number(name, getattr(self, name), at_least=1)
        check_number("baseline", self.baseline, above=0)
        check_number("samples", self.samples, at_least=MIN_SAMPLES, at_most=MAX_SAMPLES)
        check_number("batch_tokens", self.batch_tokens, at_least=1, at_most=1 << 24)
        if self.name is not None:
            check_plain_name(self.name)
            if self.name != self.table and self.name in TABLES:
                raise InputError(f"{self.name}: is the name of another table", "name")
        find_table(self.table, self.rows, self.max_lengths)
        for rule in self.rules:
            make_length(rule)
        for direction in self.directions:
            direction_title(direction)
        if self.baseline_weights and self.baseline is None:
            raise InputError("is for a baseline that is trained", "baseline_weights")
        if self.baseline is not None and self.baseline_model is not None:
            raise InputError("cannot be given together with a model that was trained before", "baseline")


@dataclass(frozen=True)
class System:
    """A row of a table, with one seed, on one test set."""

    row: str
    seed: int | None
    """None if the system is not learned for the table."""
    job: DecodeJob

    @property
    def name(self) -> str:
        return self.row if self.seed is None else f"{self.row}, seed {self.seed}"


@dataclass(frozen=True)
class PlannedPart:
    """A part of a test set, with one length rule, and all that is compared on it."""

    data: SplitSet
    part: Part
    rule: str
    systems: list[System]

    @property
    def title(self) -> str:
        return f"{direction_title(self.data.direction)} {self.part.text}, {self.rule}"


def make_plans(requests: Sequence[Request]) -> "list[Plan]":
    """The plans of several tables with the same models and data, which are opened once."""
    first = requests[0]
    if not first.models:
        raise InputError("is missing: name a model, such as de-en", "model")
    device, data = resolve_device(first.device), DataFolders(first.data)
    models = [OpenModel(place, model_label(place), load(place, device=device)) for place in first.models]
    return [Plan(request, data, models) for request in requests]


class Plan:
    """A table with what makes it up."""

    def __init__(self, request: Request, data: DataFolders, models: Sequence[OpenModel]):
        self.request, self._data = request, data
        self.table = find_table(request.table, request.rows, request.max_lengths)
        self.notes: list[str] = []
        """What is left out, and why."""
        self._models: dict[str, OpenModel] = {}
        """The first model that translates each direction."""
        for model in models:
            for direction in model.decoder.model.config.directions:
                self._models.setdefault(direction, model)
        self.parts = [part for direction in self._directions() for part in self._parts(direction)]

    def drop_unfinished(self) -> None:
        """Leave out what is not done yet.

        A learned row counts once all of its seeds are done, and a part once left-to-right is.
        """
        parts, missing = [], []
        for part in self.parts:
            unfinished = dict.fromkeys(system.row for system in part.systems if not system.job.done)
            if BASELINE in unfinished:
                missing.append(f"{part.title} (all orders)")
                continue
            if unfinished:
                missing.append(f"{part.title} ({', '.join(unfinished)})")
            parts.append(replace(part, systems=[one for one in part.systems if one.row not in unfinished]))
        self.parts = parts
        if missing:
            self.notes.append(f"Not finished yet: {'; '.join(missing)}.")
            self.notes.append("Until then, p-values are corrected for the finished heuristic orders only.")

    def _directions(self) -> list[str]:
        request, known = self.request, self._models
        if not request.directions:
            found = [direction for direction in self.table.directions if direction in known]
            if not found:
                names = ", ".join(request.models)
                raise InputError(f"{names}: translates none of {', '.join(self.table.directions)}", "model")
            return found
        for direction in request.directions:
            if direction not in known:
                raise InputError(f"'{direction}': no model translates it (known: {', '.join(known)})", "direction")
        return list(dict.fromkeys(request.directions))

    def _parts(self, direction: str) -> Iterator[PlannedPart]:
        request, model = self.request, self._models[direction]
        decoder = model.decoder.with_task(direction)
        sets = {split: self._data.split_set(decoder, split, request.sentences) for split in self._splits(direction)}
        for rule in request.rules or self.table.rules:
            systems = {split: list(self._systems(model, data, rule)) for split, data in sets.items()}
            for part in self.table.parts:
                if part.split in sets:
                    yield PlannedPart(sets[part.split], part, rule, systems[part.split])

    def _splits(self, direction: str) -> list[str]:
        """The table's splits that have data; if none has, all of them, so that the first one raises the error."""
        splits = list(dict.fromkeys(part.split for part in self.table.parts))
        found = [split for split in splits if self._data.find(direction, split)]
        for split in splits:
            if found and split not in found:
                self._note(direction, f"there is no {split} set.")
        return found or splits

    def _note(self, direction: str, text: str) -> None:
        note = f"{direction_title(direction)}: {text}"
        if note not in self.notes:
            self.notes.append(note)

    def _systems(self, model: OpenModel, data: SplitSet, rule: str) -> Iterator[System]:
        """Every row on one test set, learned ones once per seed."""
        request, direction = self.request, data.direction
        limits = [part.max_length for part in self.table.parts if part.split == data.split]
        longest = None if None in limits else max(limit for limit in limits if limit is not None)

        def decode(name: str, order: str, needs: RunJob | None = None) -> DecodeJob:
            of_set = request.out, model.label, data, rule, name, longest
            return OrderJob(*of_set, needs, order, request.batch_tokens)

        for row in self.table.rows:
            if not row.kind:
                yield System(row.name, None, decode(row.name, row.name))
            elif request.learned == "seeds":
                for seed in range(1, request.seeds + 1):
                    learn = self._learn_job(row, direction, model, seed)
                    name = f"{learn.folder.parent.name},seed={seed}"
                    yield System(row.name, seed, decode(name, f"learned:{row.kind}", learn))
            elif self._is_saved(row, direction, model):
                yield System(row.name, None, decode(row.name, row.name))
            else:
                self._note(direction, f"the model has no order of its own for the row {row.name}.")
        if self.table.takes_baseline and (request.baseline or request.baseline_model):
            place, label, training = self._baseline
            for method, beam in METHODS.items():
                job = BaselineJob(request.out, label, data, "own", method, longest, training, place, beam)
                yield System(f"autoregressive, {method}", None, job)

    def _is_saved(self, row: Row, direction: str, model: OpenModel) -> bool:
        """Whether the order of a row is one of those saved with the model."""
        if not row.is_ablation:
            with suppress(InputError):
                find_order(row.name.partition(":")[2] or DEFAULT, model.decoder.model, direction)
                return True
        return False

    def _learn_job(self, row: Row, direction: str, model: OpenModel, seed: int) -> RunJob:
        request, directions = self.request, [direction]
        if request.shared:
            held = _directions_of(self._data.stores)
            directions = [each for each in model.decoder.model.config.directions if each in held] or directions
        settings = settings_of(row, request.scale, seed, request.steps, model.device.type)
        stores = list(dict.fromkeys(self._data.store(each, model.decoder.model) for each in directions))
        return learn_job(request.out, model, directions, row.kind, settings, stores)

    @cached_property
    def _baseline(self) -> tuple[Path, str, RunJob | None]:
        """The folder of the baseline, its label, and the job that trains it, if any."""
        request = self.request
        if request.baseline_model is not None:
            if not (request.baseline_model / RECORD).exists():
                raise InputError(f"{request.baseline_model}: is no baseline (it has no {RECORD})", "baseline_model")
            return request.baseline_model, model_label(request.baseline_model), None
        assert request.baseline is not None
        model = next(iter(self._models.values()))
        vocabulary = model.decoder.model.vocabulary.fingerprint
        stores = [one for one in self._data.stores if one.vocabulary.fingerprint == vocabulary and "train" in one]
        if not stores:
            raise InputError("needs a store with a train split, prepared with the model's vocabulary", "baseline")
        missing = [one for one in self._directions() if one not in _directions_of(stores)]
        if missing:
            raise InputError(f"no store with a train split holds {missing[0]}", "baseline")
        job = baseline_job(request.out, model, stores, request.baseline, request.baseline_weights)
        return job.result.parent, f"{model.label}-autoregressive-{job.folder.name}", job


def jobs_of(plans: Sequence[Plan]) -> list[Job]:
    """The jobs of some tables: each once, also if several tables need it, and after the one that it needs."""
    decoding = [system.job for plan in plans for part in plan.parts for system in part.systems]
    jobs = (job for one in decoding for job in (one.needs, one) if job is not None)
    return list({job.title: job for job in jobs}.values())


def _directions_of(stores: Sequence[Store]) -> set[str]:
    """Every direction that one of the stores holds."""
    return {"-".join(pair) for store in stores for pair in permutations(store.languages, 2)}

"""What a table needs: which jobs, in which order, and which of them make up each column. Runs none of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, permutations
from pathlib import Path
from typing import Literal

from anyorder.data.store import Store
from anyorder.decoding.lengths import make_length
from anyorder.device import resolve_device
from anyorder.errors import InputError, check_number
from anyorder.evaluation.significance import MAX_SAMPLES, MIN_SAMPLES, SAMPLES
from anyorder.files import check_plain_name
from anyorder.models.translation import TranslationModel
from anyorder.orders.storage import DEFAULT, find_order
from anyorder.reproduce.autoregressive import RECORD, pair_weights
from anyorder.reproduce.baseline_jobs import METHODS, BaselineDecodeJob, BaselineTrainJob
from anyorder.reproduce.cells import CellJob, Job
from anyorder.reproduce.evaluation_sets import DataFolders, EvaluationSet
from anyorder.reproduce.jobs import DecodeJob, LearnJob, ModelFiles
from anyorder.reproduce.settings import SETTINGS, Scale
from anyorder.reproduce.tables import (
    BASELINE,
    TABLES,
    Part,
    Row,
    Table,
    choose_parts,
    choose_rows,
    direction_title,
    find_table,
)
from anyorder.translator import Translator, load

Learned = Literal["seeds", "model"]


@dataclass(frozen=True)
class Request:
    """What to reproduce, and with what."""

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
    scale: Scale = "here"
    learned: Learned = "seeds"
    """Learn orders with several seeds, or use those saved with the model."""
    shared: bool = False
    """Learn one order for all directions of a model that have a store, not one per direction."""
    seeds: int = 3
    steps: int | None = None
    """Training steps per learned order; overrides the default of the scale."""
    baseline: float | None = None
    """Minutes to train an autoregressive baseline; None for no baseline."""
    baseline_weights: Mapping[str, float] = field(default_factory=dict)
    """How often the baseline uses each pair of a corpus per epoch, by name (STORE/CORPUS if there are several stores);
    by default 1."""
    baseline_model: Path | None = None
    """The folder of a baseline that was trained before."""
    sentences: int | None = None
    """Use only the first N sentences of every test set."""
    samples: int = SAMPLES
    """Resamples of the significance tests."""
    device: str = "auto"
    batch_tokens: int | None = None
    name: str | None = None
    """Name of the files to write; by default that of the table."""

    def __post_init__(self) -> None:
        check_number("seeds", self.seeds, at_least=1, at_most=100)
        check_number("steps", self.steps, at_least=1)
        check_number("baseline", self.baseline, above=0)
        check_number("sentences", self.sentences, at_least=1)
        check_number("samples", self.samples, at_least=MIN_SAMPLES, at_most=MAX_SAMPLES)
        check_number("batch_tokens", self.batch_tokens, at_least=1, at_most=1 << 24)
        if self.name is not None:
            check_plain_name(self.name)
            if self.name != self.table and self.name in TABLES:
                raise InputError(f"{self.name}: is the name of another table", "name")
        choose_rows(find_table(self.table), self.rows)
        choose_parts(find_table(self.table), self.max_lengths)
        for rule in self.rules:
            make_length(rule)
        for direction in self.directions:
            direction_title(direction)
        if self.baseline_weights and self.baseline is None:
            raise InputError("is for a baseline that is trained", "baseline_weights")
        if self.baseline is not None and self.baseline_model is not None:
            raise InputError("cannot be given together with a model that was trained before", "baseline")


@dataclass(frozen=True)
class PlannedSystem:
    """A row, with one seed, on one test set."""

    row: str
    seed: int | None
    learned: bool
    job: CellJob


@dataclass(frozen=True)
class PlannedPart:
    """A column of a table."""

    data: EvaluationSet
    part: Part
    rule: str
    systems: list[PlannedSystem]

    @property
    def title(self) -> str:
        return f"{direction_title(self.data.direction)} {self.part.text}, {self.rule}"


@dataclass(frozen=True)
class Plan:
    """All jobs of a table; those that others depend on come first."""

    table: Table
    jobs: list[Job]
    parts: list[PlannedPart]
    heuristics: list[str]
    """The baseline rows for the p-values."""
    notes: list[str]
    """What is left out, and why."""

    def finished(self) -> "Plan":
        """The same plan without what is not done yet.

        A learned row counts once all of its seeds are done, and a column once left-to-right is.
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
        notes = list(self.notes)
        if missing:
            notes.append(f"Not finished yet: {'; '.join(missing)}.")
            notes.append("Until then, p-values are corrected for the finished heuristic orders only.")
        return replace(self, parts=parts, jobs=[job for job in self.jobs if job.done], notes=notes)


def make_plan(request: Request) -> Plan:
    """The jobs of a table, done or not. Loads models and test sets."""
    return make_plans([request])[0]


def make_plans(requests: Sequence[Request]) -> list[Plan]:
    """The jobs of several tables with the same models and data, which are loaded once."""
    inputs = _Inputs(requests[0])
    return [_Planner(request, inputs).plan() for request in requests]


@dataclass(frozen=True)
class _OpenModel:
    files: ModelFiles
    label: str
    translator: Translator

    @property
    def directions(self) -> list[str]:
        return self.translator.model.config.directions


class _Inputs:
    """Models and data, opened once for all tables."""

    def __init__(self, request: Request):
        if not request.models:
            raise InputError("is missing: name a model", "model")
        self.device = resolve_device(request.device)
        self.data = DataFolders(request.data)
        files = [ModelFiles(place) for place in request.models]
        self.models = [_OpenModel(one, one.label(), load(one.path, self.device)) for one in files]
        self._sets: dict[tuple[str, str], EvaluationSet] = {}

    def evaluation_set(self, direction: str, split: str, model: _OpenModel) -> EvaluationSet:
        """A split, encoded for the model of this direction."""
        key = direction, split
        if key not in self._sets:
            self._sets[key] = self.data.evaluation_set(direction, split, model.translator.model)
        return self._sets[key]


class _Planner:
    def __init__(self, request: Request, inputs: _Inputs):
        self.request = request
        table = find_table(request.table)
        self.table = replace(table, parts=choose_parts(table, request.max_lengths))
        self.rows = choose_rows(self.table, request.rows)
        self.inputs = inputs
        self.device, self.data, self.models = inputs.device, inputs.data, inputs.models
        self.notes: dict[str, None] = {}

    def plan(self) -> Plan:
        jobs: dict[str, Job] = {}
        parts: list[PlannedPart] = []
        for direction in self._directions():
            model = self._model(direction)
            sets = {
                split: self.inputs.evaluation_set(direction, split, model).first(self.request.sentences)
                for split in self._splits(direction)
            }
            for rule in self.request.rules or self.table.rules:
                systems = {split: list(self._systems(model, data, rule)) for split, data in sets.items()}
                for system in chain.from_iterable(systems.values()):
                    jobs |= {job.title: job for job in (*system.job.needs, system.job)}
                parts += [
                    PlannedPart(sets[part.split], part, rule, systems[part.split])
                    for part in self.table.parts
                    if part.split in sets
                ]
        heuristics = [row.name for row in self.rows if row.learned is None]
        return Plan(self.table, list(jobs.values()), parts, heuristics, list(self.notes))

    def _directions(self) -> list[str]:
        if self.request.directions:
            return list(dict.fromkeys(self.request.directions))
        known = {direction for model in self.models for direction in model.directions}
        found = [direction for direction in self.table.directions if direction in known]
        if not found:
            names = ", ".join(self.request.models)
            raise InputError(f"{names}: translates none of {', '.join(self.table.directions)}", "model")
        return found

    def _splits(self, direction: str) -> list[str]:
        """The table's splits that have data; if none has, all of them, so that the first one raises the error."""
        found = [split for split in self.table.splits if self.data.has(direction, split)]
        for split in self.table.splits:
            if found and split not in found:
                self.notes[f"{direction_title(direction)}: there is no {split} set."] = None
        return found or self.table.splits

    def _model(self, direction: str) -> _OpenModel:
        """The first model that translates a direction."""
        for model in self.models:
            if direction in model.directions:
                return model
        known = dict.fromkeys(name for model in self.models for name in model.directions)
        raise InputError(f"'{direction}': no model translates it (known: {', '.join(known)})", "direction")

    def _systems(self, model: _OpenModel, data: EvaluationSet, rule: str) -> Iterator[PlannedSystem]:
        """Every row on one test set, learned ones once per seed."""
        limits = [part.max_length for part in self.table.parts if part.split == data.split]
        longest = None if None in limits else max(limit for limit in limits if limit is not None)

        def decode(name: str, order: str | Path, kind: str = "", needs: tuple[Job, ...] = ()) -> DecodeJob:
            of_cell = (self.request.out, model.label, data, rule, name, longest, needs)
            return DecodeJob(*of_cell, model.translator, order, f"learned:{kind}", self.request.batch_tokens)

        for row in self.rows:
            if row.learned is None:
                yield PlannedSystem(row.name, None, False, decode(row.name, row.name))
            elif self.request.learned == "model":
                order = self._own_order(row, data.direction, model)
                if order:
                    yield PlannedSystem(row.name, None, True, decode(row.name, order))
            else:
                for seed in range(1, self.request.seeds + 1):
                    learn = self._learn_job(row, data.direction, model, seed)
                    job = decode(f"{learn.name},seed={seed}", learn.order, row.learned.kind, (learn,))
                    yield PlannedSystem(row.name, seed, True, job)
        if self.table.takes_baseline and self._baseline is not None:
            place, label, needs = self._baseline
            for method in METHODS:
                of_cell = (self.request.out, label, data, "own", method, longest, needs)
                job_of_baseline = BaselineDecodeJob(*of_cell, place, model.translator.model, self.device)
                yield PlannedSystem(f"autoregressive, {method}", None, False, job_of_baseline)

    def _own_order(self, row: Row, direction: str, model: _OpenModel) -> str | None:
        """The name of the model's own order for a row; None, with a note, if it has none."""
        assert row.learned is not None
        name = row.learned.name
        if name and has_order(name, model.translator.model, direction):
            return "learned" if name == DEFAULT else f"learned:{name}"
        self.notes[f"{direction_title(direction)}: the model has no order of its own for the row {row.name}."] = None
        return None

    def _learn_job(self, row: Row, direction: str, model: _OpenModel, seed: int) -> LearnJob:
        assert row.learned is not None
        settings = SETTINGS[self.request.scale][row.learned.kind]
        settings = settings.for_order(row.learned, seed, self.request.steps, self.device.type)
        directions = self._learned_together(direction, model)
        stores = dict.fromkeys(self.data.store(each, model.translator.model) for each in directions)
        of_model = (self.request.out, model.files, model.label, directions)
        return LearnJob(*of_model, row.learned.kind, settings, tuple(stores), self.device)

    def _learned_together(self, direction: str, model: _OpenModel) -> tuple[str, ...]:
        """The directions that share an order with this one."""
        if not self.request.shared:
            return (direction,)
        held = _directions_of(self.data.stores)
        return tuple(each for each in model.directions if each in held) or (direction,)

    @cached_property
    def _baseline(self) -> tuple[Path, str, tuple[Job, ...]] | None:
        """The folder of the baseline, its label, and the job that trains it, if any."""
        request = self.request
        if request.baseline_model is not None:
            if not (request.baseline_model / RECORD).exists():
                raise InputError(f"{request.baseline_model}: is no baseline (it has no {RECORD})", "baseline_model")
            return request.baseline_model, ModelFiles(str(request.baseline_model)).label(), ()
        if request.baseline is None:
            return None
        model = self.models[0]
        vocabulary = model.translator.model.vocabulary.fingerprint
        stores = [
            store for store in self.data.stores if store.vocabulary.fingerprint == vocabulary and "train" in store
        ]
        if not stores:
            raise InputError("needs a store with a train split, prepared with the model's vocabulary", "baseline")
        missing = [direction for direction in self._directions() if direction not in _directions_of(stores)]
        if missing:
            raise InputError(f"no store with a train split holds {missing[0]}", "baseline")
        pair_weights(stores, request.baseline_weights)  # an `InputError` now rather than when it is trained
        of_model = (request.out, model.translator.model, model.label, stores)
        job = BaselineTrainJob(*of_model, request.baseline, request.baseline_weights, self.device)
        return job.place, f"{model.label}-autoregressive-{job.folder.name}", (job,)


def _directions_of(stores: Sequence[Store]) -> set[str]:
    """Every direction that one of the stores holds."""
    return {"-".join(pair) for store in stores for pair in permutations(store.languages, 2)}


def has_order(name: str, model: TranslationModel, direction: str) -> bool:
    """Whether a model has an order of that name for this direction."""
    try:
        find_order(name, model, direction)
    except InputError:
        return False
    return True

"""Reproduce tables of the paper: plan which jobs they need, do the missing ones, score their results, write the tables.

The library's functions behind `anyorder reproduce`. Knows nothing about flags.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Literal

from anyorder.cluster import Cluster
from anyorder.data.store import Store
from anyorder.decoder import Decoder, load
from anyorder.decoding.config import DecodingConfig, make_length
from anyorder.device import Device, process_count, resolve_device
from anyorder.errors import InputError, check_number, unknown
from anyorder.evaluation.significance import MAX_SAMPLES, MIN_SAMPLES, SAMPLES
from anyorder.files import check_plain_name, check_writable, lock_folder
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders.learned import DEFAULT, find_order
from anyorder.report.tables import count_text
from anyorder.reproduce.autoregressive import METHODS, RECORD, decoding_job, training_job
from anyorder.reproduce.data_folders import DataFolders, SplitSet
from anyorder.reproduce.jobs import (
    Cost,
    DecodeJob,
    Job,
    RunJob,
    Scale,
    choose_part,
    learn_job,
    model_label,
    most_parts,
    order_job,
    run_jobs,
    settings_of,
)
from anyorder.reproduce.report import PlannedPart, Report, score_part
from anyorder.reproduce.tables import BASELINE, TABLES, Row, direction_title, find_table
from anyorder.reproduce.wmt import SOURCES, wmt_job


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


def reproduce(
    requests: Sequence[Request],
    part: tuple[int, int] = (1, 1),
    so_far: bool = False,
    on_line: Callable[[str], None] = lambda line: None,
    cluster: Cluster | None = None,
) -> list[Report]:
    """Do the missing jobs of some tables, and write the tables to `Request.out`, which they share.

    Args:
        requests: What to reproduce, and with what. The tables have the same models and data, and share their jobs.
        part: Which part of the jobs to do, of how many, such as `(1, 4)`. Several processes can each do one; the one
            that ends last writes the tables.
        so_far: Do no job. Write the part of each table that is finished; processes may be working on the rest.
        on_line: Called with a line before each job, and with what else there is to say.
        cluster: Do the jobs on these machines, which must see the same files.

    Returns:
        The tables that were written; none if a signal stopped the work, or if another part is not done.
    """
    out = requests[0].out
    check_writable(out)
    if process_count() > 1:
        raise InputError("a launcher cannot share the jobs of a table: start the command itself, once for each part")
    if cluster is not None:
        if part != (1, 1):
            raise InputError("does not go together with a cluster, which shares all jobs", "part")
        requests = [_absolute(request) for request in requests]
    asked = requests
    if cluster is not None:  # here, jobs are only listed
        requests = [replace(request, device="cpu") for request in requests]
    training, requests = with_paper(requests)
    untrained = ", ".join(job.folder.parent.name for job in training if not job.done)
    if so_far and untrained:
        raise InputError(f"has nothing to show yet: the model for {untrained} is not trained", "so_far")
    if not so_far and not _finish(training, part, on_line, cluster, _Part(asked, trained=False)):
        return []
    plans = make_plans(requests)
    if so_far:
        for plan in plans:
            plan.drop_unfinished()
    elif not _finish(jobs_of(plans), part, on_line, cluster, _Part(asked, trained=True)):
        return []
    unfinished = [plan.table.name for plan in plans if not plan.parts]
    if len(unfinished) == len(plans):
        names = ", ".join(unfinished)
        raise InputError(f"{names}: no column is finished yet; each needs at least {BASELINE}", "so_far")
    for name in unfinished:
        on_line(f"{name}: no column is finished yet")
    costs = [cost for job in training for cost in job.costs()]
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(out, "another process is writing tables there"))
        except InputError as error:  # a part that ended at the same time
            on_line(str(error))
            return []
        return [_write(plan, costs) for plan in plans if plan.parts]


def list_jobs(requests: Sequence[Request]) -> list[Job]:
    """All jobs of some tables. At the paper's scale, those that need a model are known only after it is trained."""
    training, requests = with_paper(requests)
    if not all(job.done for job in training):
        return [*training]
    return [*training, *jobs_of(make_plans(requests))]


@dataclass(frozen=True)
class _Part:
    """In a worker: do one part of the jobs. trained: whether those that follow the training."""

    requests: Sequence[Request]
    trained: bool

    def __call__(self, part: tuple[int, int]) -> bool:
        training, requests = with_paper(self.requests)
        return run_jobs(jobs_of(make_plans(requests)) if self.trained else training, part, lambda line: None)


def _absolute(request: Request) -> Request:
    """The request for processes that work in other folders."""
    models = [str(Path(one).absolute()) if Path(one).exists() else one for one in request.models]
    baseline = request.baseline_model and request.baseline_model.absolute()
    data = [folder.absolute() for folder in request.data]
    return replace(request, out=request.out.absolute(), models=models, data=data, baseline_model=baseline)


def _finish(
    jobs: Sequence[Job], part: tuple[int, int], on_line: Callable[[str], None], cluster: Cluster | None, work: _Part
) -> bool:
    """Do the jobs of a part, or of all parts on a cluster; whether all jobs of all parts are done then."""
    if cluster is not None:
        count = most_parts(jobs)
        parts = [(index, count) for index in range(1, count + 1)]
        titles = {one: [jobs[i].title for i in choose_part(jobs, one) if not jobs[i].done] for one in parts}
        begun = [one for one in parts if titles[one]]
        on_gpu = cluster.uses_gpus(work.requests[0].device)
        for one, _ in zip(begun, cluster.map(work, begun, on_gpu, ahead=len(begun)), strict=True):
            for title in titles[one]:
                on_line(f"done: {title}")
    elif not run_jobs(jobs, part, on_line):
        on_line("stopped; run the same command to continue")
        return False
    missing = sum(not job.done for job in jobs)
    if missing:
        on_line(
            f"part {part[0]} of {part[1]} is done, but {count_text(missing, 'job')} of other parts "
            f"{'is' if missing == 1 else 'are'} not; run the command again after them"
        )
    return not missing


def _write(plan: "Plan", costs: Sequence[Cost]) -> Report:
    """Score a table, and write it."""
    request = plan.request
    parts = [score_part(request.out, part, plan.table, request.samples) for part in plan.parts]
    costs = [*costs, *(cost for job in jobs_of([plan]) for cost in job.costs())]
    report = Report(plan.table, request.scale, parts, costs, plan.notes)
    report.write(request.out, request.name or request.table)
    return report


def with_paper(requests: Sequence[Request]) -> tuple[list[RunJob], list[Request]]:
    """The jobs that prepare data and models at the paper's scale, and the requests with these; at another, no jobs."""
    first = requests[0]
    if first.scale != "paper":
        return [], [*requests]
    for name in (*first.datasets, *first.xlm):
        if name not in SOURCES:
            raise unknown("pair of languages", name, SOURCES)
    known = {direction: name for name in SOURCES for direction in (name, "-".join(reversed(name.split("-"))))}
    directions = [one for request in requests for one in request.directions or find_table(request.table).directions]
    for direction in directions:
        if direction not in known:
            raise unknown("direction", direction, known)
    jobs = []
    for name in dict.fromkeys(known[direction] for direction in directions):
        dataset, xlm = first.datasets.get(name, SOURCES[name][0]), first.xlm.get(name, SOURCES[name][1])
        folder, device = first.out / "paper" / name, resolve_device(first.device)
        jobs.append(wmt_job(name, folder, dataset, xlm, first.train_steps, device))
    models = [str(job.result) for job in jobs]
    data = [job.folder.with_name(part) for job in jobs for part in ("text", "store")]
    return jobs, [replace(one, models=[*one.models, *models], data=[*one.data, *data]) for one in requests]


def make_plans(requests: Sequence[Request]) -> "list[Plan]":
    """The plans of several tables with the same models and data, which are opened once."""
    first = requests[0]
    if not first.models:
        raise InputError("is missing: name a model, such as de-en", "model")
    device, data = resolve_device(first.device), DataFolders(first.data)
    models: dict[str, Decoder] = {}
    for place in first.models:
        decoder = load(place, device=device)
        if not isinstance(decoder.model, TranslationModel):
            raise InputError(f"{place}: does not translate, as the models of the paper's tables do", "model")
        models[model_label(place)] = decoder
    return [Plan(request, data, models) for request in requests]


def jobs_of(plans: "Sequence[Plan]") -> list[Job]:
    """The jobs of some tables: each once, also if several tables need it, and after the one that it needs."""
    decoding = [job for plan in plans for part in plan.parts for job in part.systems.values()]
    jobs = (job for one in decoding for job in (one.needs, one) if job is not None)
    return list({job.title: job for job in jobs}.values())


class Plan:
    """A table with what makes it up."""

    def __init__(self, request: Request, data: DataFolders, models: dict[str, Decoder]):
        self.request, self._data = request, data
        self.table = find_table(request.table, request.rows, request.max_lengths)
        self.notes: list[str] = []
        """What is left out, and why."""
        self._models: dict[str, tuple[str, Decoder]] = {}
        """The first model that translates each direction, and its label."""
        for label, decoder in models.items():
            for direction in decoder.model.config.directions:
                self._models.setdefault(direction, (label, decoder))
        self.parts = [part for direction in self._directions() for part in self._parts(direction)]

    def drop_unfinished(self) -> None:
        """Leave out what is not done yet.

        A learned row counts once all of its seeds are done, and a part once left-to-right is.
        """
        parts, missing = [], []
        for part in self.parts:
            finished = {row: jobs for row, jobs in part.rows.items() if all(job.done for job in jobs.values())}
            unfinished = [row for row in part.rows if row not in finished]
            if BASELINE in finished:
                parts.append(replace(part, rows=finished))
            if unfinished:
                missing.append(f"{part.title} ({', '.join(unfinished) if BASELINE in finished else 'all orders'})")
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
        """The parts of the splits that have data; if none has, the first one raises the error."""
        request, (label, decoder) = self.request, self._models[direction]
        splits = list(dict.fromkeys(part.split for part in self.table.parts))
        found = [split for split in splits if self._data.find(direction, split)] or splits
        for split in splits:
            if split not in found:
                self._note(direction, f"there is no {split} set.")
        decoder = decoder.with_task(direction)
        sets = {split: self._data.split_set(decoder, split, request.sentences) for split in found}
        for rule in request.rules or self.table.rules:
            rows = {split: self._rows(label, data, rule) for split, data in sets.items()}
            for part in self.table.parts:
                if part.split in sets:
                    yield PlannedPart(sets[part.split], part, rule, rows[part.split])

    def _note(self, direction: str, text: str) -> None:
        note = f"{direction_title(direction)}: {text}"
        if note not in self.notes:
            self.notes.append(note)

    def _rows(self, label: str, data: SplitSet, rule: str) -> dict[str, dict[int | None, DecodeJob]]:
        """The jobs of every row on one test set, learned ones once per seed."""
        request, direction = self.request, data.direction
        limits = [part.max_length for part in self.table.parts if part.split == data.split]
        longest = None if None in limits else max(limit for limit in limits if limit is not None)

        def decode(name: str, order: str, needs: RunJob | None = None) -> DecodeJob:
            config = DecodingConfig(order=order, length=rule, batch_tokens=request.batch_tokens)
            return order_job(request.out / "decode" / label, data, name, longest, config, needs)

        rows: dict[str, dict[int | None, DecodeJob]] = {}
        for row in self.table.rows:
            if row.kind and request.learned == "seeds":
                runs = {seed: self._learn_job(row, direction, seed) for seed in range(1, request.seeds + 1)}
                names = {seed: f"{run.folder.parent.name},seed={seed}" for seed, run in runs.items()}
                rows[row.name] = {seed: decode(names[seed], f"learned:{row.kind}", run) for seed, run in runs.items()}
            elif not row.kind or self._is_saved(row, direction):
                rows[row.name] = {None: decode(row.name, row.name)}
            else:
                self._note(direction, f"the model has no order of its own for the row {row.name}.")
        if self.table.takes_baseline and (request.baseline or request.baseline_model):
            folder, name, training = self._baseline
            for method in METHODS:
                job = decoding_job(request.out / "decode" / name, data, method, longest, folder, training)
                rows[f"autoregressive, {method}"] = {None: job}
        return rows

    def _is_saved(self, row: Row, direction: str) -> bool:
        """Whether the order of a row is one of those saved with the model."""
        if not row.is_ablation:
            with suppress(InputError):
                find_order(row.name.partition(":")[2] or DEFAULT, self._models[direction][1].model, direction)
                return True
        return False

    def _learn_job(self, row: Row, direction: str, seed: int) -> RunJob:
        request, (label, decoder), directions = self.request, self._models[direction], [direction]
        if request.shared:
            held = _directions_of(self._data.stores)
            directions = [each for each in decoder.model.config.directions if each in held] or directions
        settings = settings_of(row, request.scale, seed, request.steps, decoder.model.device.type)
        stores = list(dict.fromkeys(self._data.store(each, decoder.model) for each in directions))
        return learn_job(request.out, label, decoder, directions, row.kind, settings, stores)

    @cached_property
    def _baseline(self) -> tuple[Path, str, RunJob | None]:
        """The folder of the baseline, its label, and the job that trains it, if any."""
        request = self.request
        if request.baseline_model is not None:
            if not (request.baseline_model / RECORD).exists():
                raise InputError(f"{request.baseline_model}: is no baseline (it has no {RECORD})", "baseline_model")
            return request.baseline_model, model_label(request.baseline_model), None
        assert request.baseline is not None
        label, decoder = next(iter(self._models.values()))
        model = decoder.model
        vocabulary = model.vocabulary.fingerprint
        stores = [one for one in self._data.stores if one.vocabulary.fingerprint == vocabulary and "train" in one]
        if not stores:
            raise InputError("needs a store with a train split, prepared with the model's vocabulary", "baseline")
        missing = [one for one in self._directions() if one not in _directions_of(stores)]
        if missing:
            raise InputError(f"no store with a train split holds {missing[0]}", "baseline")
        folder = request.out / "baseline" / label / f"{request.baseline:g}-minutes"
        job = training_job(folder, model, stores, request.baseline, request.baseline_weights)
        return job.result.parent, f"{label}-autoregressive-{folder.name}", job


def _directions_of(stores: Sequence[Store]) -> set[str]:
    """Every direction that one of the stores holds."""
    return {"-".join(pair) for store in stores for pair in permutations(store.languages, 2)}

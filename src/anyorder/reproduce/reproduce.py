"""Reproduce a table of the paper: do the missing jobs, score their results, write the table.

The library's function behind `anyorder reproduce`. Knows nothing about flags.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anyorder.device import process_count, resolve_device
from anyorder.errors import InputError
from anyorder.files import check_writable
from anyorder.files.locks import wait_for_lock
from anyorder.reproduce.cells import Job, Spent
from anyorder.reproduce.plan import Plan, PlannedPart, Request, make_plans
from anyorder.reproduce.render import Report
from anyorder.reproduce.scores import PartScore, System, score_part
from anyorder.reproduce.sharing import lock_of, open_results, share_jobs, under_way
from anyorder.reproduce.tables import BASELINE, find_table
from anyorder.reproduce.wmt import WmtJob, pairs_of, paper_jobs


@dataclass(frozen=True)
class PaperSource:
    """Data and models to use instead of the hub's, by language pair, such as `de-en`."""

    datasets: Mapping[str, str]
    models: Mapping[str, str]
    steps: int | None = None
    """Training steps of the masked translation model."""


def reproduce(
    request: Request,
    paper: PaperSource | None = None,
    on_job: Callable[[str], None] = lambda line: None,
    so_far: bool = False,
) -> Report | None:
    """Do the missing work for a table and write it to `request.out`; None if a signal stopped the work.

    Other processes may work in the same folder, on the same table or another: they share the jobs.

    Args:
        request: What to reproduce, and with what.
        paper: Sources of data and models at the paper's scale.
        on_job: Called with a line before each job that this process does, and before it waits for other processes.
        so_far: Do no job. Write the part of the table that is finished; other processes may be working on the rest.
    """
    reports = reproduce_tables([request], paper, on_job, so_far)
    return reports[0] if reports else None


def reproduce_tables(
    requests: Sequence[Request],
    paper: PaperSource | None = None,
    on_job: Callable[[str], None] = lambda line: None,
    so_far: bool = False,
) -> list[Report]:
    """`reproduce` for several tables in one folder; empty if a signal stopped the work.

    Jobs that several tables need are done once, and processes that share them wait for each other only at the end.
    """
    out = requests[0].out
    check_writable(out)
    if process_count() > 1:
        raise InputError("a launcher cannot share the jobs of a table: start the command itself several times")
    with open_results(out):
        spent: list[Spent] = []
        if requests[0].scale == "paper":
            wmt = _paper_jobs(requests, paper or PaperSource({}, {}))
            if so_far and not all(job.done for job in wmt):
                missing = ", ".join(job.pair for job in wmt if not job.done)
                raise InputError(f"has nothing to show yet: the model for {missing} is not trained", "so_far")
            if not share_jobs(out, wmt, on_job):
                return []
            requests = [_with_paper(request, wmt) for request in requests]
            spent = [one for job in wmt for one in job.spent()]
        plans = make_plans(requests)
        if not so_far and not share_jobs(out, _in_order(plans), on_job):
            return []
        reports, unfinished = [], []
        for request, plan in zip(requests, plans, strict=True):
            report = _report(request, plan, spent, on_job, so_far)
            if report is None:
                unfinished.append(request.table)
            else:
                reports.append(report)
        if not reports:
            names = ", ".join(unfinished)
            raise InputError(f"{names}: no column is finished yet; each needs at least {BASELINE}", "so_far")
        for table in unfinished:
            on_job(f"{table}: no column is finished yet")
        return reports


def _report(
    request: Request, plan: Plan, spent: Sequence[Spent], on_job: Callable[[str], None], so_far: bool
) -> Report | None:
    """Score a table whose jobs are done, or what is done of it so far, and write it; None if that is nothing."""
    name = request.name or request.table
    lock = lock_of(request.out, request.out / name)
    with wait_for_lock(lock, lambda: on_job("waiting for another process, which scores this table")):
        if so_far:
            plan = plan.finished()
            if not plan.parts:
                return None
        parts = [_score(request, plan, part) for part in plan.parts]
        cost = [*spent, *(one for job in plan.jobs for one in job.spent())]
        report = Report(plan.table, request.scale, parts, cost, plan.notes)
        report.write(request.out, name)
    return report


def _in_order(plans: Iterable[Plan]) -> list[Job]:
    """The jobs of all plans. The longest runs come first, so that several processes finish at about the same time."""
    jobs = {job.title: job for plan in plans for job in plan.jobs}.values()
    runs = [job for job in jobs if job.kind != "decode"]
    return [*sorted(runs, key=lambda job: -job.amount), *(job for job in jobs if job.kind == "decode")]


@dataclass(frozen=True)
class JobState:
    """One line of a dry run."""

    title: str
    done: bool
    under_way: bool
    """Whether a process is working on it."""
    estimate: float | None
    """Seconds, from finished jobs of the same kind; None if there are none."""


def preview(requests: Sequence[Request], paper: PaperSource | None = None) -> list[JobState]:
    """All jobs of some tables. At the paper's scale, those that need a model are known only after it is trained."""
    jobs: Sequence[Job] = []
    if requests[0].scale == "paper":
        wmt = _paper_jobs(requests, paper or PaperSource({}, {}))
        jobs = wmt
        if not all(job.done for job in wmt):
            return [_state(requests[0], job, {}) for job in jobs]
        requests = [_with_paper(request, wmt) for request in requests]
    jobs = [*jobs, *_in_order(make_plans(requests))]
    rates = _rates(jobs)
    return [_state(requests[0], job, rates) for job in jobs]


def _state(request: Request, job: Job, rates: Mapping[str, float]) -> JobState:
    done = job.done
    estimate = None if done or job.kind not in rates else rates[job.kind] * job.amount
    return JobState(job.title, done, not done and under_way(request.out, job), estimate)


def _score(request: Request, plan: Plan, part: PlannedPart) -> PartScore:
    systems = []
    for planned in part.systems:
        systems.append(System(planned.row, planned.seed, planned.learned, planned.job.result()))
    against = [name for name in plan.heuristics if any(system.row == name for system in systems)]
    metrics = plan.table.metrics
    return score_part(request.out, part.data, part.part, part.rule, systems, against, metrics, request.samples)


def _paper_jobs(requests: Sequence[Request], paper: PaperSource) -> list[WmtJob]:
    """The jobs of all language pairs of the tables."""
    named = [request.directions or find_table(request.table).directions for request in requests]
    pairs = pairs_of([direction for directions in named for direction in directions])
    device = resolve_device(requests[0].device)
    return paper_jobs(requests[0].out, pairs, paper.datasets, paper.models, paper.steps, device)


def _with_paper(request: Request, jobs: Iterable[WmtJob]) -> Request:
    """The request with the prepared models and data."""
    jobs = list(jobs)
    models = [*request.models, *(str(job.model) for job in jobs)]
    data = [*request.data, *(folder for job in jobs for folder in (job.text, job.store))]
    return replace(request, models=models, data=data)


def _rates(jobs: Sequence[Job]) -> dict[str, float]:
    """Seconds per step or sentence, by kind of job."""
    rates: dict[str, float] = {}
    for kind in {job.kind for job in jobs}:
        spent = [one for job in jobs if job.kind == kind and job.done for one in job.spent()]
        amount = sum(one.amount for one in spent)
        if amount:
            rates[kind] = sum(one.seconds for one in spent) / amount
    return rates

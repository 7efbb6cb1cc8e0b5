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
from anyorder.reproduce.plan import Plan, PlannedPart, Request, make_plan
from anyorder.reproduce.render import Report
from anyorder.reproduce.scores import PartScore, System, score_part
from anyorder.reproduce.sharing import lock_of, open_results, share_jobs, under_way
from anyorder.reproduce.tables import find_table
from anyorder.reproduce.wmt import WmtJob, pairs_of, paper_jobs


@dataclass(frozen=True)
class PaperSource:
    """Data and models to use instead of the hub's, by language pair, such as `de-en`."""

    datasets: Mapping[str, str]
    models: Mapping[str, str]
    steps: int | None = None
    """Training steps of the masked translation model."""


def reproduce(
    request: Request, paper: PaperSource | None = None, on_job: Callable[[str], None] = lambda line: None
) -> Report | None:
    """Do the missing work for a table and write it to `request.out`; None if a signal stopped the work.

    Other processes may work in the same folder, on the same table or another: they share the jobs.

    Args:
        request: What to reproduce, and with what.
        paper: Sources of data and models at the paper's scale.
        on_job: Called with a line before each job that this process does, and before it waits for other processes.
    """
    check_writable(request.out)
    if process_count() > 1:
        raise InputError("a launcher cannot share the jobs of a table: start the command itself several times")
    with open_results(request.out):
        spent: list[Spent] = []
        if request.scale == "paper":
            jobs = _paper_jobs(request, paper or PaperSource({}, {}))
            if not share_jobs(request.out, jobs, on_job):
                return None
            request = _with_paper(request, jobs)
            spent = [one for job in jobs for one in job.spent()]
        plan = make_plan(request)
        if not share_jobs(request.out, plan.jobs, on_job):
            return None
        lock = lock_of(request.out, request.out / request.table)
        with wait_for_lock(lock, lambda: on_job("waiting for another process, which scores this table")):
            parts = [_score(request, plan, part) for part in plan.parts]
            spent += [one for job in plan.jobs for one in job.spent()]
            report = Report(plan.table, request.scale, parts, spent, plan.notes)
            report.write(request.out)
        return report


@dataclass(frozen=True)
class JobState:
    """One line of a dry run."""

    title: str
    done: bool
    under_way: bool
    """Whether a process is working on it."""
    estimate: float | None
    """Seconds, from finished jobs of the same kind; None if there are none."""


def preview(request: Request, paper: PaperSource | None = None) -> list[JobState]:
    """All jobs of a table. At the paper's scale, those that need a model are known only after it is trained."""
    jobs: Sequence[Job] = []
    if request.scale == "paper":
        paper_work = _paper_jobs(request, paper or PaperSource({}, {}))
        jobs = paper_work
        if not all(job.done for job in paper_work):
            return [_state(request, job, {}) for job in jobs]
        request = _with_paper(request, paper_work)
    jobs = [*jobs, *make_plan(request).jobs]
    rates = _rates(jobs)
    return [_state(request, job, rates) for job in jobs]


def _state(request: Request, job: Job, rates: Mapping[str, float]) -> JobState:
    done = job.done
    estimate = None if done or job.kind not in rates else rates[job.kind] * job.amount
    return JobState(job.title, done, not done and under_way(request.out, job), estimate)


def _score(request: Request, plan: Plan, part: PlannedPart) -> PartScore:
    systems = []
    for planned in part.systems:
        systems.append(System(planned.row, planned.seed, planned.learned, planned.job.result()))
    table = plan.table
    return score_part(
        request.out, part.data, part.part, part.rule, systems, plan.heuristics, table.metrics, request.samples
    )


def _paper_jobs(request: Request, paper: PaperSource) -> list[WmtJob]:
    pairs = pairs_of(request.directions or find_table(request.table).directions)
    device = resolve_device(request.device)
    return paper_jobs(request.out, pairs, paper.datasets, paper.models, paper.steps, device)


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

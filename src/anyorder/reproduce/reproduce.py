"""Make a table of the paper: do the jobs that are missing, score what they gave, write it down.

The library's function behind `anyorder reproduce`. Knows no flag.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anyorder.device import resolve_device
from anyorder.files import check_writable, keep_folder
from anyorder.reproduce.cells import Job, Spent
from anyorder.reproduce.plan import Plan, PlannedPart, Request, make_plan
from anyorder.reproduce.render import Report
from anyorder.reproduce.scores import PartScore, System, score_part
from anyorder.reproduce.tables import find_table
from anyorder.reproduce.wmt import WmtJob, pairs_of, paper_jobs


@dataclass(frozen=True)
class PaperSource:
    """In place of what the hub has, by pair of languages such as `de-en`."""

    datasets: Mapping[str, str]
    models: Mapping[str, str]
    steps: int | None = None
    """Of training masked translation."""


def reproduce(
    request: Request, paper: PaperSource | None = None, on_job: Callable[[str], None] = lambda line: None
) -> Report | None:
    """Do what is missing of a table and write it into `request.out`; None if a signal stopped the work.

    Args:
        request: What to reproduce, and with what.
        paper: At the paper's scale, where data and models come from.
        on_job: Called with a line before each job that is not done yet.
    """
    check_writable(request.out)
    with keep_folder(request.out, f"{request.out}: another process is reproducing a table there"):
        spent: list[Spent] = []
        if request.scale == "paper":
            jobs = _paper_jobs(request, paper or PaperSource({}, {}))
            if not _run(jobs, on_job):
                return None
            request = _with_paper(request, jobs)
            spent = [one for job in jobs for one in job.spent()]
        plan = make_plan(request)
        if not _run(plan.jobs, on_job):
            return None
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
    estimate: float | None
    """Seconds, from jobs of the same kind that are done; None if none is."""


def preview(request: Request, paper: PaperSource | None = None) -> list[JobState]:
    """All jobs of a table. At the paper's scale those that need a model are known once it is trained."""
    jobs: Sequence[Job] = []
    if request.scale == "paper":
        paper_work = _paper_jobs(request, paper or PaperSource({}, {}))
        jobs = paper_work
        if not all(job.done for job in paper_work):
            return [JobState(job.title, job.done, None) for job in jobs]
        request = _with_paper(request, paper_work)
    jobs = [*jobs, *make_plan(request).jobs]
    rates = _rates(jobs)
    return [JobState(job.title, job.done, None if job.done else _estimate(job, rates)) for job in jobs]


def _run(jobs: Sequence[Job], on_job: Callable[[str], None]) -> bool:
    """Do what is missing; False if a signal stopped it."""
    for number, job in enumerate(jobs, start=1):
        if job.done:
            continue
        on_job(f"{number} of {len(jobs)}: {job.title}")
        if not job.run():
            return False
    return True


def _score(request: Request, plan: Plan, part: PlannedPart) -> PartScore:
    systems = []
    for planned in part.systems:
        cell = planned.job.cell()
        assert cell is not None
        systems.append(System(planned.row, planned.seed, planned.learned, cell))
    table = plan.table
    return score_part(
        request.out, part.data, part.part, part.rule, systems, plan.heuristics, table.metrics, request.samples
    )


def _paper_jobs(request: Request, paper: PaperSource) -> list[WmtJob]:
    pairs = pairs_of(request.directions or find_table(request.table).directions)
    device = resolve_device(request.device)
    return paper_jobs(request.out, pairs, paper.datasets, paper.models, paper.steps, device)


def _with_paper(request: Request, jobs: Iterable[WmtJob]) -> Request:
    """The request with the models and the data that were prepared."""
    jobs = list(jobs)
    models = [*request.models, *(str(job.model) for job in jobs)]
    data = [*request.data, *(folder for job in jobs for folder in (job.text, job.store))]
    return replace(request, models=models, data=data)


def _rates(jobs: Sequence[Job]) -> dict[str, float]:
    """Seconds for one step or one sentence, by kind of job."""
    rates: dict[str, float] = {}
    for kind in {job.kind for job in jobs}:
        spent = [one for job in jobs if job.kind == kind and job.done for one in job.spent()]
        amount = sum(one.amount for one in spent)
        if amount:
            rates[kind] = sum(one.seconds for one in spent) / amount
    return rates


def _estimate(job: Job, rates: Mapping[str, float]) -> float | None:
    return rates[job.kind] * job.amount if job.kind in rates else None

"""Reproduce a table of the paper: do the missing jobs, score their results, write the table.

The library's function behind `anyorder reproduce`. Knows nothing about flags.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from anyorder.device import process_count
from anyorder.errors import InputError
from anyorder.files import check_writable, lock_folder
from anyorder.report.tables import count_text
from anyorder.reproduce.jobs import Cost, Job, run_jobs
from anyorder.reproduce.plan import Plan, Request, jobs_of, make_plans
from anyorder.reproduce.render import Report
from anyorder.reproduce.scores import score_part
from anyorder.reproduce.tables import BASELINE
from anyorder.reproduce.wmt import with_paper


def reproduce(
    requests: Sequence[Request],
    part: tuple[int, int] = (1, 1),
    so_far: bool = False,
    on_line: Callable[[str], None] = lambda line: None,
) -> list[Report]:
    """Do the missing jobs of some tables, and write the tables to `Request.out`, which they share.

    Args:
        requests: What to reproduce, and with what. The tables have the same models and data, and share their jobs.
        part: Which part of the jobs to do, of how many, such as `(1, 4)`. Several processes can each do one; the one
            that ends last writes the tables.
        so_far: Do no job. Write the part of each table that is finished; processes may be working on the rest.
        on_line: Called with a line before each job, and with what else there is to say.

    Returns:
        The tables that were written; none if a signal stopped the work, or if another part is not done.
    """
    out = requests[0].out
    check_writable(out)
    if process_count() > 1:
        raise InputError("a launcher cannot share the jobs of a table: start the command itself, once for each part")
    training, requests = with_paper(requests)
    untrained = ", ".join(job.folder.parent.name for job in training if not job.done)
    if so_far and untrained:
        raise InputError(f"has nothing to show yet: the model for {untrained} is not trained", "so_far")
    if not so_far and not _finish(training, part, on_line):
        return []
    plans = make_plans(requests)
    if so_far:
        for plan in plans:
            plan.drop_unfinished()
    elif not _finish(jobs_of(plans), part, on_line):
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


def _finish(jobs: Sequence[Job], part: tuple[int, int], on_line: Callable[[str], None]) -> bool:
    """Do the jobs of a part; whether all jobs of all parts are done then."""
    if not run_jobs(jobs, part, on_line):
        on_line("stopped; run the same command to continue")
        return False
    missing = sum(not job.done for job in jobs)
    if missing:
        on_line(
            f"part {part[0]} of {part[1]} is done, but {count_text(missing, 'job')} of other parts "
            f"{'is' if missing == 1 else 'are'} not; run the command again after them"
        )
    return not missing


def _write(plan: Plan, costs: Sequence[Cost]) -> Report:
    """Score a table, and write it."""
    request = plan.request
    parts = [score_part(request.out, part, plan.table, request.samples) for part in plan.parts]
    costs = [*costs, *(cost for job in jobs_of([plan]) for cost in job.costs())]
    report = Report(plan.table, request.scale, parts, costs, plan.notes)
    report.write(request.out, request.name or request.table)
    return report

"""Several processes in one results folder share its jobs: each job is done by one of them. Knows nothing about tables.

    .locks/    one file for each job that a process is working on

A lock ends with its process, however it ends; another process can then take the job and continue it.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from anyorder.files.locks import is_locked, knows_locks, pauses, try_lock
from anyorder.report.table_data import count_text
from anyorder.reproduce.cells import Job

LOCKS = ".locks"


@contextmanager
def open_results(results: Path) -> Iterator[None]:
    """Work in a results folder. A new one is removed again if nothing was written to it."""
    is_new = not results.exists()
    try:
        yield
    finally:
        for folder in (results / LOCKS, *([results] if is_new else [])):
            with suppress(OSError):  # not empty, perhaps because of another process
                folder.rmdir()


def share_jobs(results: Path, jobs: Sequence[Job], on_line: Callable[[str], None]) -> bool:
    """Do the missing jobs that no other process is working on, then wait for the rest; False if a signal came.

    Args:
        results: The folder of all results.
        jobs: In the order in which to take them, each after those that it needs.
        on_line: Called with a line before each job, and before waiting.
    """
    missing = {number: job for number, job in enumerate(jobs, start=1) if not job.done}
    if missing:
        _check_locks(results, on_line)
    while missing:
        done = _do_next(results, missing, len(jobs), on_line)
        if done is None:
            return False
        del missing[done]
    return True


def _do_next(results: Path, missing: dict[int, Job], total: int, on_line: Callable[[str], None]) -> int | None:
    """Do the first available job, or find that another process has done one; None if a signal stopped it."""
    titles = {job.title for job in missing.values()}
    ready = {n: job for n, job in missing.items() if not any(need.title in titles for need in job.needs)}
    for look, pause in enumerate(pauses()):
        for number, job in ready.items():
            with try_lock(lock_of(results, job.folder)) as held:
                if not held:
                    continue
                if not job.done:
                    on_line(f"{number} of {total}: {job.title}")
                    if not job.run():
                        return None
            return number
        if look == 1:
            on_line(f"waiting for {count_text(len(ready), 'job')} of other processes")
        time.sleep(pause)
    raise AssertionError("pauses never end")


def under_way(results: Path, job: Job) -> bool:
    """Whether another process is working on a job."""
    return is_locked(lock_of(results, job.folder))


def lock_of(results: Path, place: Path) -> Path:
    """The lock for writing a folder or a file of the results."""
    digest = hashlib.sha256(os.fsencode(place.relative_to(results))).hexdigest()[:12]
    return results / LOCKS / f"{place.name[:40]}-{digest}"


def _check_locks(results: Path, on_line: Callable[[str], None]) -> None:
    folder = results / LOCKS
    with try_lock(folder / f"test-{os.getpid()}"):  # keeps the folder from being removed
        if not knows_locks(folder):
            on_line(f"{results}: the file system has no locks, so start no other process there")

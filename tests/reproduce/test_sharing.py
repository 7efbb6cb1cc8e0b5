"""Several processes in one folder of results: each job is done once, and what a killed one leaves is taken over."""

import errno
import fcntl
import json
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from anyorder.cli.reproduce import list_jobs
from anyorder.errors import InputError
from anyorder.files.locks import try_lock
from anyorder.reproduce import jobs as jobs_module
from anyorder.reproduce.cells import CellJob, Job, Spent, read_cell, write_cell
from anyorder.reproduce.plan import Request, make_plan
from anyorder.reproduce.reproduce import preview, reproduce
from anyorder.reproduce.sharing import LOCKS, lock_of, open_results, share_jobs, under_way
from anyorder.training.learn_order import learn_order
from anyorder.translator import Translator
from tests.processes import FORKS, wait_until
from tests.reproduce.conftest import Laboratory

SENTENCES = 12
JOBS = 6
WAITING = "waiting for 1 job of other processes"


@pytest.fixture(scope="module")
def request_of(laboratory: Laboratory, tmp_path_factory: pytest.TempPathFactory) -> Request:
    return laboratory.small_table(tmp_path_factory.mktemp("results") / "alone", SENTENCES)


@pytest.fixture(scope="module")
def alone(request_of: Request) -> dict[str, Any]:
    """What one process writes."""
    assert reproduce(request_of) is not None
    return results_of(request_of.out)


def results_of(out: Path) -> dict[str, Any]:
    """Everything that decides the numbers, byte by byte, by file; not the times and the logs."""
    found: dict[str, Any] = {}
    for file in sorted(out.rglob("*")):
        name = file.relative_to(out).as_posix()
        if file.suffix == ".json" and file.name != "checksums.json":
            record = json.loads(file.read_text())
            found[name] = {
                key: value
                for key, value in record.items()
                if key not in ("minutes", "elapsed_minutes", "spent", "seconds")
            }
        elif file.suffix in (".md", ".tex"):
            found[name] = [line for line in file.read_text().splitlines() if "Time: " not in line]
        elif file.suffix in (".xz", ".safetensors"):
            found[name] = file.read_bytes()
    return found


def work(request: Request, log: str, pause: str = "", go: str = "") -> None:
    """In a process of its own: reproduce a table. The first order is learned, but its process does not say so until
    `go` exists; `pause` says that it is there."""

    def learn(*args: Any, **options: Any) -> Any:
        result = learn_order(*args, **options)
        Path(pause).touch()
        wait_until(Path(go).exists, 600)
        return result

    with open(log, "w", encoding="utf-8") as lines, pytest.MonkeyPatch.context() as patch:
        if pause:
            patch.setattr(jobs_module, "learn_order", learn)
        reproduce(request, on_job=lambda line: print(line, file=lines, flush=True))


class Pair:
    """Two processes on one request: the first is inside its first learning job, and the second is started then."""

    def __init__(self, request: Request, folder: Path):
        self.request, self.go = request, folder / "go"
        self.logs = [folder / "log-1", folder / "log-2"]
        pause = folder / "pause"
        calls = [(request, str(self.logs[0]), str(pause), str(self.go)), (request, str(self.logs[1]))]
        self.first, self.second = (FORKS.Process(target=work, args=call, daemon=True) for call in calls)
        self.first.start()
        wait_until(lambda: pause.exists() or not self.first.is_alive())
        self.second.start()
        wait_until(lambda: WAITING in self.lines(1) or not self.second.is_alive())

    def lines(self, number: int) -> list[str]:
        return self.logs[number].read_text().splitlines() if self.logs[number].exists() else []

    def jobs(self) -> list[str]:
        """The lines of jobs, of both processes."""
        return [line for number in (0, 1) for line in self.lines(number) if not line.startswith("waiting")]


def test_two_processes_share_the_jobs(request_of: Request, alone: dict[str, Any], tmp_path: Path) -> None:
    request = replace(request_of, out=tmp_path / "out")
    pair = Pair(request, tmp_path)
    states = {state.title: state for state in preview([request])}
    titles = list(states)
    learn, decode = titles[0], next(title for title in titles if "seed=1" in title)
    assert [title.split()[0] for title in titles] == ["learn"] * 2 + ["decode"] * 4
    assert (states[learn].done, states[learn].under_way) == (False, True)
    assert (states[decode].done, states[decode].under_way) == (False, False)  # nobody may: the order is not there yet
    listed = list_jobs(list(states.values()))
    assert listed[0].startswith(f"running  {learn}")
    assert listed[-1].startswith("4 of 6 jobs are done; 2 are missing, 1 of them running")
    pair.go.touch()
    for process in (pair.first, pair.second):
        process.join(60)
        assert process.exitcode == 0
    assert sorted(pair.jobs()) == [f"{number} of {JOBS}: {title}" for number, title in enumerate(titles, 1)]
    assert f"2 of 6: {titles[1]}" in pair.lines(1)
    assert results_of(request.out) == alone
    assert not (request.out / LOCKS).exists()


def test_what_a_killed_process_was_on_is_taken_over(request_of: Request, alone: dict[str, Any], tmp_path: Path) -> None:
    """It had learned the order, but not said so."""
    request = replace(request_of, out=tmp_path / "out")
    pair = Pair(request, tmp_path)
    pair.first.kill()
    pair.second.join(60)
    assert pair.second.exitcode == 0
    assert pair.lines(1)[-3:-1] == [WAITING, pair.lines(0)[-1]]
    assert results_of(request.out) == alone


@dataclass(frozen=True)
class Note(Job):
    """Writes a file."""

    results: Path
    name: str
    needs: tuple[Job, ...] = ()
    error: type[BaseException] | None = None
    ran: list[str] = field(default_factory=list)
    kind = "decode"

    @property
    def folder(self) -> Path:
        return self.results / self.name

    @property
    def title(self) -> str:
        return self.name

    @property
    def amount(self) -> int:
        return 1

    @property
    def done(self) -> bool:
        return self.folder.exists()

    def spent(self) -> list[Spent]:
        return []

    def run(self) -> bool:
        assert all(need.done for need in self.needs)
        if self.error:
            raise self.error
        self.ran.append(self.name)
        self.folder.mkdir()
        return True


def in_thread(results: Path, jobs: list[Job], lines: list[str]) -> threading.Thread:
    thread = threading.Thread(target=share_jobs, args=(results, jobs, lines.append), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("finishes", [True, False])
def test_jobs_that_need_others(tmp_path: Path, finishes: bool) -> None:
    """Another process is on the first job, and finishes or gives up."""
    first = Note(tmp_path, "first")
    jobs: list[Job] = [first, Note(tmp_path, "second", (first,)), Note(tmp_path, "third")]
    lines: list[str] = []
    with try_lock(lock_of(tmp_path, first.folder)):
        assert under_way(tmp_path, first)
        thread = in_thread(tmp_path, jobs, lines)
        wait_until(lambda: WAITING in lines)
        if finishes:
            first.run()
    thread.join(30)
    assert lines == [
        "3 of 3: third", WAITING, *([] if finishes else ["1 of 3: first"]), "2 of 3: second",
    ]  # fmt: skip
    assert first.ran == ["first"]


def test_an_interrupt_frees_the_job(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_results(tmp_path / "new"):
        share_jobs(tmp_path / "new", [Note(tmp_path / "new", "a", error=KeyboardInterrupt)], lambda line: None)
    assert not (tmp_path / "new").exists()
    assert share_jobs(tmp_path, [Note(tmp_path, "a")], lambda line: None)


def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lines: list[str] = []
    assert share_jobs(tmp_path, [Note(tmp_path, "a")], lines.append)
    assert lines == [f"{tmp_path}: the file system has no locks, so start no other process there", "1 of 1: a"]


def test_a_launcher_is_refused(request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="start the command itself several times"):
        reproduce(request_of)


def test_one_cell_for_two_tables(request_of: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process decodes short sentences; the other waits, and adds the longer ones."""
    request = replace(request_of, out=tmp_path, rows=["left-to-right"])
    job = make_plan(request).jobs[0]
    assert isinstance(job, CellJob)
    sizes = sorted(max(len(one.ids), one.reference_length or 0) for one in job.data.sentences)
    short = replace(job, max_length=sizes[4])
    decoded: list[int] = []
    go, real = threading.Event(), Translator.decode

    def decode(self: Translator, sentences: list[Any], *args: Any) -> Any:
        decoded.append(len(sentences))
        assert go.wait(30)
        return real(self, sentences, *args)

    monkeypatch.setattr(Translator, "decode", decode)
    lines: list[str] = []
    first = in_thread(tmp_path, [short], [])
    wait_until(lambda: decoded)
    second = in_thread(tmp_path, [job], lines)
    wait_until(lambda: lines)
    go.set()
    for thread in (first, second):
        thread.join(30)
    assert lines == [WAITING, f"1 of 1: {job.title}"]
    assert decoded == [short.amount, SENTENCES - short.amount]
    assert job.result().rows == list(range(SENTENCES))
    assert [one.amount for one in job.spent()] == decoded


def test_scores_are_read_while_a_cell_grows(request_of: Request, alone: dict[str, Any], tmp_path: Path) -> None:
    """Another table adds sentences between reading what is there and reading the trajectories."""
    job = make_plan(request_of).jobs[0]
    assert isinstance(job, CellJob)
    known = dict(enumerate(job.result().select(range(SENTENCES))))
    write_cell(tmp_path / "cell", {}, {row: known[row] for row in range(0, SENTENCES, 2)}, [])
    before = read_cell(tmp_path / "cell")
    assert before is not None
    write_cell(tmp_path / "cell", {}, known, [])
    assert before.select([2, 4]) == [known[2], known[4]]
    write_cell(tmp_path / "cell", {"order": "another"}, known, [])
    with pytest.raises(InputError, match="another process decoded something else under this name"):
        before.select([2, 4])


def test_a_cell_is_done_after_what_it_needs(request_of: Request, alone: dict[str, Any], tmp_path: Path) -> None:
    """An order that is still being learned, or a baseline in training, is never asked for its weights."""
    job = make_plan(request_of).jobs[0]
    assert isinstance(job, CellJob)
    need = Note(tmp_path, "need")
    later = replace(job, needs=(need,))
    assert job.done
    assert not later.done
    need.run()
    assert later.done


def test_a_replacement_that_was_killed_is_finished(
    request_of: Request, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system where it takes two steps: nothing is decoded again."""
    job = make_plan(request_of).jobs[0]
    folder = job.folder.rename(job.folder.with_name(f"{job.folder.name}.old"))
    assert not job.done
    monkeypatch.delattr(Translator, "decode")
    assert share_jobs(request_of.out, [job], lambda line: None)
    assert job.done
    assert not folder.exists()

"""Parts of the jobs: together they do everything once, whatever is done already, in one process or in several."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anyorder.errors import InputError
from anyorder.files import lock_folder
from anyorder.reproduce.jobs import SETTINGS, Cost, RunJob, choose_part, run_jobs
from anyorder.reproduce.reproduce import Request, list_jobs, reproduce
from tests.processes import FORKS
from tests.reproduce.conftest import Laboratory

SENTENCES = 12


@dataclass(frozen=True)
class Note:
    """A job that writes a file."""

    folder: Path
    needs: "Note | None" = None
    finishes: bool = True

    @property
    def title(self) -> str:
        return self.folder.name

    @property
    def done(self) -> bool:
        return self.folder.exists()

    def run(self) -> bool:
        assert self.needs is None or self.needs.done
        if self.finishes:
            self.folder.mkdir(parents=True)
        return self.finishes

    def costs(self) -> list[Cost]:
        return []


@given(st.lists(st.integers(0, 9), max_size=20), st.lists(st.integers(0, 9), max_size=20), st.integers(1, 5))
def test_parts_do_every_job_once_and_never_wait(alone: list[int], dependent: list[int], count: int) -> None:
    """Jobs in one folder are for one part, and so are jobs that need the same one."""
    learned = [Note(Path(f"learn-{number}")) for number in alone]
    jobs = [*learned, *(Note(Path(f"decode-{i}"), learned[i % len(learned)]) for i in dependent if learned)]
    parts = [choose_part(jobs, (index, count)) for index in range(1, count + 1)]
    assert sorted(number for part in parts for number in part) == list(range(len(jobs)))
    place_of: dict[Path, int] = {}
    for index, part in enumerate(parts):
        for job in (jobs[number] for number in part):
            for place in (job.folder, *([job.needs.folder] if job.needs else [])):
                assert place_of.setdefault(place, index) == index
    sizes = [len({(jobs[i].needs or jobs[i]).folder for i in part}) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_missing_jobs_are_done_in_order_until_one_stops(tmp_path: Path) -> None:
    first = Note(tmp_path / "first")
    jobs = [first, Note(tmp_path / "second"), Note(tmp_path / "third", first), Note(tmp_path / "fourth", None, False)]
    jobs[1].run()
    lines: list[str] = []
    assert not run_jobs([*jobs, Note(tmp_path / "fifth")], (1, 1), lines.append)
    assert lines == ["1 of 5: first", "3 of 5: third", "4 of 5: fourth"]
    assert run_jobs(jobs[:3], (1, 1), lines.append)
    assert len(lines) == 3


def test_a_run_is_done_once_its_record_says_so(tmp_path: Path) -> None:
    """A record that does not say was written when runs were recorded only after they had finished."""
    record, result = tmp_path / "run.json", tmp_path / "run" / "order"
    job = RunJob("learn", "learn", tmp_path / "run", result, {"seed": 1}, torch.device("cpu"), lambda: True)
    assert not job.done
    result.mkdir(parents=True)
    for finished, is_done in (({"finished": False}, False), ({"finished": True}, True), ({}, True)):
        record.write_text(json.dumps({"key": {"seed": 1}, "device": "CPU", **finished}))
        assert job.done == is_done
    result.rmdir()
    assert not job.done


@pytest.fixture(scope="module")
def request_of(laboratory: Laboratory, tmp_path_factory: pytest.TempPathFactory) -> Request:
    return laboratory.small_table(tmp_path_factory.mktemp("results") / "alone", SENTENCES)


@pytest.fixture(scope="module")
def alone(request_of: Request) -> dict[str, Any]:
    """What one process writes."""
    assert reproduce([request_of])
    return results_of(request_of.out)


def results_of(out: Path) -> dict[str, Any]:
    """Everything that decides the numbers, byte by byte, by file; not the times and the logs."""
    found: dict[str, Any] = {}
    for file in sorted(out.rglob("*")):
        name = file.relative_to(out).as_posix()
        if file.suffix == ".json" and file.name != "checksums.json":
            record = json.loads(file.read_text())
            found[name] = {key: value for key, value in record.items() if key not in ("minutes", "spent", "seconds")}
        elif file.suffix in (".md", ".tex"):
            found[name] = [line for line in file.read_text().splitlines() if "Time: " not in line]
        elif file.suffix in (".xz", ".safetensors"):
            found[name] = file.read_bytes()
    return found


def test_two_parts_one_after_the_other(request_of: Request, alone: dict[str, Any], tmp_path: Path) -> None:
    request = replace(request_of, out=tmp_path / "out")
    titles = [job.title for job in list_jobs([request])]
    lines: list[str] = []
    assert reproduce([request], (2, 2), on_line=lines.append) == []
    assert lines[-1] == "part 2 of 2 is done, but 3 jobs of other parts are not; run the command again after them"
    assert reproduce([request], (2, 2)) == []
    assert len(reproduce([request], (1, 2), on_line=lines.append)) == 1
    done = [line for line in lines if " of 6: " in line]
    assert sorted(done) == [f"{number} of 6: {title}" for number, title in enumerate(titles, 1)]
    assert results_of(request.out) == alone


def work(request: Request, part: tuple[int, int], log: Path) -> None:
    with log.open("w") as stream:
        reproduce([request], part, on_line=lambda line: print(line, file=stream, flush=True))


def test_two_processes_at_once(request_of: Request, alone: dict[str, Any], tmp_path: Path) -> None:
    request = replace(request_of, out=tmp_path / "out")
    logs = [tmp_path / "1.log", tmp_path / "2.log"]
    calls = [(request, (index, 2), log) for index, log in enumerate(logs, 1)]
    processes = [FORKS.Process(target=work, args=call, daemon=True) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    lines = [line for log in logs for line in log.read_text().splitlines() if " of 6: " in line]
    assert len(lines) == len(set(lines)) == 6
    assert results_of(request.out) == alone


def test_parts_that_end_together_write_once(request_of: Request, alone: dict[str, Any]) -> None:
    lines: list[str] = []
    with lock_folder(request_of.out):
        assert reproduce([request_of], on_line=lines.append) == []
    assert lines == ["another process is writing tables there"]


def test_a_launcher_is_refused(request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="once for each part"):
        reproduce([request_of])


@pytest.mark.parametrize(("recipe", "kind"), [("a2c", "hidden"), ("ppo-2019", "ppo")])
def test_the_papers_settings_are_those_of_the_recipes(recipe: str, kind: str) -> None:
    """But for what depends on the data, and for orders that are decoded for comparison."""
    file = Path(__file__).parents[2] / "recipes" / "paper" / f"{recipe}.yaml"
    options, settings = yaml.safe_load(file.read_text(encoding="utf-8")), SETTINGS["paper"][kind]
    for group, config in (("policy", settings.policy), ("rl", settings.rl), ("run", settings.run)):
        read = msgspec.convert(options[group], type(config))
        assert replace(read, **OWN.get(group, {})) == replace(config, **OWN.get(group, {}))


OWN: dict[str, dict[str, Any]] = {"rl": {"split": "auto", "validation_orders": "", "each_step": "auto"}}

"""Work on a cluster gives what one process gives, byte for byte, whoever dies. Two machines are simulated on this one."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import anyorder
from anyorder import cluster_decoder
from anyorder.cli import main
from anyorder.cluster import BLOCKS, connect
from anyorder.cluster_decoder import load_on
from anyorder.data.store import Store
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from tests.cluster_work import Here, Square, tries
from tests.conftest import tiny, toy_pairs, write_pairs

LINES = 200


def test_without_ray(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["translate", "--model", "de-en", "--direction", "de-en", "--cluster", "auto", "Hallo."]) == 2
    error = capsys.readouterr().err
    assert error == "anyorder translate: --cluster needs Ray: pip install 'anyorder[cluster]'\n"


@pytest.mark.parametrize("address", ["", "here", "ray://host:10001", "a b:1", "host:port"])
def test_wrong_address(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "--model", "de-en", "--direction", "de-en", "--cluster", address, "Hallo."]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == f"anyorder translate: --cluster '{address}': expected auto, or HOST:PORT of a cluster's first machine\n"
    )


def test_not_with_a_launcher(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["translate", "--model", "de-en", "--direction", "de-en", "--cluster", "auto", "Hallo."]) == 2
    assert "--cluster does not go together with a launcher" in capsys.readouterr().err


def test_puzzles_and_their_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any task: workers read the lines themselves, and get what they need by pickle."""
    monkeypatch.setattr(cluster_decoder, "BLOCK", 3)
    alone, together = anyorder.load("sudoku-4x4", device="cpu"), load_on(Here(), "sudoku-4x4", "cpu")
    assert alone.model.path is not None
    lines = (alone.model.path / "sample.puzzles.txt").read_text().splitlines()[:7]
    lines.insert(5, "no puzzle")
    config = DecodingConfig("learned:hidden", schedule="2", revision="mask-predict:3", temperature=0.5)
    assert list(together.stream(lines, config)) == list(alone.stream(lines, config))
    assert together.solve(lines, "uniform") == alone.solve(lines, "uniform")
    with pytest.raises(InputError, match="input, line 6: "):
        list(together.stream(lines, config, strict=True))
    with pytest.raises(InputError, match="cuda: the cluster has no GPU"):
        load_on(Here(), "sudoku-4x4", "cuda")
    with pytest.raises(InputError, match="unknown order 'margn'"):
        together.solve(lines, "margn")
    with pytest.raises(InputError, match="cannot be followed on a cluster"):
        together.solve(lines, on_step=print)
    with pytest.raises(InputError, match="are for the length rule gold"):
        together.stream(lines, references=lines)


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """Two machines with one core each, and a connection to them that all tests share, as its workers start slowly."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    pytest.importorskip("ray", reason="needs Ray: pip install 'anyorder[cluster]'")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80_000_000}
    try:
        machines = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        machines.add_node(**small)
    except Exception as error:
        pytest.skip(f"Ray cannot run here: {error}")
    before = signal.getsignal(signal.SIGTERM)
    with connect(machines.address):
        assert signal.getsignal(signal.SIGTERM) == before
        yield machines
    machines.shutdown()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    tiny(store.vocabulary, hidden_size=32, num_layers=1).save_pretrained(folder / "model")
    write_pairs(folder, "test", toy_pairs(LINES, seed=21))
    return folder


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def translate(place: Path, *more: object) -> list[object]:
    source = place / "test.de"
    return ["translate", source, "--model", place / "model", "--direction", "de-en", "--device", "cpu", *more]


def test_verbs(
    machines: Any, place: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Byte for byte, and nothing else is printed."""
    monkeypatch.setattr(cluster_decoder, "BLOCK", 32)
    monkeypatch.chdir(place)
    for name, cluster in (("one", []), ("two", ["--cluster", machines.address])):
        folder = tmp_path / name
        folder.mkdir()
        outputs = []
        for arguments in (
            [*translate(Path(), "--order", "uniform", "--length", "candidates:2"), "--json", folder / "lines.jsonl.gz"],
            [*translate(Path(), "--length", "gold", "--reference", "test.en")],
            ["evaluate", "--model", "model", "--direction", "de-en", "--source", "test.de", "--reference", "test.en",
             "--orders", "margin,uniform", "--limit", 70, "--samples", 20, "--json", folder / "scores.json"],
            ["prepare", "--languages", "de,en", "--train", f"{corpus}/train.%", "--vocabulary", 200,
             "--out", folder / "store", *([] if cluster else ["--workers", 1])],
        ):  # fmt: skip
            assert run(*arguments, *cluster) == 0
            captured = capsys.readouterr()
            shown = "" if arguments[0] == "evaluate" else captured.out.replace(str(folder), "")  # it shows the speed
            outputs.append((shown, captured.err))
        (tmp_path / f"{name}.json").write_text(json.dumps(outputs, indent=1))
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()
    found = {file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file()}
    assert found == {file.relative_to(tmp_path / "two") for file in (tmp_path / "two").rglob("*") if file.is_file()}
    for file in found:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_a_problem_is_one_line(
    machines: Any, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_decoder, "BLOCK", 4)
    (place / "empty.de").write_text("Der Hund.\n" * 9 + "\n")
    options = ["--model", place / "model", "--direction", "de-en", "--cluster", machines.address]
    assert run("translate", place / "empty.de", *options, "--strict") == 2
    assert f"{place}/empty.de, line 10: is empty" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def test_a_lost_driver_resumes(machines: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed by the exception of a Ctrl-C here; campaigns/cluster.py sends a SIGKILL."""
    monkeypatch.setattr(cluster_decoder, "BLOCK", 8)
    assert run(*translate(place, "--json", tmp_path / "one.jsonl")) == 0
    arguments = translate(place, "--json", tmp_path / "two.jsonl", "--cluster", machines.address)
    kept, read = tmp_path / f"two.jsonl{BLOCKS}", cluster_decoder.Trajectory.from_json

    def interrupted(line: str) -> Trajectory:
        if len(list(kept.iterdir())) == 5:
            raise KeyboardInterrupt
        return read(line)

    with monkeypatch.context() as context:
        context.setattr(cluster_decoder.Trajectory, "from_json", interrupted)
        assert run(*arguments) == 130
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("two")] == [kept.name]
    before = {file: file.stat().st_mtime_ns for file in kept.iterdir()}
    removed: list[Path] = []
    monkeypatch.setattr("anyorder.cluster.shutil.rmtree", removed.append)
    assert run(*arguments) == 0
    assert removed == [kept]
    assert before.items() <= {file: file.stat().st_mtime_ns for file in kept.iterdir()}.items()
    assert len(list(kept.iterdir())) == LINES // 8
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_a_killed_worker_costs_its_item(machines: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is not reported among the results, as Ray would."""
    with connect(machines.address) as cluster:
        assert list(cluster.map(Square(str(tmp_path), deadly=7), range(30))) == [n * n for n in range(30)]
    assert tries(tmp_path) == {n: 2 if n == 7 else 1 for n in range(30)}
    time.sleep(0.5)  # Ray's messages come from a thread
    assert capfd.readouterr() == ("", "")


def test_a_lost_machine(machines: Any, tmp_path: Path) -> None:
    more = machines.add_node(num_cpus=1, object_store_memory=80_000_000)
    with connect(machines.address) as cluster:
        results = cluster.map(Square(str(tmp_path), seconds=0.05), range(60))
        found = [next(results) for _ in range(10)]
        machines.remove_node(more, allow_graceful=False)
        assert found + list(results) == [n * n for n in range(60)]


def test_kept_results(machines: Any, tmp_path: Path) -> None:
    """They are used again by the same work only, and gone at the end."""
    out, calls = tmp_path / "out", tmp_path / "calls"
    calls.mkdir()
    work = Square(str(calls))
    with suppress(KeyboardInterrupt), connect(machines.address, out) as cluster:
        for found in cluster.map(work, range(9)):
            if found == 16:
                raise KeyboardInterrupt
    assert len(list(tmp_path.glob(f"out{BLOCKS}/*.json"))) == 5
    (next(tmp_path.glob(f"out{BLOCKS}/*.json"))).write_text("{half")
    with connect(machines.address, out) as cluster:
        assert list(cluster.map(work, range(9))) == [n * n for n in range(9)]
        before = tries(calls)
        assert list(cluster.map(work, range(9))) == [n * n for n in range(9)]
        assert tries(calls) == before
        assert list(cluster.map(Square(f"{calls}/"), range(2))) == [0, 1]
        assert tries(calls)[1] == before[1] + 1
        with pytest.raises(InputError, match="another process is writing it"), connect(machines.address, out):
            pass
    assert not list(tmp_path.glob("out*"))


def test_only_a_few_items_are_read_ahead(machines: Any, tmp_path: Path) -> None:
    read = []

    def numbers() -> Iterator[int]:
        for number in range(10**9):
            read.append(number)
            yield number

    with connect(machines.address) as cluster:
        results = cluster.map(Square(str(tmp_path)), numbers())
        assert [next(results) for _ in range(3)] == [0, 1, 4]
        assert len(read) <= 3 + 4 * cluster.workers()
        with pytest.raises(InputError, match="number -2: expected a number of at least 0"):
            list(cluster.map(Square(str(tmp_path)), [1, -2]))

"""Workers end with the process that started them, whatever ends it."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import toy_pairs, write_pairs
from tests.processes import group_members, start, start_python, wait_until

SCRIPT = Path(__file__).with_name("worker_script.py")
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@linux
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 1)])
def test_workers_end_with_their_parent(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start_python(SCRIPT, FOLDER=str(tmp_path), TASK="work")
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    assert len(group_members(process.pid)) >= 3
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)  # as Ctrl-C does: to the workers as well
    _, error = process.communicate(timeout=10)
    assert process.returncode == code
    assert error == "interrupted\n" if number == signal.SIGINT else "Traceback" not in error
    wait_until(lambda: not group_members(process.pid), seconds=2)


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    process = start_python(SCRIPT, FOLDER=str(tmp_path), TASK="die")
    output, error = process.communicate(timeout=20)
    assert (process.returncode, output) == (1, "")
    assert error == "workers 2: one of these processes was killed, perhaps for lack of memory; try fewer\n"


def test_results_come_in_order(tmp_path: Path) -> None:
    output, error = start_python(SCRIPT, FOLDER=str(tmp_path), TASK="count").communicate(timeout=20)
    assert (output, error) == ("5000\n", "")


@linux
def test_an_interrupted_preparation_leaves_nothing(tmp_path: Path) -> None:
    """Not even what one that was killed before had left behind."""
    write_pairs(tmp_path, "train", toy_pairs(9000, seed=3))
    (tmp_path / "store.partial" / "spool").mkdir(parents=True)
    (tmp_path / "store.partial" / "spool" / "train.de").write_text("half")
    arguments = ["--languages", "de,en", "--train", f"{tmp_path}/train.%", "--vocabulary", 200, "--workers", 2]
    process = start("prepare", *arguments, "--out", tmp_path / "store")
    wait_until(lambda: len(group_members(process.pid)) == 4)  # with the tracker of multiprocessing
    os.killpg(process.pid, signal.SIGINT)
    output, error = process.communicate(timeout=20)
    assert (process.returncode, output, error) == (130, "", "interrupted\n")
    wait_until(lambda: not group_members(process.pid), seconds=5)
    assert not list(tmp_path.glob("store*"))

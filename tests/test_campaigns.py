"""Short versions of the campaigns: a few cases of each kind, and that the campaigns notice what they look for."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from campaigns import fuzz
from campaigns.damage import damage_bytes, damage_file, damage_folder, repair_checksums
from campaigns.sandbox import Ended
from campaigns.stage import difference
from campaigns.whole import is_whole

from anyorder.files import sha256

ROOT = Path(__file__).parents[1]


def ended(code: int = 0, stderr: str = "", **changes: object) -> Ended:
    usual = {"seconds": 0.1, "megabytes": 100.0, "hung": False, "stopped": False, "stdout": "", "left": ""}
    return Ended(code=code, stderr=stderr, **(usual | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("process", "fault"),
    [
        (ended(), ""),
        (ended(2, "anyorder train: x: no such file\n"), ""),
        (ended(143, stopped=True), ""),
        (ended(2), "without a line"),
        (ended(2, "a warning\nanyorder train: x\n"), "with 2 lines"),
        (ended(2, "anyorder train: a\nb\n"), "the last line is 'b'"),
        (ended(2, "anyorder train: \x1b[31m\n"), "control characters"),
        (ended(1), "exit code 1"),
        (ended(143), "exit code 143"),
        (ended(-11), "exit code -11"),
        (ended(-9, hung=True), "hangs"),
        (ended(megabytes=5000.0), "takes 5,000 MB"),
        (ended(left="python -m anyorder"), "leaves a process behind"),
        (ended(0, "Exception ignored in: x\n"), "exception ignored"),
        (
            ended(
                1, 'Traceback (most recent call last):\n  File "/x/src/anyorder/files.py", line 3, in f\nKeyError: 1\n'
            ),
            "files.py line 3 in f: KeyError: 1",
        ),
    ],
)
def test_faults_of_a_process(process: Ended, fault: str) -> None:
    assert fault in process.fault() if fault else process.fault() == ""


def test_progress_may_precede_the_error_of_a_training_run() -> None:
    assert ended(2, "first step: 0.1 s\nanyorder train: x\n").fault(shows_progress=True) == ""


def test_shares_of_ten_thousand_cases() -> None:
    kinds = Counter(fuzz.kind_of(1, number) for number in range(10_000))
    assert kinds["store"] >= 1400
    assert kinds["run"] + kinds["order-run"] + kinds["pretrain-run"] >= 500
    assert kinds.keys() == fuzz.SHARES.keys()


def test_a_case_follows_from_seed_and_number() -> None:
    cases = [fuzz.make_case(3, number) for number in range(300)]
    assert cases == [fuzz.make_case(3, number) for number in range(300)]
    assert cases != [fuzz.make_case(4, number) for number in range(300)]
    assert {case.verb for case in cases} >= {"prepare", "train", "learn-order", "translate", "evaluate", "analyze"}


def test_damage_changes_a_file_and_repaired_checksums_fit_it(tmp_path: Path) -> None:
    content = {"a": {"b": [1, 2.5, "x"]}, "c": None}
    changed = 0
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / "config.json"
        file.write_text(json.dumps(content))
        (folder / "checksums.json").write_text("{}")
        damage_file(random.Random(number), file)
        changed += not file.is_file() or file.read_text(errors="replace") != json.dumps(content)
        repair_checksums(folder)
        if file.is_file() and file.stat().st_size < 1 << 20:
            sums = json.loads((folder / "checksums.json").read_text())
            assert sums["config.json"] == sha256(file)
    assert changed > 50


def test_damage_of_a_folder_follows_from_the_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.ends.npy", np.arange(9))
        (tmp_path / name / "manifest.json").write_text('{"format": 1}')
    for name in ("a", "b"):
        damage_folder(random.Random(5), tmp_path / name)
    assert difference(tmp_path / "a", tmp_path / "b") == ""


def test_half_written_files_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": NaN}')
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"a"')
    (tmp_path / "c.html").write_text("<!doctype html><html>")
    (tmp_path / "d.json").write_text("{}")
    assert [bool(is_whole(file)) for file in sorted(tmp_path.iterdir())] == [True, True, True, False]


def test_left_over_and_lost_files_are_noticed(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "kept.md").write_text("x")
    (here / "lost.md").write_text("x")
    (tmp_path / "files.json").write_text(json.dumps(fuzz.files_of(here)))
    assert fuzz.file_fault(tmp_path, 2) == ""
    (here / "lost.md").unlink()
    assert fuzz.file_fault(tmp_path, 2) == "loses lost.md"
    (here / "out.json.partial").write_text("{")
    assert fuzz.file_fault(tmp_path, 2) == "leaves out.json.partial"


def test_times_may_differ_and_nothing_else(tmp_path: Path) -> None:
    for name, seconds, loss in (("a", 1, 2.0), ("b", 2, 2.0), ("c", 1, 3.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text(json.dumps({"loss": loss, "seconds": seconds}) + "\n")
    assert difference(tmp_path / "a", tmp_path / "b") == ""
    assert "log.jsonl differs" in difference(tmp_path / "a", tmp_path / "c")
    shutil.copytree(tmp_path / "a", tmp_path / "d")
    (tmp_path / "d" / "more").touch()
    assert "the files differ" in difference(tmp_path / "a", tmp_path / "d")


def test_bytes_are_damaged_in_every_way() -> None:
    kinds = Counter(damage_bytes(random.Random(number), b"x" * 200)[1].split()[0] for number in range(300))
    assert kinds.keys() == {"bit", "byte", "cut", "empty", "longer", "hole", "inserted", "noise", "zeros"}


@pytest.mark.slow
def test_a_short_campaign_of_each_kind(tmp_path: Path) -> None:
    """In processes of their own: a process that has computed something must not fork for a campaign."""
    script = "import sys; from campaigns import short; sys.exit(short.main())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COVERAGE_PROCESS_START": ""}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

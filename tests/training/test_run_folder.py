"""The folder of a run: one writer at a time, damage refused in one line, nothing lost that was complete."""

import errno
import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from anyorder.cli import main
from anyorder.data.store import Store
from anyorder.errors import InputError
from anyorder.files import CHECKSUMS, lock_folder
from anyorder.training.run_folder import (
    Cursor,
    RunState,
    append_to_log,
    load_latest,
    open_run_folder,
    save_state,
    truncate_log,
)
from tests.processes import start_two, wait_until

FINGERPRINT: dict[str, object] = {"seed": 1, "masking": {"weights": {}}, "rl": {"gamma": np.float64(0.9)}}
"""A library user's setting may be a number of NumPy's."""
ODD = [None, True, -2, 10**30, 1.5, "1", [], [1], {"a": []}, "missing"]


class Run:
    """A tiny thing that learns."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.average = nn.Linear(3, 2), nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model(torch.ones(3)).sum().backward()
        self.optimizer.step()

    def save(self, out: Path, step: int) -> Path:
        state = RunState(step, Cursor(step, 0, step), 1.5, scores={"bleu": 3.0, "odd": math.nan})
        save_state(out, state, self.model, self.average, self.optimizer, FINGERPRINT)
        return out / f"checkpoint-{step:08d}"

    def load(self, out: Path) -> RunState | None:
        return load_latest(out, self.model, self.average, self.optimizer, FINGERPRINT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint without checksums, so that what they do not cover is looked at."""
    checkpoint = Run().save(tmp_path, 3)
    (checkpoint / CHECKSUMS).unlink()
    return checkpoint


def test_a_state_comes_back(tmp_path: Path) -> None:
    before, after = Run(), Run()
    before.save(tmp_path, 2)
    before.save(tmp_path, 3)
    assert os.listdir(tmp_path) == ["checkpoint-00000003"]
    for moment in after.optimizer.state.values():
        moment["exp_avg"].zero_()
    state = after.load(tmp_path)
    assert state == RunState(3, Cursor(3, 0, 3), 1.5, None, {"bleu": 3.0})
    for ours, theirs in zip(before.optimizer.state.values(), after.optimizer.state.values(), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ("step", "exp_avg", "exp_avg_sq"))


def test_every_field_of_the_state_is_checked(folder: Path) -> None:
    whole = json.loads((folder / "state.json").read_text())
    run = Run()
    messages: list[str] = []
    for path in [(key,) for key in whole] + [("cursor", key) for key in whole["cursor"]] + [("scores", "bleu")]:
        for odd in ODD:
            altered: dict[str, Any] = json.loads(json.dumps(whole))
            inner = altered[path[0]] if len(path) == 2 else altered
            if odd == "missing":
                del inner[path[-1]]
            else:
                inner[path[-1]] = odd
            (folder / "state.json").write_text(json.dumps(altered))
            try:
                run.load(folder.parent)
            except InputError as error:
                messages.append(str(error))
    assert len(messages) > 80
    assert all("state.json: " in message or "cannot resume" in message for message in messages)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_bytes_is_refused_or_harmless(folder: Path, data: st.DataObject) -> None:
    file = folder / data.draw(st.sampled_from(["state.json", "model.safetensors", "optimizer.safetensors"]))
    whole, run = file.read_bytes(), Run()
    at = data.draw(st.integers(0, len(whole)))
    try:
        file.write_bytes(whole[:at] + data.draw(st.binary(max_size=4)) + whole[at + data.draw(st.integers(0, 4)) :])
        run.load(folder.parent)
    except InputError:
        pass
    finally:
        file.write_bytes(whole)


def test_a_damaged_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    run = Run()
    kept = shutil.copytree(run.save(tmp_path, 2), tmp_path / "kept")
    newest = run.save(tmp_path, 3)
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"damaged.*; remove checkpoint-00000003 to begin the run again$"):
        run.load(tmp_path)
    kept.rename(tmp_path / "checkpoint-00000002")
    with pytest.raises(InputError, match="; remove checkpoint-00000003 to continue from checkpoint-00000002$"):
        run.load(tmp_path)
    shutil.rmtree(newest)
    state = run.load(tmp_path)
    assert state is not None
    assert state.step == 2


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model", {"weight": torch.zeros(2, 4)}, "weight is"),
        ("average", {"other": torch.zeros(1)}, "has unknown other"),
        ("model", {"bias": torch.full((2,), math.nan)}, "bias holds numbers that are not finite"),
        ("optimizer", {"weight/exp_avg": torch.zeros(7)}, r"weight/exp_avg is not float32 of shape \(2, 3\)"),
        ("optimizer", {"bias/exp_avg_sq": torch.zeros(2, dtype=torch.int64)}, "bias/exp_avg_sq is not float32"),
        ("optimizer", {"x/step": torch.zeros(())}, "has unknown x/step"),
        ("optimizer", {"bias/step": None}, "bias/step is not float32"),
    ],
)
def test_odd_tensors(folder: Path, name: str, change: dict[str, torch.Tensor | None], message: str) -> None:
    file = folder / f"{name}.safetensors"
    tensors = {key: value for key, value in (load_file(file) | change).items() if value is not None}
    save_file(tensors, file)
    with pytest.raises(InputError, match=message):
        Run().load(folder.parent)


def test_an_old_checkpoint(folder: Path) -> None:
    record = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(record | {"checksums": {}}))
    with pytest.raises(InputError, match="an older version wrote this checkpoint"):
        Run().load(folder.parent)


def test_only_the_torn_last_line_of_a_log_is_dropped(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        append_to_log(tmp_path, {"step": step, "loss": math.inf})
    log = tmp_path / "log.jsonl"
    whole = log.read_bytes()
    for torn in (b"", b'{"step": 3, "lo', b"\x00\x00", whole[-20:-1], b"\xff"):
        log.write_bytes(whole + torn)
        truncate_log(tmp_path, 2, 2)
        assert log.read_text() == '{"step": 1, "loss": null}\n{"step": 2, "loss": null}\n'
    log.write_bytes(whole[:-1])  # only the line's end is missing
    truncate_log(tmp_path, 3, 3)
    assert log.read_bytes() == whole
    for odd in (b"[]\n", b"\n", b'{"step": "1"}\n', b'{"step": 1e999}\n', b"{\n", b"\xff\n", b"[" * 100_000 + b"\n"):
        log.write_bytes(whole + odd + whole)
        with pytest.raises(InputError, match=r"log\.jsonl, line 4: "):
            truncate_log(tmp_path, 2, 2)
        assert log.read_bytes() == whole + odd + whole


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with open_run_folder(tmp_path / "run", False):
        assert (tmp_path / "run").is_dir()
        with (
            pytest.raises(InputError, match="another run is using this folder"),
            open_run_folder(tmp_path / "run", False),
        ):
            pass
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()  # nothing was written


def test_leftovers_and_strange_files(tmp_path: Path) -> None:
    Run().save(tmp_path, 3)
    for name in ("a.partial", "checkpoint-00000009", "checkpoint-٣٣٣٣٣٣٣٣", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "checkpoint-00000004.partial").mkdir()
    (tmp_path / "model.old").mkdir()
    with open_run_folder(tmp_path, True):
        state = Run().load(tmp_path)
        Run().save(tmp_path, 5)
    assert state is not None
    assert state.step == 3
    names = ["checkpoint-00000005", "checkpoint-00000009", "checkpoint-٣٣٣٣٣٣٣٣", "model", "notes.txt"]
    assert sorted(os.listdir(tmp_path)) == names


def command(store: Store, out: Path, *more: object) -> list[str]:
    size = ["--transformer.hidden-size", 32, "--transformer.num-layers", 1, "--transformer.num-heads", 2]
    size += ["--transformer.max-positions", 64, "--masking.validation-sentences", 2, "--run.device", "cpu"]
    run = ["--run.batch-tokens", 500, "--run.warmup", 2, "--run.log-every", 1]
    return [str(part) for part in ("train", "--data", store.path, "--out", out, *size, *run, *more)]


def test_a_second_run_touches_nothing(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "log.jsonl").write_text("of the first")
    (out / "x.partial").write_text("of the first")
    with lock_folder(out):
        assert main(command(store, out, "--run.steps", 2, "--resume")) == 2
    assert capsys.readouterr().err == f"anyorder train: {out}: another run is using this folder\n"
    assert {file.name: file.read_text() for file in out.iterdir()} == {
        "log.jsonl": "of the first", "x.partial": "of the first",
    }  # fmt: skip


def test_a_finished_run_without_its_model_writes_it_again(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a cursor far behind its step is refused: it would take forever to catch up."""
    arguments = command(store, tmp_path / "run", "--run.steps", 2)
    assert main(arguments) == 0
    weights = tmp_path / "run" / "model" / "model.safetensors"
    before = weights.read_bytes()
    shutil.rmtree(tmp_path / "run" / "model")
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 0
    shown = capsys.readouterr()
    assert "is gone: the next validation writes it again" in shown.err
    assert "already finished" not in shown.err
    assert weights.read_bytes() == before
    assert f"model: {tmp_path}/run/model" in shown.out

    checkpoint = tmp_path / "run" / "checkpoint-00000002"
    state = json.loads((checkpoint / "state.json").read_text())
    checkpoint = checkpoint.rename(tmp_path / "run" / f"checkpoint-{1 << 50:08d}")
    (checkpoint / "state.json").write_text(json.dumps(state | {"step": 1 << 50}))
    (checkpoint / CHECKSUMS).unlink()
    assert main([*arguments, "--resume", "--run.steps", str(1 << 52)]) == 2
    assert "state.json: cursor.batch: 2, which does not fit step 1125899906842624" in capsys.readouterr().err


def test_a_full_disk_loses_nothing_that_was_complete(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = command(store, tmp_path / "run", "--run.steps", 3, "--run.save-every", 1)
    write, out = save_state, tmp_path / "run"

    def full(run: Path, state: RunState, *rest: Any) -> None:
        with monkeypatch.context() as patch:
            if state.step == 2:
                patch.setattr("anyorder.training.run_folder.write_tensors", _no_space)
            write(run, state, *rest)

    monkeypatch.setattr("anyorder.training.loop.save_state", full)
    capsys.readouterr()
    assert main(arguments) == 2
    line = f"anyorder train: {out}/checkpoint-00000002: cannot be written (No space left on device)"
    assert capsys.readouterr().err.splitlines()[-1] == line
    assert sorted(os.listdir(out)) == ["checkpoint-00000001", "log.jsonl"]
    monkeypatch.undo()
    assert main([*arguments, "--resume"]) == 0
    assert "continuing from step 1" in capsys.readouterr().err
    assert sorted(os.listdir(out)) == ["checkpoint-00000003", "log.jsonl", "model"]


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.skipif(sys.platform == "win32", reason="gloo")
def test_one_of_two_processes_is_killed(store: Store, tmp_path: Path) -> None:
    """The other one ends at once, with one line, and nothing half-written is left."""
    arguments = command(store, tmp_path / "run", "--run.steps", 10**6, "--run.batches-per-step", 2)
    main_process, other = start_two(*arguments)
    wait_until(lambda: (tmp_path / "run" / "log.jsonl").exists())
    other.send_signal(signal.SIGKILL)
    assert other.wait(timeout=10).returncode == -signal.SIGKILL
    ended = main_process.wait(timeout=10)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("anyorder train: process 0 lost process 1 (")
    assert os.listdir(tmp_path / "run") == ["log.jsonl"]

"""Whole training runs: killed and resumed, on two processes, stopped by a signal, started from a pretrained model."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from anyorder.cli import main
from anyorder.data.store import Store
from anyorder.models.native.translation_model import TranslationModel
from anyorder.training.translation_objective import TranslationObjective
from tests.processes import Fork, run_two, wait_until

SIZE = [
    "--transformer.hidden-size", 32, "--transformer.num-layers", 2, "--transformer.num-heads", 2,
    "--transformer.max-positions", 64,
]  # fmt: skip
RUN = ["--run.batch-tokens", 600, "--run.warmup", 10, "--run.device", "cpu", "--run.log-every", 1]
RUN += ["--run.learning-rate", 0.003, "--masking.validation-sentences", 5]


def command(store: Store, out: Path, *more: object) -> list[object]:
    return ["train", "--data", store.path, "--out", out, *SIZE, *RUN, *more]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def curve(out: Path) -> list[tuple[int, float]]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]


def last_checkpoint(out: Path) -> Path:
    found = sorted(out.glob("checkpoint-*"))
    assert len(found) == 1
    return found[0]


def test_killed_and_resumed_it_ends_in_the_same_weights(store: Store, tmp_path: Path) -> None:
    steps, kills = 16, 2
    more = ["--run.steps", steps, "--run.save-every", 1, "--run.validate-every", 7]
    assert run(*command(store, tmp_path / "unbroken", *more)) == 0
    broken = tmp_path / "broken"
    log = broken / "log.jsonl"
    rng = random.Random(4)
    for target in sorted(rng.sample(range(2, steps - 1), kills)):
        process = Fork(*command(store, broken, *more, "--resume"))
        wait_until(lambda step=target: log.exists() and f'"step": {step},' in log.read_text(), poll=0.002)  # type: ignore[misc]
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait().returncode == -signal.SIGKILL
    assert run(*command(store, broken, *more, "--resume")) == 0
    for name in ("model", "average", "optimizer"):
        ours = load_file(last_checkpoint(broken) / f"{name}.safetensors")
        theirs = load_file(last_checkpoint(tmp_path / "unbroken") / f"{name}.safetensors")
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name
    assert curve(broken) == curve(tmp_path / "unbroken")
    assert sorted(os.listdir(broken)) == sorted(os.listdir(tmp_path / "unbroken"))
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (broken, tmp_path / "unbroken")]
    assert weights[0] == weights[1]


def test_two_processes_train_like_one(store: Store, tmp_path: Path) -> None:
    more = ["--run.steps", 30, "--run.batches-per-step", 2, "--run.save-every", 0, "--run.validate-every", 0]
    assert run(*command(store, tmp_path / "one", *more)) == 0
    for process in run_two(*command(store, tmp_path / "two", *more)):
        assert process.returncode == 0, process.stderr
    one, two = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert [step for step, _ in one] == [step for step, _ in two] == list(range(1, 31))
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], abs=2e-4)
    assert one[-1][1] < one[0][1] - 0.5  # there was something to learn
    ours, theirs = (TranslationModel.from_pretrained(tmp_path / name / "model").state_dict() for name in ("one", "two"))
    assert max((ours[key] - theirs[key]).abs().max().item() for key in ours) < 2e-3


def test_it_learns(store: Store, tmp_path: Path) -> None:
    more = ["--run.steps", 60, "--run.validate-every", 0, "--transformer.hidden-size", 64, "--run.batch-tokens", 2000]
    assert run(*command(store, tmp_path / "run", *more)) == 0
    losses = curve(tmp_path / "run")
    assert losses[-1][1] < losses[0][1] - 3
    entries = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert min(entries[-1]["bleu de-en"], entries[-1]["bleu en-de"]) > 40
    assert all(
        entry["tokens_per_second"] > 0 and 0 < entry["share_of_peak"] < 1 for entry in entries if "loss" in entry
    )
    assert TranslationModel.from_pretrained(tmp_path / "run" / "model").length_table is not None


def test_ctrl_c_leaves_a_checkpoint(store: Store, tmp_path: Path) -> None:
    more = ["--run.steps", 100000, "--run.save-every", 0, "--run.validate-every", 0]
    process = Fork(*command(store, tmp_path / "run", *more))
    wait_until((tmp_path / "run" / "log.jsonl").exists)
    process.send_signal(signal.SIGINT)
    done = process.wait(timeout=60)
    assert done.returncode == 0
    assert "continue with --resume" in done.stdout + done.stderr
    step = json.loads((last_checkpoint(tmp_path / "run") / "state.json").read_text())["step"]
    assert curve(tmp_path / "run")[-1][0] == step


def test_a_pretrained_model_starts_a_translation_model(store: Store, tmp_path: Path) -> None:
    base = ["--data", store.path, *SIZE, "--run.batch-tokens", 600, "--run.warmup", 10, "--run.device", "cpu"]
    base += ["--run.log-every", 10, "--run.learning-rate", 0.003]
    assert run("pretrain", *base, "--out", tmp_path / "pre", "--run.steps", 60, "--run.track", "tensorboard") == 0
    losses = curve(tmp_path / "pre")
    assert losses[-1][1] < losses[0][1] - 0.3
    assert list((tmp_path / "pre").rglob("events.out.tfevents*"))
    init = ["--init", tmp_path / "pre" / "model", "--masking.weights", '{"train": 2}']
    assert run("train", "--data", store.path, "--out", tmp_path / "run", *RUN, *init, "--run.steps", 5) == 0
    assert run(*command(store, tmp_path / "fresh", "--run.steps", 5)) == 0
    assert curve(tmp_path / "run")[0][1] < curve(tmp_path / "fresh")[0][1]  # it knows the languages already


def test_a_damaged_checkpoint_is_not_resumed(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = [str(part) for part in command(store, out, "--run.steps", 3, "--run.validate-every", 0)]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main(arguments) == 2
    assert f"--resume is needed to continue {out}, which already exists" in capsys.readouterr().err
    assert main([*arguments, "--resume", "--run.seed", "2"]) == 2
    assert "cannot resume: seed was 1, now it is 2" in capsys.readouterr().err
    file = last_checkpoint(out) / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert main([*arguments, "--resume"]) == 2
    assert "optimizer.safetensors: damaged, it does not match" in capsys.readouterr().err


def test_a_run_that_ended_in_time_is_finished(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends a little early rather than late; resumed, it does not train on."""
    out = tmp_path / "run"
    arguments = [str(part) for part in command(store, out, "--run.minutes", 0.02, "--run.validate-every", 0)]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert f"model: {out}/model" in output.out
    assert "first step: " in output.err
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert entries[-1]["seconds"] < 1.1 * 1.2 + 0.5
    step = json.loads((last_checkpoint(out) / "state.json").read_text())["step"]
    assert main([*arguments, "--resume"]) == 0
    assert f"already finished at step {step}" in capsys.readouterr().err
    assert main([*arguments, "--resume", "--run.minutes", "0.03"]) == 0
    assert json.loads((last_checkpoint(out) / "state.json").read_text())["step"] >= step


def test_patience_counts_validations_without_a_better_score(store: Store, tmp_path: Path) -> None:
    """A learning rate of almost nothing improves nothing, and equal scores count as better, so they go down by force."""
    falling = iter(range(100, 0, -1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationObjective, "selection_metric", lambda self, scores: float(next(falling)))
        more = ["--run.steps", 50, "--run.validate-every", 2, "--run.patience", 3]
        assert run(*command(store, tmp_path / "out", *more)) == 0
    assert curve(tmp_path / "out")[-1][0] == 8  # the best at 2, then 4, 6 and 8

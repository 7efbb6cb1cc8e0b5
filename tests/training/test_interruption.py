"""Runs that are ended at any moment: by a signal or because their time is over, and what they do when resumed."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from anyorder.training.config import TrainConfig
from anyorder.training.interruption import REPEAT_SECONDS, Interrupter, Interruption
from anyorder.training.loop import run_training
from anyorder.training.objective import Objective

RUN = TrainConfig(steps=4, warmup=1, log_every=1, validate_every=2, save_every=0, device="cpu", ema=0.5)
MOMENTS = [
    *(("rollouts", number) for number in (1, 2, 4)),
    *((place, number) for place in ("forward", "backward") for number in (1, 2, 3, 4, 11, 16)),
    *((place, number) for place in ("validation", "saving") for number in (1, 2)),
]


def send(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def send_into_a_trap() -> None:
    """Like a destructor, in which exceptions are ignored."""
    with suppress(BaseException):
        send()
    sleep_in_short_operations(5)


def sleep_in_short_operations(seconds: float = 30.0) -> None:
    """Like a slow forward pass: many operations, each of which is short."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


class Work(nn.Module):
    """A squared error; `visit` is told when a pass begins and when it goes back."""

    def __init__(self, learner: nn.Module, visit: Callable[[str], None]):
        super().__init__()
        self.learner, self.visit = learner, visit

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        self.visit("forward")
        outputs = self.learner(inputs)
        outputs.register_hook(lambda gradient: self.visit("backward"))
        loss = (outputs - 1).square().mean()
        return loss, loss.detach()[None]


class Visited(Objective[np.ndarray]):
    """An objective with two updates a step on each of two minibatches. `at` is called at every place, by name."""

    reports, shown, unit, seed, epochs = ("loss",), ("loss",), "rows", 1, 2
    compiles = False

    def __init__(self, at: Callable[[str], None]):
        torch.manual_seed(1)
        self.learner = nn.Linear(3, 1)
        self.module = Work(self.learner, at)
        self.at = at

    def epoch_batches(self, epoch: int) -> range:
        return range(100)

    def build(self, rows: int, random: np.random.Generator) -> np.ndarray:
        return random.random((4, 3), np.float32)

    def minibatches(self, batch: np.ndarray, device: torch.device) -> list[dict[str, Any]]:
        self.at("rollouts")
        return [{"inputs": torch.from_numpy(part)} for part in (batch[:2], batch[2:])]

    def cost(self, batch: np.ndarray) -> tuple[int, float]:
        return len(batch), 1.0

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        self.at("validation")
        return {"score": float(sum(value.sum() for value in average.state_dict().values()))}

    def save(self, average: nn.Module, out: Path) -> None:
        self.at("saving")
        (out / "model").mkdir(exist_ok=True)
        (out / "model" / "weights").write_text(str(average.state_dict()))
        self.at("saving")

    def fingerprint(self) -> dict[str, object]:
        return {"objective": "visited"}


class Moment:
    """Acts at the `number`-th visit of a place; at every one if it is 0."""

    def __init__(self, place: str, number: int, act: Callable[[], None]):
        self._place, self._number, self._act, self._visits = place, number, act, 0

    def __call__(self, place: str) -> None:
        if place == self._place:
            self._visits += 1
            if self._number in (0, self._visits):
                self._act()


def nothing(place: str) -> None:
    pass


def result_of(out: Path) -> tuple[list[Any], dict[str, Any], str]:
    """Weights, state and log, without times."""
    [checkpoint] = out.glob("checkpoint-*")
    tensors = {
        f"{name}/{key}": value.tolist()
        for name in ("model", "average", "optimizer")
        for key, value in load_file(checkpoint / f"{name}.safetensors").items()
    }
    state = json.loads((checkpoint / "state.json").read_text())
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    for entry in (state, *log):
        for key in ("seconds", "rows_per_second", "share_of_peak"):
            entry.pop(key, None)
    return log, {**tensors, **state}, (out / "model" / "weights").read_text()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    assert run_training(Visited(nothing), RUN, out, False).finished
    return result_of(out)


@pytest.mark.parametrize(("place", "number"), MOMENTS)
def test_stopped_anywhere_it_resumes_to_the_same_result(tmp_path: Path, unbroken: Any, place: str, number: int) -> None:
    stop = Moment(place, number, lambda: send(signal.SIGTERM if number % 2 else signal.SIGINT))
    assert not run_training(Visited(stop), RUN, tmp_path, False).finished
    assert list(tmp_path.glob("checkpoint-*"))
    assert run_training(Visited(nothing), RUN, tmp_path, True).finished
    assert result_of(tmp_path) == unbroken
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("place", ["rollouts", "forward", "backward", "validation"])
def test_a_signal_ends_what_takes_long(tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    threading.Timer(0.3, send).start()
    start = time.monotonic()
    slow = Moment(place, 2, sleep_in_short_operations)
    assert not run_training(Visited(slow), RUN, tmp_path, False).finished
    assert time.monotonic() - start < 3
    assert "stopped at step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "number", "steps", "message"),
    [
        ("rollouts", 1, 0, "no step was finished: the model is its start; use smaller batches or more time"),
        ("backward", 3, 0, "no step was finished"),
        ("rollouts", 2, 1, ""),
        ("validation", 0, 2, "before step 2 was validated: the model is that of this step"),
    ],
)
def test_the_end_of_the_time_ends_what_takes_long(
    tmp_path: Path,
    place: str,
    number: int,
    steps: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("anyorder.training.loop.GRACE_SECONDS", 0.2)
    run = replace(RUN, steps=None, minutes=0.8 / 60)
    start = time.monotonic()
    result = run_training(Visited(Moment(place, number, sleep_in_short_operations)), run, tmp_path, False)
    assert time.monotonic() - start < 4
    assert (result.finished, result.steps) == (True, steps)
    error = capsys.readouterr().err
    assert message in error
    assert ("step 1: score" in error) == (place == "rollouts" and steps == 1)
    assert (tmp_path / "model" / "weights").exists()
    again = run_training(Visited(nothing), run, tmp_path, True)
    assert (again.finished, again.steps) == (True, steps)  # its time is over
    assert ("score" in again.scores) == (steps > 0)


def test_a_validation_that_was_interrupted_is_made_up_for_when_killed_meanwhile(tmp_path: Path, unbroken: Any) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    assert not run_training(Visited(Moment("validation", 1, send)), RUN, tmp_path, False).finished
    with pytest.raises(Killed):
        run_training(Visited(Moment("saving", 2, kill)), RUN, tmp_path, True)
    assert run_training(Visited(nothing), RUN, tmp_path, True).finished
    assert result_of(tmp_path) == unbroken


def test_an_interruption_that_was_swallowed_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyorder.training.interruption.REPEAT_SECONDS", 0.05)
    assert REPEAT_SECONDS >= 1
    interrupter = Interrupter()
    with interrupter.listening(), pytest.raises(Interruption), interrupter.interruptible():
        send_into_a_trap()
    assert interrupter.stop_asked


def test_outside_of_its_blocks_nothing_is_interrupted() -> None:
    interrupter = Interrupter()
    with interrupter.listening():
        send(signal.SIGTERM)
        assert interrupter.stop_asked
        with pytest.raises(Interruption), interrupter.interruptible():
            raise AssertionError("the block must not begin")
    assert signal.getsignal(signal.SIGTERM) != interrupter._ask


def test_an_alarm_of_the_caller_goes_on() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        interrupter = Interrupter()
        with interrupter.listening(), interrupter.interruptible(60):
            pass
        time.sleep(0.4)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rung == [signal.SIGALRM]


def test_in_another_thread_there_are_no_signals(tmp_path: Path) -> None:
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(run_training(Visited(nothing), RUN, tmp_path, False).finished)
    )
    thread.start()
    thread.join()
    assert found == [True]

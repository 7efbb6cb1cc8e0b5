"""A run against the clock: it ends in time, last validation included, whatever its steps and validations take."""

import random
from types import SimpleNamespace

import pytest
import torch

from anyorder.training import clock as module
from anyorder.training.clock import Clock, Meter


class FakeTime:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(module, "time", fake)
    return fake


def run(
    time: FakeTime, clock: Clock, step: float, validation: float, validate_every: int = 0, jitter: float = 0.0
) -> tuple[int, float]:
    """Steps and seconds of a run whose steps and validations take so long."""
    rng, steps = random.Random(1), 0
    clock.start()
    while steps == 0 or clock.progress(steps) < 1:
        time.now += step * (1 + jitter * rng.uniform(-1, 1))
        clock.step_done()
        steps += 1
        if validate_every and steps % validate_every == 0:
            with clock.paused():
                time.now += validation
            clock.reserve(validation)
    if not validate_every or steps % validate_every:  # otherwise it has just been validated
        time.now += validation
    return steps, clock.seconds


@pytest.mark.parametrize("step", [0.01, 0.4, 3.0, 4.2])
@pytest.mark.parametrize("validation", [0.0, 4.0, 12.0])
def test_a_run_of_0_7_minutes_takes_0_7_minutes(time: FakeTime, step: float, validation: float) -> None:
    clock = Clock(None, 0.7, 0.0, first_step_counts=True)
    clock.reserve(validation)
    _, seconds = run(time, clock, step, validation, jitter=0.1)
    assert 0.88 * 42 < seconds < 1.1 * 42


def test_the_time_of_the_last_validation_is_learned_from_the_others(time: FakeTime) -> None:
    _, seconds = run(time, Clock(None, 1, 0.0, first_step_counts=True), 0.5, validation=8.0, validate_every=20)
    assert 0.88 * 60 < seconds < 1.01 * 60


def test_the_first_step_may_compile(time: FakeTime) -> None:
    clock = Clock(None, 2, 0.0, first_step_counts=False)
    clock.start()
    time.now += 70
    assert clock.step_done() == 70
    assert clock.progress(1) == pytest.approx(70 / 120)
    time.now += 1
    assert clock.step_done() is None
    assert clock.progress(2) < 1


def test_at_least_half_of_the_run_is_training(time: FakeTime) -> None:
    clock = Clock(None, 1, 0.0, first_step_counts=True)
    clock.reserve(1000)
    assert run(time, clock, 1.0, validation=0.0)[0] == 30


def test_one_step_is_always_made(time: FakeTime) -> None:
    assert run(time, Clock(None, 0.7, 0.0, first_step_counts=True), 100.0, validation=0.0)[0] == 1


def test_earlier_sessions_count(time: FakeTime) -> None:
    clock = Clock(None, 1, 45.0, first_step_counts=True)
    assert clock.progress(0) == pytest.approx(0.75)
    assert run(time, clock, 1.0, validation=0.0) == (15, 60.0)


def test_a_run_of_steps_needs_no_clock(time: FakeTime) -> None:
    clock = Clock(10, None, 0.0, first_step_counts=True)
    clock.reserve(1e9)
    assert [clock.progress(step) for step in (0, 5, 10)] == [0, 0.5, 1]


def test_the_speed_is_that_of_training_alone(time: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what comes before the first step nor a pause counts."""
    monkeypatch.setattr(module, "peak_flops", lambda device: 1000.0)
    accelerator = SimpleNamespace(num_processes=2, reduce=lambda total, how: 2 * total)
    clock, meter = Clock(10, None, 0.0, first_step_counts=True), Meter(torch.device("cpu"), 2)
    time.now += 50
    clock.start()
    for units in (6, 30):
        time.now += 2
        meter.add(torch.tensor([1.0, 5.0]))
        meter.add(torch.tensor([3.0, 5.0]))
        meter.count(units, 400.0)
        with clock.paused():
            time.now += 7
        assert meter.read(accelerator, clock) == ([2.0, 5.0], units, 0.2)  # type: ignore[arg-type]

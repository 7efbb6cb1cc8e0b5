"""One training loop for every objective: Accelerate, schedule, EMA, checkpoints, resume, progress, trackers.

It knows about steps and weights, not about what is learned. An `Objective` provides batches, a loss and a validation.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from anyorder import progress
from anyorder.device import join_processes, report_lost_process
from anyorder.errors import InputError
from anyorder.training.batches import Cursor, Prefetcher
from anyorder.training.clock import Clock, Meter
from anyorder.training.config import TrainConfig
from anyorder.training.objective import Objective
from anyorder.training.optimizer import make_optimizer, rate_factor, set_rate, update_average
from anyorder.training.run_folder import (
    STATE,
    RunState,
    append_to_log,
    check_run_folder,
    checkpoints,
    describe_changes,
    load_latest,
    open_run_folder,
    save_state,
    truncate_log,
)

PRINT_SECONDS = 30
"""How often to print the latest log entry if there is no progress bar."""
VALIDATION_SHARE = 1 / 3
"""If a validation would take a larger share of a timed run, it skips the scores that are only for comparison."""
LOG_SECONDS = 10
"""How often to log a slow run, even before `log_every` steps are done."""


_KEPT: list["_Loop"] = []
"""Keeps the loops of distributed runs alive until this process ends. With the last one, PyTorch's process group would
be destroyed, which waits for its threads; if one of them is waiting for the GIL, as happens rarely, both deadlock."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    scores: dict[str, float]
    """Scores of the last validation."""
    step: int
    finished: bool
    """False if a signal stopped the run; it can be resumed."""


def begin_run(run: TrainConfig, out: Path, resume: bool) -> torch.device:
    """Check what can be checked before anything is loaded, and join the other processes; returns the device."""
    run.check_length()
    device = run.resolve_device()
    check_run_folder(out, resume)
    join_processes(device)
    return device


def run_training(objective: Objective[Any], run: TrainConfig, out: Path, resume: bool) -> RunResult:
    """Train, and write the result into `out`: the averaged weights with the best validation."""
    run.check_length()
    with open_run_folder(out, resume), report_lost_process():
        loop = _Loop(objective, run, out, resume)
        if loop.world > 1:
            _KEPT.append(loop)
        return loop.go()


class _Loop:
    def __init__(self, objective: Objective[Any], run: TrainConfig, out: Path, resume: bool):
        self.objective, self.run, self.out = objective, run, out
        self.cuda = run.resolve_device().type == "cuda"
        tracker = None if run.track == "none" else run.track
        self.accelerator = Accelerator(cpu=not self.cuda, log_with=tracker, project_dir=str(out))
        self.world, self.rank = self.accelerator.num_processes, self.accelerator.process_index
        if run.batches_per_step % self.world:
            raise InputError(
                f"{run.batches_per_step}: cannot be shared by {self.world} processes", "batches_per_step", type(run)
            )
        self.learner = objective.learner.to(self.accelerator.device).train()
        self.average = deepcopy(self.learner).eval().requires_grad_(False)
        self.optimizer = make_optimizer(self.learner, run, self.cuda, objective.rate_scales())
        self.state = RunState(settings=self._settings())
        self.saved_step = -1
        """The step of the last checkpoint."""
        if resume:
            self._resume()
        objective.module.to(self.accelerator.device).train()
        if objective.compiles and run.compiles:
            objective.module.compile(dynamic=False)
        self.module = self.accelerator.prepare_model(objective.module)
        self.meter = Meter(self.accelerator.device, len(objective.reports))
        self.clock = Clock(run.steps, run.minutes, self.state.seconds, first_step_counts=not self.cuda)
        self.note = ""
        """The text of the progress bar."""
        self.logged_at, self.printed_at = time.monotonic(), -math.inf
        self.quick = False
        """Validations skip scores that are only for comparison, because there is too little time."""
        self.stop_asked = False
        """This process received a signal to stop."""
        self.stopping = False
        """All processes have agreed to stop."""

    def go(self) -> RunResult:
        run, state, clock = self.run, self.state, self.clock
        self._start_tracker()
        if self.accelerator.is_main_process:
            truncate_log(self.out, state.step)
        self._look_for_result()
        self._reserve_validation()
        first = state.step * run.batches_per_step
        batches = Prefetcher(self.objective.batches(state.cursor, first, self.rank, self.world))
        total = run.steps if run.steps is not None else (run.minutes or 0) * 60
        patience = run.patience or math.inf
        try:
            with self._stop_on_signal(), progress.bar("training", total) as bar:
                done, _, _ = self._agree(clock.progress(state.step), False, False)
                over = done >= 1 or state.stale >= patience
                if over and self.saved_step == state.validated_step == state.step:
                    self._print(f"already finished at step {state.step}")
                clock.start()
                while (done < 1 or state.step == 0) and not self.stopping and state.stale < patience:
                    self._step(batches, done)
                    self._first_step(clock.step_done())
                    at_log = state.step % run.log_every == 0
                    # Agreeing takes a message between processes; a fast step on CUDA does not wait for one.
                    if at_log or self.world == 1 or not self.cuda:
                        slow = time.monotonic() - self.logged_at > LOG_SECONDS
                        done, slow, self.stopping = self._agree(clock.progress(state.step), slow, self.stop_asked)
                        at_log = at_log or slow
                    elif run.steps is not None:
                        done = clock.progress(state.step)
                    if at_log or done >= 1:
                        self._log(done)
                        state.seconds = clock.seconds
                        bar.set(state.step if run.steps is not None else state.seconds, self.note)
                    at_validation = bool(run.validate_every) and state.step % run.validate_every == 0
                    with self.meter.paused(), clock.paused():
                        if at_validation:
                            self._validate()
                        if run.save_every and state.step % run.save_every == 0 and done < 1:
                            self._save()
                    if at_validation and done < 1 and run.minutes is not None:
                        done, _, _ = self._agree(clock.progress(state.step), False, False)
                        if done >= 1 and not at_log:
                            self._log(done)
        finally:
            batches.close()
        if self.stopping:
            self._save()
            self._print(f"stopped at step {state.step}")
            return RunResult(dict(state.scores), state.step, finished=False)
        if state.validated_step != state.step:
            self._validate()
        # A run that stopped slightly early to stay within its minutes still counts as having used them: it is finished.
        self._save(run.minutes * 60 if run.minutes is not None and done >= 1 else 0.0)
        self.accelerator.end_training()
        return RunResult(dict(state.scores), state.step, finished=True)

    def _start_tracker(self) -> None:
        if self.run.track == "none":
            return
        try:
            self.accelerator.init_trackers("anyorder", config=_flat(asdict(self.run)))
        except Exception as error:  # trackers raise their own, the network's and the file system's errors
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            message = f"{self.run.track}: cannot be started ({reason})"
            raise InputError(message, "track", type(self.run)) from None

    def _step(self, source: Prefetcher[tuple[Any, Cursor]], done: float) -> None:
        run, state, objective = self.run, self.state, self.objective
        per_process = run.batches_per_step // self.world
        batches = [next(source) for _ in range(per_process)]
        minibatches = [objective.minibatches(batch, self.accelerator.device) for batch, _ in batches]
        set_rate(self.optimizer, run.learning_rate * rate_factor(run, state.step, done))
        for epoch in range(objective.epochs):
            for of_each_batch in zip(*minibatches, strict=True):
                for number, ((_, cursor), inputs) in enumerate(zip(batches, of_each_batch, strict=True)):
                    # Dropout depends only on the batch, not on the process or on what ran before.
                    torch.manual_seed((run.seed << 32) + cursor.batch)
                    last = number == per_process - 1
                    with self._maybe_sync(last), torch.autocast("cuda", torch.bfloat16, self.cuda):
                        loss, report = self.module(**inputs)
                        self.accelerator.backward(loss / per_process)
                    if epoch == 0:
                        self.meter.add(report)
                if run.max_grad_norm:
                    torch.nn.utils.clip_grad_norm_(self.learner.parameters(), run.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        for batch, _ in batches:
            self.meter.count(*objective.cost(batch))
        state.step += 1
        state.cursor = batches[-1][1]
        update_average(self.average, self.learner, run.ema, state.step)

    def _maybe_sync(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.accelerator.no_sync(self.module)

    def _first_step(self, seconds: float | None) -> None:
        """Say how long the first step of this session took."""
        if seconds is None:
            return
        too_slow = self.run.minutes is not None and seconds > self.run.minutes * 60
        self._print(f"first step: {seconds:.1f} s" + (", longer than the run: use smaller batches" if too_slow else ""))

    def _agree(self, done: float, log_due: bool, stop: bool) -> tuple[float, bool, bool]:
        """Broadcast the first process's values to all processes."""
        if self.world == 1:
            return done, log_due, stop
        from accelerate.utils import broadcast_object_list

        values: list[Any] = [done, log_due, stop]
        broadcast_object_list(values)
        return values[0], values[1], values[2]

    @contextmanager
    def _stop_on_signal(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the current step, with a checkpoint; a second Ctrl-C ends it at once."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
            yield
            return

        def ask(number: int, frame: object) -> None:
            self.stop_asked = True
            signal.signal(signal.SIGINT, signal.default_int_handler)

        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _log(self, done: float) -> None:
        reading = self.meter.read(self.accelerator)
        reports = dict(zip(self.objective.reports, reading.reports, strict=True))
        rate = self.run.learning_rate
        for name, value in reports.items():
            if not math.isfinite(value):
                message = f"{rate}: the {name} is {value} at step {self.state.step}; use a lower one"
                raise InputError(message, "learning_rate", type(self.run))
        entry = {
            "step": self.state.step,
            "epoch": self.state.cursor.epoch,
            **reports,
            "learning_rate": rate * rate_factor(self.run, self.state.step, done),
            f"{self.objective.unit}_per_second": reading.units_per_second,
            "share_of_peak": reading.share_of_peak,
        }
        parts = [f"step {self.state.step}", *(f"{name} {reports[name]:.3f}" for name in self.objective.shown)]
        parts += [
            f"{_thousands(reading.units_per_second)} {self.objective.unit}/s",
            f"{reading.share_of_peak:.0%} of peak",
        ]
        self.note = "  ".join(parts)
        self._record(entry)
        self.logged_at = time.monotonic()
        if not progress.console.is_terminal and self.logged_at - self.printed_at > PRINT_SECONDS:
            self.printed_at = self.logged_at
            self._print(self.note)

    def _validate(self) -> None:
        state, start = self.state, time.monotonic()
        quick = self.quick or state.validated_step >= 0  # the first validation made the comparison
        state.scores = self.objective.validate(self.average, quick)
        pass_seconds = (time.monotonic() - start) / self.objective.validation_passes(quick)
        self.clock.reserve(pass_seconds * self.objective.validation_passes(quick=True))
        state.validated_step = state.step
        metric = self.objective.selection_metric(state.scores) if state.scores else float(state.step)
        if state.scores:
            self._record({"step": state.step, **state.scores})
            scores = "  ".join(f"{name} {score:.2f}" for name, score in state.scores.items())
            self._print(f"step {state.step}: {scores}")
        state.stale += 1
        if state.best is None or metric >= state.best:
            state.best, state.stale = metric if math.isfinite(metric) else None, 0
            if self.accelerator.is_main_process:
                self.objective.save(self.average, self.out)

    def _reserve_validation(self) -> None:
        """Estimate how long a validation takes if that may be long: on the CPU, in a timed run."""
        if self.run.minutes is None or self.cuda:
            return
        pass_seconds = self.objective.estimate_pass_seconds(self.average)
        long = pass_seconds * self.objective.validation_passes() > VALIDATION_SHARE * self.run.minutes * 60
        _, self.quick, _ = self._agree(0.0, long, False)
        self.clock.reserve(pass_seconds * self.objective.validation_passes(self.quick))

    def _record(self, entry: dict[str, float]) -> None:
        if not self.accelerator.is_main_process:
            return
        append_to_log(self.out, {**entry, "seconds": round(self.clock.seconds, 2)})
        if self.run.track != "none":
            self.accelerator.log({key: value for key, value in entry.items() if key != "step"}, step=int(entry["step"]))

    def _print(self, line: str) -> None:
        if self.accelerator.is_main_process:
            progress.console.print(line, highlight=False, soft_wrap=True)

    def _save(self, at_least_seconds: float = 0.0) -> None:
        """Write a checkpoint of this step, unless there is one: a complete checkpoint is never changed."""
        if self.saved_step == self.state.step:
            return
        self.state.seconds = max(self.clock.seconds, at_least_seconds)
        if self.accelerator.is_main_process:
            save_state(self.out, self.state, self.learner, self.average, self.optimizer, self._fingerprint())
        self.saved_step = self.state.step
        self.accelerator.wait_for_everyone()

    def _fingerprint(self) -> dict[str, object]:
        """What must be the same when the run is resumed."""
        return {
            **self.objective.fingerprint(),
            "batches_per_step": self.run.batches_per_step,
            "seed": self.run.seed,
        }

    def _settings(self) -> dict[str, object]:
        """What may change when the run is resumed, but not silently."""
        names = ("learning_rate", "warmup", "decay_from", "weight_decay", "max_grad_norm", "ema")
        return {name: getattr(self.run, name) for name in names}

    def _resume(self) -> None:
        fingerprint, defaults = self._fingerprint(), self.objective.fingerprint_defaults()
        loaded = load_latest(self.out, self.learner, self.average, self.optimizer, fingerprint, defaults)
        if loaded:
            self._check_cursor(loaded)
            self.state = loaded
            self.saved_step = loaded.step
            self._print(f"continuing from step {loaded.step}")
            for change in describe_changes(loaded.settings, self._settings()):
                self._print(f"changed: {change}")
            loaded.settings = self._settings()

    def _check_cursor(self, state: RunState) -> None:
        """The data must continue where the last step ended: from much further back, catching up would take forever."""
        taken, per_step = state.step * self.run.batches_per_step, self.run.batches_per_step
        if not taken - per_step < state.cursor.batch <= taken:
            file = checkpoints(self.out)[-1] / STATE
            raise InputError(f"{file}: cursor.batch: {state.cursor.batch}, which does not fit step {state.step}")

    def _look_for_result(self) -> None:
        """If the best result so far is gone, the next validation writes one, even if there is nothing left to train."""
        lost = self.state.best is not None and not (self.out / self.objective.folder).is_dir()
        _, lost, _ = self._agree(0.0, lost, False)
        if lost:
            self._print(f"{self.out / self.objective.folder} is gone: the next validation writes it again")
            self.state.best, self.state.validated_step = None, -1


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    return {key: item if isinstance(item, int | float | str | bool) else str(item) for key, item in config.items()}


def _thousands(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.3g}"

"""One training loop for every objective: Accelerate, schedule, EMA, checkpoints, resume, progress, trackers.

It knows about steps and weights, not about what is learned. An `Objective` provides batches, a loss and a validation.
"""

import math
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from anyorder import progress
from anyorder.device import join_processes, report_lost_process
from anyorder.errors import InputError
from anyorder.training.clock import Clock, Meter
from anyorder.training.config import TrainConfig
from anyorder.training.interruption import Interrupter, Interruption
from anyorder.training.objective import Objective
from anyorder.training.optimizer import make_optimizer, rate_factor, set_rate, update_average
from anyorder.training.run_folder import (
    STATE,
    Cursor,
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
GRACE_SECONDS = 3.0
"""How late a step may end, and then the last validation, in a run of some minutes, before it is interrupted."""
LOG_SECONDS = 10
"""How often to log a slow run, even before `log_every` steps are done."""
Value = TypeVar("Value")
_KEPT: list["_Loop"] = []
"""Keeps the loops of distributed runs alive until this process ends. With the last one, PyTorch's process group would
be destroyed, which waits for its threads; if one of them is waiting for the GIL, as happens rarely, both deadlock."""


@dataclass(frozen=True)
class TrainResult:
    """A trained model."""

    model: Path
    """The folder of the model that did best in validation; pass it to `load`."""
    scores: dict[str, float]
    """Scores of the last validation, by name; empty if the store has no split for it."""
    steps: int
    """Number of training steps."""
    finished: bool
    """False if a signal stopped the run. It can be resumed, and there may be no model yet."""


def begin_run(run: TrainConfig, out: Path, resume: bool) -> torch.device:
    """Check what can be checked before anything is loaded, and join the other processes; returns the device."""
    if run.steps is None and run.minutes is None:  # a default config does not say
        raise InputError("is missing: say how long to train, in steps or in minutes", "steps", type(run))
    device = run.resolve_device()
    check_run_folder(out, resume)
    join_processes(device)
    return device


def run_training(
    objective: Objective[Any], run: TrainConfig, out: Path, resume: bool, began: float | None = None
) -> TrainResult:
    """Train, and write the result into `out`: the averaged weights with the best validation.

    began: when the run's time began, by `time.monotonic`; by default now.
    """
    began = time.monotonic() if began is None else began
    with open_run_folder(out, resume), report_lost_process():
        loop = _Loop(objective, run, out, resume, began)
        if loop.world > 1:
            _KEPT.append(loop)
        return loop.go()


class _Loop:
    def __init__(self, objective: Objective[Any], run: TrainConfig, out: Path, resume: bool, began: float):
        self.objective, self.run, self.out = objective, run, out
        self.cuda = run.resolve_device().type == "cuda"
        tracker = None if run.track == "none" else run.track
        self.accelerator = Accelerator(cpu=not self.cuda, log_with=tracker, project_dir=str(out))
        self.world, self.rank = self.accelerator.num_processes, self.accelerator.process_index
        if run.batches_per_step % self.world:
            raise InputError(
                f"{run.batches_per_step}: cannot be shared by {self.world} processes", "batches_per_step", type(run)
            )
        self.accelerator.gradient_accumulation_steps = run.batches_per_step // self.world
        self.learner = objective.learner.to(self.accelerator.device).train()
        self.average = deepcopy(self.learner).eval().requires_grad_(False)
        self.optimizer = make_optimizer(self.learner, run, self.cuda, objective.rate_scales())
        # What may change when the run is resumed, but not silently.
        names = ("learning_rate", "warmup", "decay_from", "weight_decay", "max_grad_norm", "ema")
        self.state = RunState(settings={name: getattr(run, name) for name in names})
        shared = {"batches_per_step": run.batches_per_step, "seed": run.seed}
        self.fingerprint = {**objective.fingerprint(), **shared}
        """What must be the same when the run is resumed."""
        self.saved_step = self.saved_validated_step = -1
        """The step of the last checkpoint, and the last validated one when it was written."""
        self.interrupter = Interrupter()
        self.ends_in_time = False
        """Steps and validations that take too long are interrupted."""
        if resume:
            self._resume()
        objective.module.to(self.accelerator.device).train()
        if objective.compiles and (run.compile == "yes" or (run.compile == "auto" and self.cuda)):
            objective.module.compile(dynamic=False)
        self.module = self.accelerator.prepare_model(objective.module)
        self.meter = Meter(self.accelerator.device, len(objective.reports))
        spent = self.state.seconds + time.monotonic() - began
        self.clock = Clock(run.steps, run.minutes, spent, first_step_counts=not self.cuda)
        self.logged_at = self.printed_at = time.monotonic()
        """When the log and the screen had their last line."""
        self.note_printed_at = -math.inf
        self.doing = ""
        """The step in progress, or the one that is validated."""
        self.quick = False
        """Validations skip scores that are only for comparison, because there is too little time."""
        if self.world == 1 and not self.cuda:
            for parameter in self.learner.parameters():  # a function of Python, so that signals are noticed here, too
                if parameter.requires_grad:
                    parameter.register_hook(lambda gradient: None)

    def go(self) -> TrainResult:
        run, state = self.run, self.state
        self._start_tracker()
        if self.accelerator.is_main_process:
            truncate_log(self.out, state.step, state.validated_step)
        self._look_for_result()
        first = state.step * run.batches_per_step
        batches = prefetch(self.objective.batches(state.cursor, first, self.rank, self.world))
        total = run.steps if run.steps is not None else (run.minutes or 0) * 60
        is_over = True
        try:
            with self.interrupter.listening(), progress.bar("training", total) as bar:
                self.objective.on_progress = partial(self._show, bar)
                try:
                    is_over = self._train(batches, bar)
                except Interruption:  # the state is that of the last step that was finished
                    self.interrupter.close()
                    is_over = not self.interrupter.stop_asked
                if is_over:
                    is_over = self._finish()
        finally:
            batches.close()
        if is_over:
            # A run that stopped slightly early to stay within its minutes counts as having used them: it is finished.
            self._save(run.minutes * 60 if run.minutes is not None and state.stale < self.patience else 0.0)
            self.accelerator.end_training()
        else:
            self._save()
            self._print(f"stopped at step {state.step}; a checkpoint is written")
        return TrainResult(self.out / self.objective.folder, dict(state.scores), state.step, finished=is_over)

    @property
    def patience(self) -> float:
        return self.run.patience or math.inf

    def _train(self, batches: Iterator[tuple[Any, Cursor]], bar: progress.Bar) -> bool:
        """Train until the run is over or a signal stops it; returns whether it is over."""
        run, state, clock = self.run, self.state, self.clock
        done = self._agree(clock.progress(state.step))
        over = done >= 1 or state.stale >= self.patience
        if over and self.saved_step == state.validated_step == state.step:
            self._print(f"already finished at step {state.step}")
        is_new = self.saved_step < 0  # at least one step is begun
        self.ends_in_time = run.minutes is not None and self._is_interruptible and (is_new or not over)
        self._reserve_validation()
        stopping = False
        if self._validates_at(state.step) and not over and state.validated_step < state.step:
            self._validate()  # the session before this one was interrupted here
            self._save()
        clock.start()
        while (done < 1 or (state.step == 0 and is_new)) and not stopping and state.stale < self.patience:
            self._step(batches, done)
            first_step = clock.step_done()
            if first_step is not None:
                too_slow = run.minutes is not None and first_step > run.minutes * 60
                advice = ", longer than the run: use smaller batches" if too_slow else ""
                self._print(f"first step: {first_step:.1f} s{advice}")
            at_log = state.step % run.log_every == 0
            # Agreeing takes a message between processes; a fast step on CUDA does not wait for one.
            if at_log or self.world == 1 or not self.cuda:
                slow = time.monotonic() - self.logged_at > LOG_SECONDS
                asked = self.interrupter.stop_asked
                done, slow, stopping = self._agree((clock.progress(state.step), slow, asked))
                at_log = at_log or slow
            elif run.steps is not None:
                done = clock.progress(state.step)
            if at_log or done >= 1:
                note = self._log(done)
                state.seconds = clock.seconds
                bar.set(state.step if run.steps is not None else state.seconds, note)
            at_validation = self._validates_at(state.step)
            with clock.paused():
                if at_validation:
                    self._validate()
                if run.save_every and state.step % run.save_every == 0 and done < 1:
                    self._save()
            if at_validation and done < 1 and run.minutes is not None:
                done = self._agree(clock.progress(state.step))
                if done >= 1 and not at_log:
                    self._log(done)
        return not stopping

    def _validates_at(self, step: int) -> bool:
        return step > 0 and bool(self.run.validate_every) and step % self.run.validate_every == 0

    def _finish(self) -> bool:
        """The last validation; returns False if a signal stopped it."""
        state, kind = self.state, self.objective.folder
        if state.step and state.validated_step != state.step:
            try:
                self._validate()
            except Interruption:
                self.interrupter.close()
                if self.interrupter.stop_asked:
                    return False
        if state.validated_step == state.step:
            return True
        if state.step == 0:
            self._print(f"no step was finished: the {kind} is its start; use smaller batches or more time")
        elif state.best is None:
            self._print(f"the time was over before step {state.step} was validated: the {kind} is that of this step")
        else:
            self._print(f"the time was over before step {state.step} was validated: the {kind} is the best before it")
        if state.best is None and self.accelerator.is_main_process:
            self.objective.save(self.average, self.out)
        return True

    @property
    def _is_interruptible(self) -> bool:
        """Whether steps and validations can be ended at any moment. Processes that share a run end between steps, all
        at the same one."""
        return self.world == 1

    def _interruptible(self, late: float) -> AbstractContextManager[None]:
        """What may take long and changes nothing that is saved. late: how many seconds too late it may end."""
        if not self._is_interruptible:
            return nullcontext()
        return self.interrupter.interruptible(self.clock.seconds_left + late if self.ends_in_time else None)

    def _interruptible_step(self) -> AbstractContextManager[None]:
        """On CUDA, steps are short, and signals wait for their end."""
        reserved = self.clock.reserved if self.state.step else 0.0  # there is nothing to validate before the first one
        return nullcontext() if self.cuda else self._interruptible(GRACE_SECONDS - reserved)

    def _start_tracker(self) -> None:
        config = {name: "None" if value is None else value for name, value in asdict(self.run).items()}
        try:
            self.accelerator.init_trackers("anyorder", config)
        except Exception as error:  # trackers raise their own, the network's and the file system's errors
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            message = f"{self.run.track}: cannot be started ({reason})"
            raise InputError(message, "track", type(self.run)) from None

    def _step(self, source: Iterator[tuple[Any, Cursor]], done: float) -> None:
        run, state, objective = self.run, self.state, self.objective
        self.doing = f"step {state.step + 1}"
        batches = [next(source) for _ in range(self.accelerator.gradient_accumulation_steps)]
        with self._interruptible_step():
            minibatches = [objective.minibatches(batch, self.accelerator.device) for batch, _ in batches]
        set_rate(self.optimizer, run.learning_rate * rate_factor(run, state.step, done))
        several = objective.epochs * len(minibatches[0]) > 1 and self._is_interruptible and not self.cuda
        before = deepcopy((self.learner.state_dict(), self.optimizer.state_dict())) if several else None
        try:
            for epoch in range(objective.epochs):
                for of_each_batch in zip(*minibatches, strict=True):
                    with self._interruptible_step():
                        self._add_gradients(list(zip(batches, of_each_batch, strict=True)), report=epoch == 0)
                    if run.max_grad_norm:
                        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), run.max_grad_norm)
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)
        except Interruption:
            self.interrupter.close()
            if before is not None:
                self.learner.load_state_dict(before[0])
                self.optimizer.load_state_dict(before[1])
            raise
        for batch, _ in batches:
            self.meter.count(*objective.cost(batch))
        state.step += 1
        state.cursor = batches[-1][1]
        update_average(self.average, self.learner, run.ema, state.step)

    def _add_gradients(self, minibatches: list[tuple[tuple[Any, Cursor], dict[str, Any]]], report: bool) -> None:
        for (_, cursor), inputs in minibatches:
            # Dropout depends only on the batch, not on the process or on what ran before.
            torch.manual_seed((self.run.seed << 32) + cursor.batch)
            with self.accelerator.accumulate(self.module), torch.autocast("cuda", torch.bfloat16, self.cuda):
                loss, reports = self.module(**inputs)
                self.accelerator.backward(loss)
            if report:
                self.meter.add(reports)

    def _agree(self, value: Value) -> Value:
        """The first process's value, in all processes."""
        values = [value]
        if self.world > 1:
            broadcast_object_list(values)
        return values[0]

    def _log(self, done: float) -> str:
        """Log the means since the last entry; returns the text of the progress bar."""
        run, step, unit = self.run, self.state.step, self.objective.unit
        means, speed, share_of_peak = self.meter.read(self.accelerator, self.clock)
        reports = dict(zip(self.objective.reports, means, strict=True))
        for name, value in reports.items():
            if not math.isfinite(value):
                message = f"{run.learning_rate}: the {name} is {value} at step {step}; use a lower one"
                raise InputError(message, "learning_rate", type(run))
        entry = {
            "step": step,
            "epoch": self.state.cursor.epoch,
            **reports,
            "learning_rate": run.learning_rate * rate_factor(run, step, done),
            f"{unit}_per_second": speed,
            "share_of_peak": share_of_peak,
        }
        shown = [f"{name} {reports[name]:.3f}" for name in self.objective.shown]
        note = "  ".join([f"step {step}", *shown, f"{_thousands(speed)} {unit}/s", f"{share_of_peak:.0%} of peak"])
        self._record(entry)
        self.logged_at = time.monotonic()
        if not progress.console.is_terminal and self.logged_at - self.note_printed_at > PRINT_SECONDS:
            self.note_printed_at = self.logged_at
            self._print(note)
        return note

    def _validate(self) -> None:
        state, start = self.state, time.monotonic()
        self.doing = f"step {state.step}"
        quick = self.quick or state.validated_step >= 0  # the first validation made the comparison
        with self._interruptible(2 * GRACE_SECONDS):
            found = self.objective.validate(self.average, quick)
        state.scores = found
        self.clock.reserve((time.monotonic() - start) / (1 if quick else 1 + self.objective.comparisons))
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
        objective, validations = self.objective, list(self.objective.validations.values())
        if self.run.minutes is None or self.cuda or not validations:
            return
        with self._interruptible_step():
            pass_seconds = validations[0].estimate_seconds(*objective.validation_order(self.average))
        seconds = pass_seconds * len(validations)
        whole = seconds * (1 + objective.comparisons)
        self.quick = self._agree(whole > VALIDATION_SHARE * self.run.minutes * 60)
        self.clock.reserve(seconds if self.quick else whole)

    def _record(self, entry: dict[str, float]) -> None:
        if not self.accelerator.is_main_process:
            return
        append_to_log(self.out, {**entry, "seconds": round(self.clock.seconds, 2)})
        self.accelerator.log({key: value for key, value in entry.items() if key != "step"}, step=int(entry["step"]))

    def _print(self, line: str) -> None:
        self.printed_at = time.monotonic()
        progress.say(line)

    def _show(self, bar: progress.Bar, text: str) -> None:
        """What goes on inside of a step or a validation that takes long."""
        bar.set(self.state.step if self.run.steps is not None else self.clock.seconds, f"{self.doing}  {text}")
        if not progress.console.is_terminal and time.monotonic() - self.printed_at > LOG_SECONDS:
            self._print(f"{self.doing}: {text}")

    def _save(self, at_least_seconds: float = 0.0) -> None:
        """Write a checkpoint of this step, unless there is one that is as good."""
        if (self.saved_step, self.saved_validated_step) == (self.state.step, self.state.validated_step):
            return
        self.state.seconds = max(self.clock.seconds, at_least_seconds)
        if self.accelerator.is_main_process:
            save_state(self.out, self.state, self.learner, self.average, self.optimizer, self.fingerprint)
        self.saved_step, self.saved_validated_step = self.state.step, self.state.validated_step
        self.accelerator.wait_for_everyone()

    def _resume(self) -> None:
        loaded = load_latest(self.out, self.learner, self.average, self.optimizer, self.fingerprint)
        if loaded is None:
            return
        # The data must continue where the last step ended: from much further back, catching up would take forever.
        per_step = self.run.batches_per_step
        if not (loaded.step - 1) * per_step < loaded.cursor.batch <= loaded.step * per_step:
            file = checkpoints(self.out)[-1] / STATE
            raise InputError(f"{file}: cursor.batch: {loaded.cursor.batch}, which does not fit step {loaded.step}")
        self._print(f"continuing from step {loaded.step}")
        for change in describe_changes(loaded.settings, self.state.settings):
            self._print(f"changed: {change}")
        loaded.settings = self.state.settings
        self.state = loaded
        self.saved_step, self.saved_validated_step = loaded.step, loaded.validated_step

    def _look_for_result(self) -> None:
        """If the best result so far is gone, the next validation writes one, even if there is nothing left to train."""
        result = self.out / self.objective.folder
        if self._agree(self.state.best is not None and not result.is_dir()):
            self._print(f"{result} is gone: the next validation writes it again")
            self.state.best, self.state.validated_step = None, -1


def _thousands(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.3g}"


def prefetch(items: Iterator[Value], depth: int = 4) -> Generator[Value, None, None]:
    """The items of an endless iterator that runs in a thread, a few of them ahead of their reader.

    Closing it waits for the thread to end: one that is still running when Python exits can crash the process.
    """
    executor = ThreadPoolExecutor(1)
    try:
        ahead = deque(executor.submit(next, items) for _ in range(depth))
        while True:
            ahead.append(executor.submit(next, items))
            yield ahead.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)

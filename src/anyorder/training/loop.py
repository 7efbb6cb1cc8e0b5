"""One training loop for every objective: Accelerate, schedule, EMA, checkpoints, resume, progress, trackers.

It knows steps and weights, not what is learned. A `Task` brings batches, a loss and a validation.
"""

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from anyorder import progress
from anyorder.errors import InputError
from anyorder.files import remove_leftovers
from anyorder.training.batches import Cursor, Prefetcher
from anyorder.training.run_state import RunState, changes, load_latest, save_state
from anyorder.training.task import Run, Task, on_cuda

TELL_SECONDS = 30


def train(task: Task[Any], run: Run, out: Path, resume: bool) -> dict[str, float]:
    """Train, write the result into `out` (averaged weights, best validation) and return the last scores."""
    return _Loop(task, run, out, resume).go()


class _Loop:
    def __init__(self, task: Task[Any], run: Run, out: Path, resume: bool):
        run.check()
        self.task, self.run, self.out = task, run, out
        self.cuda = on_cuda(run)
        tracker = None if run.track == "none" else run.track
        self.accelerator = Accelerator(cpu=not self.cuda, log_with=tracker, project_dir=str(out))
        self.world, self.rank = self.accelerator.num_processes, self.accelerator.process_index
        if run.batches_per_step % self.world:
            raise InputError(
                f"--run.batches-per-step {run.batches_per_step} cannot be shared by {self.world} processes"
            )
        self.learner = task.learner.to(self.accelerator.device).train()
        self.average = deepcopy(self.learner).eval().requires_grad_(False)
        self.optimizer = _adamw(self.learner, run, self.cuda)
        self.state = RunState(settings=self._settings())
        self.began = 0.0
        """When it would have begun, had it run without a break."""
        self.saved = -1
        """The step of the last checkpoint."""
        if resume:
            self._resume()
        task.module.to(self.accelerator.device).train()
        if task.compiles and (run.compile == "yes" or (run.compile == "auto" and self.cuda)):
            task.module.compile(dynamic=False)
        self.module = self.accelerator.prepare_model(task.module)
        self.stop_asked = False
        """A signal came to this process."""
        self.stopping = False
        """All processes know."""

    def go(self) -> dict[str, float]:
        run, state = self.run, self.state
        self._start_tracker()
        if self.accelerator.is_main_process:
            self.out.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.out)
            _truncate_log(self.out / "log.jsonl", state.step)
        peak = peak_flops(self.accelerator.device)
        first = state.step * run.batches_per_step
        source = Prefetcher(self.task.batches(state.cursor, first, self.rank, self.world))
        total = run.steps if run.steps is not None else (run.minutes or 0) * 60
        meter = _Meter(self.accelerator.device, len(self.task.reports))
        patience = run.patience or math.inf
        self.began = time.monotonic() - state.seconds
        try:
            with self._stop_on_signal(), progress.bar("training", total) as bar:
                done = self._progress()
                if self.saved == state.step and (done >= 1 or state.stale >= patience):
                    self._say(f"already finished at step {state.step}")
                while done < 1 and not self.stopping and state.stale < patience:
                    self._step(source, meter, done)
                    at_log = state.step % run.log_every == 0
                    if at_log or run.steps is not None:
                        done = self._progress()
                    if at_log or done >= 1:
                        self._log(meter, peak, done)
                        state.seconds = time.monotonic() - self.began
                        bar.set(state.step if run.steps is not None else state.seconds, meter.note)
                    if at_log or self.world == 1:
                        self.stopping = bool(self._same(float(self.stop_asked)))
                    with meter.paused():
                        if run.validate_every and state.step % run.validate_every == 0:
                            self._validate()
                        if run.save_every and state.step % run.save_every == 0 and done < 1:
                            self._save()
        finally:
            source.close()
        if self.stopping:
            self._save()
            self._say(f"stopped at step {state.step}; continue with --resume")
            return dict(state.scores)
        if state.validated != state.step:
            self._validate()
        self._save()
        self.accelerator.end_training()
        return dict(state.scores)

    def _start_tracker(self) -> None:
        if self.run.track == "none":
            return
        try:
            self.accelerator.init_trackers("anyorder", config=_flat(asdict(self.run)))
        except Exception as error:  # trackers raise their own, the network's and the file system's errors
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"--run.track {self.run.track}: cannot be started ({reason})") from None

    def _step(self, source: Prefetcher[tuple[Any, Cursor]], meter: "_Meter", done: float) -> None:
        run, state, task = self.run, self.state, self.task
        share = run.batches_per_step // self.world
        batches = [next(source) for _ in range(share)]
        gathered = [task.gather(batch, self.accelerator.device) for batch, _ in batches]
        rate = run.learning_rate * _schedule(run, state.step, done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for epoch in range(task.epochs):
            for parts in zip(*gathered, strict=True):
                for number, ((_, cursor), inputs) in enumerate(zip(batches, parts, strict=True)):
                    # Dropout belongs to the batch, not to the process or to what ran before.
                    torch.manual_seed((run.seed << 32) + cursor.batch)
                    with self._maybe_sync(last=number == share - 1), torch.autocast("cuda", torch.bfloat16, self.cuda):
                        loss, report = self.module(**inputs)
                        self.accelerator.backward(loss / share)
                    if epoch == 0:
                        meter.add(report)
                if run.clip:
                    torch.nn.utils.clip_grad_norm_(self.learner.parameters(), run.clip)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        for batch, _ in batches:
            meter.count(*task.cost(batch))
        state.step += 1
        state.cursor = batches[-1][1]
        _move_average(self.average, self.learner, run.ema, state.step)

    def _maybe_sync(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.accelerator.no_sync(self.module)

    def _progress(self) -> float:
        if self.run.steps is not None:
            return self.state.step / self.run.steps
        assert self.run.minutes is not None
        return self._same((time.monotonic() - self.began) / (self.run.minutes * 60))

    def _same(self, value: float) -> float:
        """The first process's value, in all of them."""
        if self.world == 1:
            return value
        from accelerate.utils import broadcast_object_list

        shared = [value]
        broadcast_object_list(shared)
        return shared[0]

    @contextmanager
    def _stop_on_signal(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the current step, with a checkpoint; a second Ctrl-C ends it at once."""

        def ask(number: int, frame: object) -> None:
            self.stop_asked = True
            signal.signal(signal.SIGINT, signal.default_int_handler)

        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _log(self, meter: "_Meter", peak: float, done: float) -> None:
        numbers = meter.read(self.accelerator, peak, self.world)
        names = dict(zip(self.task.reports, numbers.reports, strict=True))
        first = self.task.reports[0]
        if not math.isfinite(names[first]):
            raise InputError(f"the {first} is {names[first]} at step {self.state.step}: lower --run.learning-rate")
        entry = {
            "step": self.state.step,
            "epoch": self.state.cursor.epoch,
            **names,
            "learning_rate": self.run.learning_rate * _schedule(self.run, self.state.step, done),
            f"{self.task.unit}_per_second": numbers.units_per_second,
            "share_of_peak": numbers.share_of_peak,
        }
        parts = [f"step {self.state.step}", *(f"{name} {names[name]:.3f}" for name in self.task.shown)]
        parts += [f"{_thousands(numbers.units_per_second)} {self.task.unit}/s", f"{numbers.share_of_peak:.0%} of peak"]
        meter.note = "  ".join(parts)
        self._record(entry)
        if not progress.console.is_terminal and time.monotonic() - meter.told > TELL_SECONDS:
            meter.told = time.monotonic()
            self._say(meter.note)

    def _validate(self) -> None:
        state = self.state
        state.scores = self.task.validate(self.average)
        state.validated = state.step
        selection_metric = self.task.selection_metric(state.scores) if state.scores else float(state.step)
        if state.scores:
            self._record({"step": state.step, **state.scores})
            self._say(f"step {state.step}: " + "  ".join(f"{name} {score:.2f}" for name, score in state.scores.items()))
        state.stale += 1
        if selection_metric >= state.best:
            state.best, state.stale = selection_metric, 0
            if self.accelerator.is_main_process:
                self.task.save(self.average, self.out)

    def _record(self, entry: dict[str, float]) -> None:
        if not self.accelerator.is_main_process:
            return
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({**entry, "seconds": round(time.monotonic() - self.began, 2)}) + "\n")
        if self.run.track != "none":
            self.accelerator.log({key: value for key, value in entry.items() if key != "step"}, step=int(entry["step"]))

    def _say(self, line: str) -> None:
        if self.accelerator.is_main_process:
            progress.console.print(line, highlight=False, soft_wrap=True)

    def _save(self) -> None:
        """A checkpoint of this step, unless there is one: a complete one is never touched again."""
        if self.saved == self.state.step:
            return
        self.state.seconds = time.monotonic() - self.began
        if self.accelerator.is_main_process:
            save_state(self.out, self.state, self.learner, self.average, self.optimizer, self._fingerprint())
        self.saved = self.state.step
        self.accelerator.wait_for_everyone()

    def _fingerprint(self) -> dict[str, object]:
        same = {name: getattr(self.run, name) for name in ("batches_per_step", "seed")}
        return {**self.task.fingerprint(), **same}

    def _settings(self) -> dict[str, object]:
        """What may be changed when a run is resumed, but not without a word."""
        names = ("learning_rate", "warmup", "decay_from", "weight_decay", "clip", "ema")
        return {name: getattr(self.run, name) for name in names}

    def _resume(self) -> None:
        loaded = load_latest(self.out, self.learner, self.average, self.optimizer, self._fingerprint())
        if loaded:
            self.state = loaded
            self.saved = loaded.step
            self._say(f"continuing from step {loaded.step}")
            for change in changes(loaded.settings, self._settings()):
                self._say(f"changed: {change}")
            loaded.settings = self._settings()


@dataclass
class _Reading:
    reports: list[float]
    units_per_second: float
    share_of_peak: float


class _Meter:
    """Sums on the device between two entries of the log; the host looks only then."""

    def __init__(self, device: torch.device, reports: int):
        self._zero = torch.zeros(reports, device=device)
        self.note = ""
        """What the progress bar says."""
        self.told = 0.0
        """When it was last printed as a line, where there is no bar."""
        self._start()

    def _start(self) -> None:
        self._sum = self._zero.clone()
        self._count = 0
        self._units = 0
        self._flops = 0.0
        self._since = time.monotonic()

    def add(self, report: Tensor) -> None:
        self._sum += report
        self._count += 1

    def count(self, units: int, flops: float) -> None:
        self._units += units
        self._flops += flops

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is not training: its time does not count."""
        start = time.monotonic()
        yield
        self._since += time.monotonic() - start

    def read(self, accelerator: Accelerator, peak: float, world: int) -> _Reading:
        total = accelerator.reduce(self._sum, "sum") / (self._count * world)
        reports = total.tolist()  # waits for the device, so the clock below is honest
        seconds = time.monotonic() - self._since
        reading = _Reading(reports, self._units * world / seconds, self._flops / seconds / peak)
        self._start()
        return reading


def peak_flops(device: torch.device) -> float:
    """What a large matrix product reaches on this device, in the precision of training."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a = torch.randn(size, size, device=device, dtype=dtype)
    best = 0.0
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def _adamw(model: nn.Module, run: Run, cuda: bool) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": run.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, 0.98), eps=1e-8, fused=cuda or None)


def _schedule(run: Run, step: int, done: float) -> float:
    """Linear warm-up, then flat, then linearly down to zero at the end."""
    warm = min(1.0, (step + 1) / max(1, run.warmup))
    left = min(1.0, (1 - min(done, 1.0)) / max(1e-9, 1 - run.decay_from))
    return warm * left


@torch.no_grad()
def _move_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    # Early on the average follows closely, or the random start would stay in it for long.
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


def _truncate_log(file: Path, step: int) -> None:
    """Forget entries of steps that will be taken again."""
    if not file.exists():
        return
    kept = [line for line in file.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
    file.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except ValueError:  # the line that was being written when the run was killed
        return math.inf


def _flat(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item if isinstance(item, int | float | str | bool) else str(item) for key, item in value.items()}


def _thousands(value: float) -> str:
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.1f}k"

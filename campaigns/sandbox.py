"""Run the command in forked processes with limits on time and memory, and say what is wrong with how one ended.

The parent has imported everything and has never computed anything, so that a fork is cheap and safe.
"""

import atexit
import gc
import multiprocessing
import multiprocessing.util
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import NoReturn

SECONDS = 20.0
"""A command that takes longer hangs."""
BYTES = 4 << 30
"""A command that needs more memory has asked for too much."""
GRACE = 3.0
"""So many seconds after a command its processes have ended as well."""
SIGNAL_CODES = (130, 143, -signal.SIGTERM)
"""How a command ends that was asked to stop."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit code; negative if a signal ended it."""
    seconds: float
    megabytes: float
    hung: bool
    stopped: bool
    """Whether it was asked to stop."""
    stdout: str
    stderr: str
    left: str
    """The command of a process that it left behind."""

    def fault(self, shows_progress: bool = False) -> str:
        """What is wrong; empty if all is well. With `shows_progress` other lines may precede that of an error."""
        if self.hung:
            return f"hangs: not done after {SECONDS:g} s"
        for name, text in (("standard error", self.stderr), ("standard output", self.stdout)):
            if "Traceback (most recent call last)" in text:
                return f"traceback on {name}: {cause(text)}"
        if self.megabytes > BYTES >> 20:
            return f"takes {self.megabytes:,.0f} MB"
        if self.code not in (0, 2) and not (self.stopped and self.code in SIGNAL_CODES):
            return f"exit code {self.code}: {_last_line(self.stderr)}"
        if "Exception ignored" in self.stderr:
            return f"exception ignored: {_last_line(self.stderr)}"
        if self.left:
            return f"leaves a process behind: {self.left[:200]}"
        return _line_fault(self.stderr, shows_progress) if self.code == 2 else ""


def cause(text: str) -> str:
    """The last line of a traceback and where in anyorder it was raised: equal for failures with one cause."""
    frames = re.findall(r'File "[^"]*/src/anyorder/([^"]+)", line (\d+), in (\S+)', text)
    errors = [
        line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit|Warning)?\b.*", line)
    ]
    place = "{} line {} in {}".format(*frames[-1]) if frames else "no line of anyorder"
    return f"{place}: {(errors[-1] if errors else '?')[:160]}"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:200] if text.strip() else "nothing on standard error"


def _line_fault(stderr: str, shows_progress: bool) -> str:
    lines = stderr.splitlines()
    if not lines or not stderr.endswith("\n"):
        return "exit code 2 without a line on standard error"
    if not lines[-1].startswith("anyorder"):
        return f"exit code 2, but the last line is {lines[-1][:160]!r}"
    if len(lines) > 1 and not shows_progress:
        return f"exit code 2 with {len(lines)} lines, the first is {lines[0][:160]!r}"
    if len(lines[-1]) > 20_000:
        return f"exit code 2 with a line of {len(lines[-1]):,} characters"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", lines[-1]):
        return f"exit code 2 with control characters in its line: {lines[-1][:160]!r}"
    return ""


def import_everything() -> None:
    """Import what any verb needs, once, before the first fork."""
    import accelerate  # noqa: F401
    import matplotlib
    import sacrebleu  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch

    import anyorder.app.server
    import anyorder.models.native.storage
    import anyorder.report.html
    import anyorder.report.plots  # noqa: F401
    from anyorder.cli import VERBS, verb_function

    matplotlib.use("agg")
    torch.set_num_threads(1)
    for verb in VERBS:
        verb_function(verb)


def import_modules(names: Iterable[str]) -> None:
    """Import what commands were seen to import late, so that no fork imports it again."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # some exist only inside of others
                import_module(name)
    gc.collect()
    gc.freeze()


class Process:
    """A command that runs in a folder, in a session of its own."""

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        before: Callable[[], None] = lambda: None,
        stdout: str = "",
        quick_workers: bool = True,
    ):
        """Start it.

        Args:
            folder: Gets the files `stdout` and `stderr`; the command runs in its subfolder `here`.
            arguments: The verb and its options.
            before: Called in the new process before the command.
            stdout: Where to print instead.
            quick_workers: Let the workers of `prepare` start as forks, so that nothing is imported again.
        """
        self.folder = folder
        self._killed = self._stopped = False
        sys.stdout.flush()
        sys.stderr.flush()
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _run(folder, arguments, before, stdout or str(folder / "stdout"), quick_workers)

    def stop(self) -> None:
        """Ask it to end, once."""
        if not self._stopped:
            self._stopped = True
            os.kill(self.pid, signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it because it hangs."""
        self._killed = True
        self.send(signal.SIGKILL)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def poll(self) -> Ended | None:
        """How it ended, or None while it runs."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not pid:
            return None
        return Ended(
            code=os.waitstatus_to_exitcode(status),
            seconds=self.seconds,
            megabytes=usage.ru_maxrss / 1024,
            hung=self._killed,
            stopped=self._stopped,
            stdout=_read(self.folder / "stdout"),
            stderr=_read(self.folder / "stderr"),
            left=_end_session(self.pid),
        )

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Wait for its end; kill it when the time is over."""
        while (ended := self.poll()) is None:
            if self.seconds > seconds and not self._killed:
                self.kill()
            time.sleep(0.002)
        return ended

    def send_after(self, seconds: float, number: signal.Signals) -> Ended | None:
        """Send a signal so many seconds after its start; how it ended if it did so before."""
        while self.seconds < seconds:
            if ended := self.poll():
                return ended
            time.sleep(0.002)
        self.send(number)
        return None


def _read(file: Path) -> str:
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        return stream.read(1 << 20).decode("utf-8", "replace")


def _end_session(group: int) -> str:
    """The command of a process of that session that outlived its leader by a while; all such processes are killed."""
    deadline = time.monotonic() + GRACE
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return ""
        if not (left := _running(group)):  # those that ended may wait for someone to hear of it
            return ""
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
            return left[0]
        time.sleep(0.01)


def _running(group: int) -> list[str]:
    """The command lines of the processes of a group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, member = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(member) == group and state != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " ").strip() or "?")
    return found


def _run(folder: Path, arguments: list[str], before: Callable[[], None], stdout: str, quick_workers: bool) -> NoReturn:
    """In the child: everything that the interpreter does around a command."""
    code = 99
    try:
        os.setsid()
        atexit._clear()  # what the campaign itself does at its end
        atexit.register(multiprocessing.util._exit_function)
        sys.modules["__main__"] = ModuleType("__main__")  # workers import the main module: not the campaign
        _redirect(stdout, folder / "stderr")
        (folder / "here").mkdir(exist_ok=True)
        os.chdir(folder / "here")
        before()
        _limit_memory()
        if quick_workers:
            start_workers_quickly(arguments)
        from anyorder.cli import main

        code = _exit_code(main, arguments)
    except BaseException:
        traceback.print_exc()
        code = 98
    finally:
        os._exit(code)


def _exit_code(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            return 120
    return code


def _redirect(stdout: str, stderr: Path) -> None:
    output = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = [(os.devnull, os.O_RDONLY), (stdout, output), (str(stderr), output)]
    for number, (name, flags) in enumerate(streams):
        descriptor = os.open(name, flags, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def start_workers_quickly(arguments: list[str]) -> None:
    """Let the processes of `prepare` start as forks: as many as there are, and nothing is imported again."""
    if any(pair in (("--workers", "1"), ("--workers", "2")) for pair in pairwise(arguments)):
        import anyorder.data.workers as workers

        if hasattr(workers, "get_context"):
            workers.get_context = lambda method=None: multiprocessing.get_context("fork")


@contextmanager
def seed_files(with_xlm: bool = True) -> Iterator[Path]:
    """The files to damage, in a temporary folder. A child makes them: this process must not compute before it forks."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="anyorder-campaign-", dir=place) as name:
        folder, modules = Path(name) / "seeds", Path(name) / "modules"
        folder.mkdir()

        def make() -> str:
            from campaigns.seed_files import write_seed_files

            _redirect(f"{name}/stdout", Path(name) / "stderr")
            write_seed_files(folder, with_xlm)
            modules.write_text("\n".join(sys.modules))
            return ""

        try:
            in_child(make)
        except ChildError as error:
            raise SystemExit(
                f"the seed files cannot be made: {error}\n{_read(Path(name) / 'stderr')[-3000:]}"
            ) from None
        import_modules(modules.read_text().split())
        yield folder


class ChildError(Exception):
    """What an exception in a child says."""


def in_child(action: Callable[[], str]) -> str:
    """What a function returns, which runs in a process of its own."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code, text = 0, ""
        try:
            text = action()
        except BaseException as error:
            code, text = 1, f"{error}" if type(error).__module__.startswith("campaigns") else f"{error!r}"
        os.write(writing, text.encode("utf-8", "backslashreplace")[:60_000])
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read().decode()
    if os.waitpid(pid, 0)[1]:
        raise ChildError(text)
    return text

"""Starting, watching and killing processes of the command."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

FORKS = get_context("forkserver")
MODULES = ("evaluate", "lines", "parser", "training")
FORKS.set_forkserver_preload([*(f"anyorder.cli.{name}" for name in MODULES), "torch._dynamo"])


def environment_with(**more: str) -> dict[str, str]:
    """The variables of a process that computes with one thread and asks nothing of a network."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """The real command, in a session of its own, so that a signal to its group reaches its workers as Ctrl-C does."""
    return start_python("-m", "anyorder", *arguments, **environment)


def start_python(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment_with(**environment),
    )  # fmt: skip


class Fork:
    """The command in a process that is forked from one which has imported everything, so that it starts at once.

    For what begins after the imports: a signal, a second process, a second run. It has a session of its own.
    """

    def __init__(self, *arguments: object, **environment: str):
        self._folder = TemporaryDirectory(prefix="fork-")
        for name in ("stdout", "stderr"):
            Path(self._folder.name, name).touch()
        call = ([str(argument) for argument in arguments], self._folder.name, environment_with(**environment))
        self._process = FORKS.Process(target=_run, args=call, daemon=True)
        self._process.start()
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended it; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def output(self) -> str:
        """What it has printed so far."""
        return Path(self._folder.name, "stdout").read_text(encoding="utf-8")

    def wait(self, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """How it ended; one that takes longer is killed."""
        self._process.join(timeout)
        late = self.poll() is None
        if late:
            self._process.kill()
            self._process.join()
        stdout, stderr = (Path(self._folder.name, name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        self._folder.cleanup()
        assert not late, f"not done after {timeout} s: {stdout}{stderr}"
        return subprocess.CompletedProcess([], self._process.exitcode or 0, stdout, stderr)


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """In the fork: what the interpreter does around a command."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate(("stdout", "stderr"), 1):
        descriptor = os.open(Path(folder, name), os.O_WRONLY)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = open(1, "w", encoding="utf-8"), open(2, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    import torch

    from anyorder.cli import main

    torch.set_num_threads(1)
    sys.argv = ["anyorder", *arguments]
    sys.exit(main())


def run_two(*arguments: object) -> list[subprocess.CompletedProcess[str]]:
    """The command in two processes that work together, with the variables that `torchrun` would give them."""
    return [process.wait() for process in start_two(*arguments)]


def start_two(*arguments: object) -> list[Fork]:
    port = str(29500 + os.getpid() % 2000)
    launcher = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [Fork(*arguments, **launcher, RANK=rank, LOCAL_RANK=rank) for rank in "01"]


def wait_until(condition: Callable[[], object], seconds: float = 60, poll: float = 0.005) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(poll)


def group_members(group: int) -> list[int]:
    """The processes of a process group that have not ended."""
    members = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, pgrp = file.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state not in "ZX":
            members.append(int(file.parent.name))
    return members

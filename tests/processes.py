"""Starting, watching and killing processes of the real command."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """The real command, in a session of its own, so that a signal to its group reaches its workers as Ctrl-C does."""
    return start_python("-m", "anyorder", *arguments, **environment)


def start_python(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment},
    )  # fmt: skip


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

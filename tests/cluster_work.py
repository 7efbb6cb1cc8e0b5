"""Work for the tests of the cluster; the workers import this file."""

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anyorder.cluster import Cluster
from anyorder.errors import InputError


@dataclass(frozen=True)
class Square:
    """The square of a number. Files in the folder count the tries; the worker that first gets `deadly` kills itself."""

    folder: str
    deadly: int = -1
    seconds: float = 0.0

    def __call__(self, number: int) -> int:
        time.sleep(self.seconds)
        with (Path(self.folder) / str(number)).open("a") as file:
            file.write("x")
        if number == self.deadly and (Path(self.folder) / str(number)).read_text() == "x":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == -2:
            raise InputError("-2: expected a number of at least 0", "number")
        return number * number


def tries(folder: Path) -> dict[int, int]:
    return {int(file.name): len(file.read_text()) for file in folder.iterdir()}


class Here(Cluster):
    """A cluster of this process alone. What would travel is pickled."""

    def workers(self, gpu: bool = False) -> int:
        return 0 if gpu else 1

    def map(self, work: Callable, items: Iterable, gpu: bool = False, ahead: int | None = None) -> Iterator:
        for item in items:
            sent, given = pickle.loads(pickle.dumps((work, item)))
            yield sent(given)

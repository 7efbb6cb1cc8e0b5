"""Work on a stream of items on the machines of a Ray cluster, with the results in order. Knows nothing about the work.

Ray chooses where an item is worked on, keeps the processes of its workers for the next ones, and gives an item whose
worker or machine is lost to another worker. Only this module imports Ray, and only when a cluster is asked for.

The workers import this package and open the same files under the same paths as the process that called them.
"""

import hashlib
import json
import logging
import os
import pickle
import re
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from anyorder import __version__
from anyorder.errors import InputError
from anyorder.files import atomic_file, keep_folder
from anyorder.plugins import load_plugin, loaded_plugins, plugin_error

AUTO = "auto"
"""The cluster that this machine belongs to, or else one of this machine's own cores."""
BLOCKS = ".blocks"
"""Suffix of the folder that keeps the results of blocks until all are there."""
RETRIES = 10
"""How often a block is given to another worker after its worker was lost."""
AHEAD = 4
"""Blocks per worker that are being worked on or wait for their turn."""
In = TypeVar("In")
Out = TypeVar("Out")


@contextmanager
def connect(address: str, out: Path | None = None) -> Iterator["Cluster"]:
    """The cluster at an address (`auto`, or `HOST:PORT` of its first machine).

    Args:
        address: See `AUTO`.
        out: What the results are for. The results of `Cluster.map` are kept beside it if the block ends with an error
            or the process is killed, and the same work begins with them next time.
    """
    if not re.fullmatch(r"auto|[^\s/]+:[0-9]{1,5}", address):
        raise InputError(f"'{address}': expected auto, or HOST:PORT of a cluster's first machine", "cluster")
    ray, is_ours = _init(address)
    kept = None if out is None or not _has_place(out) else out.with_name(out.name + BLOCKS)
    try:
        with nullcontext() if kept is None else keep_folder(kept, f"{out}: another process is writing it"):
            yield Cluster(kept)
            if kept is not None:
                shutil.rmtree(kept)
    finally:
        if is_ours:
            ray.shutdown()


def _has_place(out: Path) -> bool:
    """Whether something can be put beside it: not beside /dev/stdout, nor into a folder that does not exist."""
    return out.parent.is_dir() and (not out.exists() or out.is_file() or out.is_dir())


def _init(address: str) -> tuple[Any, bool]:
    """Ray, connected, and whether this call did it."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        from ray._private import worker
    except ImportError:
        raise InputError("needs Ray: pip install 'anyorder[cluster]'", "cluster") from None
    # Ray would report every lost worker on standard output, among the results, and has no setting against it.
    worker.print_to_stdstream = lambda *message, **options: None
    if ray.is_initialized():
        return ray, False
    handler = signal.getsignal(signal.SIGTERM)
    where: dict[str, Any] = {"include_dashboard": False} if address == AUTO else {"address": address}
    try:
        if address != AUTO:  # Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        with _nothing_printed():
            ray.init(**where, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, OSError, OverflowError, RuntimeError, ValueError) as error:
        raise InputError(f"{address}: cannot be reached ({_first_line(error)})", "cluster") from None
    finally:
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, handler)  # Ray puts its own there
    return ray, True


_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # that a worker is lost is no news
}
"""Ray's own settings."""


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Ray's libraries write to standard error, past Python, until their log level is set."""
    with suppress(ValueError, OSError):
        sys.stderr.flush()
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


class Cluster:
    """Machines that share work. kept: the folder that keeps results."""

    def __init__(self, kept: Path | None = None):
        self._kept = kept

    def uses_gpus(self, device: str) -> bool:
        """Whether a worker has a GPU. device: `auto`, `cpu` or `cuda`."""
        has_gpus = self.workers(gpu=True) > 0
        if device not in ("auto", "cpu") and not has_gpus:
            raise InputError(f"{device}: the cluster has no GPU", "device")
        return has_gpus and device != "cpu"

    def workers(self, gpu: bool = False) -> int:
        """How many there are room for now: one per core, or one per GPU. Machines may join and leave."""
        import ray

        return int(ray.cluster_resources().get("GPU" if gpu else "CPU", 0))

    def map(
        self, work: Callable[[In], Out], items: Iterable[In], gpu: bool = False, ahead: int | None = None
    ) -> Iterator[Out]:
        """The result of `work` for each item, in order. Only a few items are in memory at a time.

        A worker has one core, or one GPU. What `work` caches, such as a model, stays in the worker's process.

        If results are kept, they must consist of what JSON can hold. Kept ones are found by what `work` and the item
        are pickled to, so both must say all that the result depends on.

        ahead: at most so many items are begun before the result of the first of them is there; by default a few times
            the number of workers.
        """
        import ray

        task = ray.remote(num_cpus=1, num_gpus=int(gpu), max_retries=RETRIES, max_calls=0)(_run)
        job = __version__, loaded_plugins(), work
        shared, key = ray.put(job), self._kept and _digest(job)
        pending: deque[Callable[[], Out]] = deque()
        for item in items:
            file = self._kept / f"{_digest((key, item))}.json" if self._kept else None
            found = _read(file) if file else None
            begun = partial(_collect, task.remote(shared, item), file) if found is None else partial(_same, found)
            pending.append(begun)
            if len(pending) >= (ahead or AHEAD * max(1, self.workers(gpu))):
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()


def _same(found: Any) -> Any:
    return found


def _collect(reference: Any, file: Path | None) -> Any:
    """The result of a task once it is there; it is written to the file, if any."""
    from ray import exceptions, get

    try:
        found = get(reference)
    except exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, InputError) else error) from None
    except exceptions.RayError as error:
        raise InputError(f"a worker was lost {RETRIES + 1} times ({_first_line(error)})", "cluster") from None
    if file is not None:
        with atomic_file(file) as stream:
            json.dump(found, stream)
    return found


def _read(file: Path) -> Any:
    """A kept result; None if it is not there."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


def _digest(value: Any) -> str:
    return hashlib.sha256(pickle.dumps(value)).hexdigest()[:32]


def _run(job: tuple[str, dict[str, str], Callable[[Any], Any]], item: Any) -> Any:
    """In a worker: one item's result."""
    version, plugins, work = job
    if version != __version__:
        raise InputError(f"this machine has anyorder {version}, but a worker {__version__}", "cluster")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for every core
    for path in plugins:
        load_plugin(path)
    try:
        return work(item)
    except Exception as error:
        raise plugin_error(error) or error from error

"""A decoder whose lines and examples are decoded by the workers of a cluster. The results are those of one process."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from anyorder.cluster import Cluster
from anyorder.data.workers import blocks
from anyorder.decoder import Decoder, LineBlock, load
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.stepper import NUM_CANDIDATES, Step
from anyorder.decoding.trajectory import Trajectory
from anyorder.device import DType
from anyorder.errors import InputError
from anyorder.models.hf.pretrained import PREFIX
from anyorder.tasks import Task

BLOCK, GPU_BLOCK, SMALL_BLOCK = 256, 1024, 16
"""Lines that are decoded together: by a core, by a GPU, and at least."""


def load_on(
    cluster: Cluster, model: str, device: str = "auto", task: str | Task | None = None, dtype: DType = "auto"
) -> Decoder:
    """See `anyorder.load`. The workers load the model by its name, a folder from the same path.

    device: of the workers; `auto` is CUDA if the cluster has GPUs.
    """
    where = "cuda" if cluster.uses_gpus(device) else "cpu"
    loaded = load(model, device="cpu").model
    files = sorted(file for file in loaded.path.rglob("*") if file.is_file()) if loaded.path else []
    stamp = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    source = _Source(_absolute(model), where, stamp, dtype)
    return ClusterDecoder(cluster, source, loaded, task)


def _absolute(model: str) -> str:
    """The name of a model for a process that works in another folder."""
    name = model.removeprefix(PREFIX)
    return model.removesuffix(name) + os.path.abspath(name) if Path(name).exists() else model


@dataclass(frozen=True)
class _Source:
    """What workers load a model from."""

    model: str
    device: str
    stamp: tuple[tuple[str, int, int], ...]
    """Its files with their sizes and times: kept results are those of this model."""
    dtype: DType = "auto"

    def decoder(self) -> Decoder:
        return _load(self.model, self.device, self.dtype)


_load = cache(lambda model, device, dtype: load(model, device=device, dtype=dtype))
"""Each worker loads a model once."""


class ClusterDecoder(Decoder):
    """Like other decoders; its own model, on the CPU, reads test sets and looks up orders."""

    def __init__(self, cluster: Cluster, source: _Source, model: Any, task: str | Task | None):
        super().__init__(model, task)
        self._cluster, self._source = cluster, source

    def with_task(self, task: str | Task | None) -> "ClusterDecoder":
        return ClusterDecoder(self._cluster, self._source, self.model, task)

    def read(self, blocks: Iterable[LineBlock], names: Mapping[str, str], strict: bool) -> Iterable[Any]:
        return _Unread(blocks, (dict(names), strict))

    def decode(
        self,
        examples: Iterable[Any],
        config: DecodingConfig | None = None,
        on_progress: Callable[[int], None] = lambda lines: None,
        on_step: Callable[[Step], None] | None = None,
        num_candidates: int = NUM_CANDIDATES,
        eager: bool = False,
    ) -> Iterator[Trajectory]:
        if on_step is not None:
            raise InputError("steps cannot be followed on a cluster")
        work, size = _Decode(self._source, self.task, config or DecodingConfig()), self._block
        self.bind(work.config)  # an unknown order is found before any work
        if isinstance(examples, _Unread):
            return self._map(replace(work, unread=examples.how), examples.blocks, on_progress)
        if isinstance(examples, Sized):  # a small test set is for all workers, too
            share = len(examples) // (2 * max(1, self._cluster.workers(self._on_gpu)))
            size = min(size, max(SMALL_BLOCK, share))
        return self._map(work, blocks(examples, size), on_progress)

    @property
    def _on_gpu(self) -> bool:
        return self._source.device != "cpu"

    @property
    def _block(self) -> int:
        return GPU_BLOCK if self._on_gpu else BLOCK

    def _map(
        self, work: Callable[[Any], list[str]], items: Iterable[Any], on_progress: Callable[[int], None]
    ) -> Iterator[Trajectory]:
        for found in self._cluster.map(work, items, self._on_gpu):
            on_progress(len(found))
            yield from map(Trajectory.from_json, found)


@dataclass(frozen=True)
class _Unread(Iterable[LineBlock]):
    """Lines for the workers to read."""

    blocks: Iterable[LineBlock]
    how: tuple[dict[str, str], bool]
    """The names and whether it is strict; see `Decoder.read`."""

    def __iter__(self) -> Iterator[LineBlock]:
        return iter(self.blocks)


@dataclass(frozen=True)
class _Decode:
    """In a worker: the trajectories of some examples, or of a block of lines, as JSON."""

    source: _Source
    task: Task
    config: DecodingConfig
    unread: tuple[dict[str, str], bool] | None = None
    """How to read lines."""

    def __call__(self, block: Any) -> list[str]:
        decoder = self.source.decoder().with_task(self.task)
        examples = block if self.unread is None else decoder.read([block], *self.unread)
        return [trajectory.to_json() for trajectory in decoder.decode(examples, self.config)]

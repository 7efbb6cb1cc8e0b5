"""What several verbs share: options, with their defaults and help, where they write, and the model they load."""

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from anyorder.cli.parser import SharedOptions
from anyorder.cluster import Cluster, connect
from anyorder.cluster_decoder import load_on
from anyorder.decoder import Decoder, load
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.sampling import RankBy
from anyorder.device import Device, DType, join_processes, process_count, resolve_device
from anyorder.errors import InputError
from anyorder.files import atomic_file
from anyorder.progress import is_main_process
from anyorder.registry import is_count
from anyorder.tasks import Task

SLOW_AFTER = 5.0
"""Seconds after which it is known about how long something takes."""


@dataclass(frozen=True)
class SearchOptions(SharedOptions):
    """How to choose tokens."""

    beam: str = "1"
    """Beam size for each text (and each target length): N (beam over tokens, in the given order), positions:N (over
    the positions that the order ranks highest), or joint:N (over positions and tokens at once, for the order
    max-prob). 1 is greedy."""
    temperature: float = 0.0
    """Sampling temperature; 0 always picks the most likely token."""
    top_p: float = 1.0
    """Nucleus sampling: sample from the smallest set of tokens whose total probability reaches this."""
    top_k: int = 0
    """Sample from the K most likely tokens; 0 for all."""
    rank_by: RankBy = "best"
    """With a temperature, whether a position ranks by the probability of its best token, or of the sampled one, as in
    the code of LLaDA and Fast-dLLM."""
    guidance: float = 0.0
    """Classifier-free guidance of masked language models, as in LLaDA's code: logits are u + (S + 1)(c - u), where c
    sees the given tokens and u does not. 0 for none. A step takes two forward passes."""
    cache: str = "none"
    """For language models with full attention and a schedule in blocks, what later passes of a block reuse: none,
    prefix (keys and values before the block) or dual (also those after it), as in Fast-dLLM. Faster, but approximate.
    prefix:K and dual:K compute everything anew every K passes."""
    seed: int = 1
    """Random seed for orders, revisions and sampled tokens."""
    device: Device = "auto"
    """Device to run on."""
    dtype: DType = "auto"
    """Precision of the model; auto is bfloat16 on CUDA and float32 on the CPU."""
    batch_tokens: int | None = None
    """Tokens to decode per batch. On CUDA, rounding may change a few results."""
    cluster: str | None = None
    """Work on a Ray cluster: auto (the one this machine belongs to, or else all of its cores or GPUs), or HOST:PORT.
    Results are the same; see docs/cluster.md."""

    def config(self, **more: Any) -> DecodingConfig:
        """The config of these options and more fields."""
        own = {name: value for name, value in vars(self).items() if name not in ("device", "dtype", "cluster")}
        return DecodingConfig(**own, **more)


def open_decoder(
    model: str, device: str, task: str | Task | None = None, cluster: Cluster | None = None, dtype: DType = "auto"
) -> Decoder:
    """The model on this process's device, or on the workers of a cluster; joins the other processes if a launcher
    started several."""
    if cluster is not None:
        return load_on(cluster, model, device, task, dtype)
    place = resolve_device(device)
    join_processes(place)
    return load(model, task=task, device=place, dtype=dtype)


def connected(address: str | None, out: Path | None = None) -> AbstractContextManager[Cluster | None]:
    """See `cluster.connect`; None without an address."""
    if address is not None and process_count() > 1:
        raise InputError("does not go together with a launcher: Ray starts the processes", "cluster")
    return nullcontext() if address is None else connect(address, out)


def split_limits(text: str) -> list[int | None]:
    """Length limits separated by commas, such as 20,30,none."""
    limits: list[int | None] = []
    for part in text.split(","):
        if part.strip() != "none" and not is_count(part.strip()):
            raise InputError(f"'{part}': expected a whole number from 1, or none", "max_length")
        limits.append(None if part.strip() == "none" else int(part))
    return limits


def output_file(
    file: Path | None, keep_on: tuple[type[BaseException], ...] = ()
) -> AbstractContextManager[IO[str] | None]:
    """See `atomic_file`. None without a file, and in all but one process."""
    return nullcontext() if file is None or not is_main_process() else atomic_file(file, keep_on)


def print_note(verb: str, note: str) -> None:
    """One line on standard error about what was done; nothing if there is nothing to say."""
    if note and is_main_process():
        print(f"anyorder {verb}: {note}", file=sys.stderr)


class SlowNote:
    """Says once, on standard error, about how long a verb will take, if that is more than a minute.

    It is called with how much was done since the last call. what: is being done.
    """

    def __init__(self, verb: str, what: str, total: float):
        self._verb, self._what, self._total = verb, what, total
        self._began, self._done, self._said = time.monotonic(), 0.0, False

    def __call__(self, amount: float) -> None:
        self._done += amount
        seconds = time.monotonic() - self._began
        expected = seconds * self._total / self._done if self._done else 0.0
        if not self._said and seconds > SLOW_AFTER and self._done < self._total and expected > 60:
            self._said = True
            print_note(self._verb, f"{self._what} takes about {expected / 60:.0f} minutes")


def check_apart(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Raise an `InputError` if two of the files to write, given by flag, are the same, or if one is also read."""
    read = {os.path.realpath(file) for file in inputs if file is not None}  # unlike resolve, accepts circular links
    flags: dict[str, str] = {}
    for flag, file in outputs.items():
        if file is None or (os.path.exists(file) and not os.path.isfile(file)):  # such as /dev/stdout
            continue
        place = os.path.realpath(file)
        if place in read:
            raise InputError(f"{flag} {file}: would replace a file that is read")
        if place in flags:
            raise InputError(f"{flag} {file}: is the file of {flags[place]} as well")
        flags[place] = flag

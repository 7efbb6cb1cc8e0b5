"""The record of one generation, and how to read and write it. Everything downstream of decoding uses these records.

A file has one JSON object per line (plain, .gz or .xz). Files from other programs need only `tokens` and `steps`.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from anyorder.data.corpus import read_lines
from anyorder.data.subwords import join_subwords
from anyorder.errors import InputError
from anyorder.files import atomic_file
from anyorder.files.records import is_number, is_unicode

INFILL, GENERATE = "infill", "generate"
"""The tasks of masked language models; a learned order may lie beside the model for each of them."""


@dataclass(frozen=True)
class Write:
    """One token written at one position. A revised position has several writes."""

    position: int
    """From 0."""
    step: int
    """From 1."""
    token: str
    logprob: float


def to_writes(
    writes: Iterable[tuple[int, int, int, float]] | None, to_tokens: Callable[[Sequence[int]], list[str]]
) -> list[Write] | None:
    """Convert (position, step, id, log-probability) tuples to `Write` objects; None stays None."""
    if writes is None:
        return None
    writes = list(writes)
    tokens = to_tokens([id for _, _, id, _ in writes])
    return [
        Write(position, step, token, round(logprob, 6))
        for (position, step, _, logprob), token in zip(writes, tokens, strict=True)
    ]


@dataclass(frozen=True, repr=False)
class Trajectory:
    """One sentence and how it was generated.

    Without revision, every position is written once, and `steps` is a permutation (with ties if a step fills several
    positions). With revision, `tokens`, `steps` and `logprobs` are those of the last write; `writes` has all of them.
    """

    source: str
    """The input text: a sentence to translate, a text with masks, or a prompt; may be empty."""
    text: str
    """The finished text, detokenized."""
    tokens: list[str]
    """The tokens that were filled in, ending in `@@` if the word continues."""
    steps: list[int]
    """The step, from 1, at which each token was filled in."""
    logprobs: list[float]
    """The model's log-probability of each token when it was filled in; empty if not recorded."""
    order: str
    """The name of the order."""
    length: int
    """Number of tokens that were filled in."""
    signature: str
    """The decoding settings; `Signature.parse` reads it."""
    model: str = ""
    """The name of the model."""
    task: str = ""
    """The task: a direction such as `de-en`, `infill`, `generate`, or the name of a puzzle task."""
    canvas: list[str | None] | None = None
    """The given tokens, with None at masked positions. None if the whole canvas was masked."""
    writes: list[Write] | None = None
    """All writes in chronological order, if positions were revised."""
    note: str = ""
    """How the source was changed, such as `source split into 3 parts`; empty if it was used unchanged."""
    forwards: int = 0
    """Number of forward passes it took to decode; defaults to the last step."""

    def __post_init__(self) -> None:
        if not self.forwards:
            object.__setattr__(self, "forwards", max(self.steps, default=0))

    @property
    def mean_logprob(self) -> float:
        """NaN if log-probabilities were not recorded."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else math.nan

    @property
    def permutation(self) -> list[int]:
        """Indices into `tokens` in the order in which they were filled in, from left to right within a step."""
        return sorted(range(self.length), key=lambda i: (self.steps[i], i))

    @property
    def positions(self) -> list[int]:
        """The position of each token on the canvas, from 0."""
        if self.canvas is None:
            return list(range(self.length))
        return [position for position, given in enumerate(self.canvas) if given is None]

    @property
    def words(self) -> list[str]:
        """The words that the tokens spell."""
        return join_subwords(self.tokens)[0]

    def __repr__(self) -> str:
        return f"Trajectory({self.text!r}, order={self.order!r}, length={self.length}, steps={self.steps})"

    def to_json(self) -> str:
        """One line of JSON."""
        record = {name: getattr(self, name) for name in _ALWAYS}
        if self.canvas is not None:
            record |= {"canvas": self.canvas, "positions": self.positions}
        if self.writes is not None:
            record["writes"] = [[one.position, one.step, one.token, one.logprob] for one in self.writes]
        if self.note:
            record["note"] = self.note
        if self.forwards != max(self.steps, default=0):
            record["forwards"] = self.forwards
        return json.dumps(record, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "Trajectory":
        """The inverse of `to_json`. `tokens` and `steps` are required, all other fields are optional."""
        return _parse(line)


_ALWAYS = ("source", "text", "tokens", "steps", "logprobs", "order", "length", "signature", "model", "task")
_TEXT = ("source", "text", "order", "signature", "model", "task", "note")


def read_trajectories(file: Path) -> Iterator[Trajectory]:
    """The trajectories in a file, one per line; an `InputError` names the first invalid line."""
    empty = True
    for number, line in enumerate(read_lines(file), start=1):
        empty = False
        try:
            yield _parse(line)
        except InputError as error:
            raise InputError(f"{file}, line {number}: {error}") from None
    if empty:
        raise InputError(f"{file}: is empty, expected one trajectory a line")


@contextmanager
def trajectory_writer(file: Path, keep_on: tuple[type[BaseException], ...] = ()) -> Iterator["TrajectoryWriter"]:
    """A writer to a file that appears only if the block succeeds; see `atomic_file`."""
    with atomic_file(file, keep_on) as stream:
        yield TrajectoryWriter(stream)


class TrajectoryWriter:
    """Writes one trajectory per line."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, trajectory: Trajectory) -> None:
        self._stream.write(trajectory.to_json() + "\n")


def write_trajectories(file: Path, trajectories: Iterable[Trajectory]) -> None:
    with trajectory_writer(file) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)


def read_systems(files: Sequence[Path]) -> dict[str, list[Trajectory]]:
    """One system per file, named after the file, and after its folder too if two files have the same name."""
    names = [re.sub(r"(\.jsonl?)?(\.gz|\.xz)?$", "", file.name) for file in files]
    if len(set(names)) < len(names):
        names = [f"{file.absolute().parent.name}/{name}" for file, name in zip(files, names, strict=True)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InputError(
                f"{files[i]}: another file is called {name} as well; systems go by the names of their files"
            )
    return {name: list(read_trajectories(file)) for name, file in zip(names, files, strict=True)}


def check_systems(systems: Mapping[str, Sequence[Trajectory]], references: Sequence[str] | None = None) -> int:
    """The number of sentences; an `InputError` if the systems did not decode the same ones.

    A trajectory without a source matches any sentence.
    """
    if not systems:
        raise InputError("no system is given")
    (first, trajectories), *others = systems.items()
    if not trajectories:
        raise InputError(f"{first} has no sentences")
    for name, other in others:
        if len(other) != len(trajectories):
            raise InputError(f"{first} has {len(trajectories):,} sentences but {name} has {len(other):,}")
        for number, (a, b) in enumerate(zip(trajectories, other, strict=True), start=1):
            if a.source and b.source and a.source != b.source:
                raise InputError(f"{first} and {name} translate different sentences in line {number}")
    for name, every in systems.items():
        if not any(one.tokens for one in every):
            raise InputError(f"{name} has no sentences but empty ones")
    if references is not None and len(references) != len(trajectories):
        raise InputError(f"{first} has {len(trajectories):,} sentences but there are {len(references):,} references")
    return len(trajectories)


def _parse(line: str) -> Trajectory:
    """A trajectory from a line of JSON, with every field checked."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"not JSON ({error})") from None
    except RecursionError:
        raise InputError("not JSON (nested too deeply)") from None
    if not isinstance(record, dict):
        raise InputError("expected an object with tokens and steps")
    tokens, steps = (_list(record, name) for name in ("tokens", "steps"))
    _check_text("tokens", tokens)
    if not all(type(step) is int and 1 <= step < 1 << 31 for step in steps):
        raise InputError("steps are not all whole numbers from 1")
    if len(tokens) != len(steps):
        raise InputError(f"{len(tokens)} tokens but {len(steps)} steps")
    logprobs = record.get("logprobs", [])
    if not isinstance(logprobs, list) or len(logprobs) not in (0, len(tokens)) or not all(map(is_number, logprobs)):
        raise InputError("logprobs are not one number a token")
    text = {name: "" if record.get(name) is None else record[name] for name in _TEXT}
    for name, value in text.items():
        _check_text(name, [value])
    if record.get("text") is None:
        text["text"] = " ".join(join_subwords(tokens)[0])
    return Trajectory(
        tokens=tokens,
        steps=steps,
        logprobs=logprobs,
        length=len(tokens),
        canvas=_canvas(record, len(tokens)),
        writes=_writes(record),
        forwards=_forwards(record),
        **text,
    )


def _list(record: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(record.get(name), list):
        raise InputError(f"{name} is missing, expected a list" if name not in record else f"{name} is not a list")
    return record[name]


def _check_text(name: str, values: Sequence[object]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise InputError(f"{name} is not text" if name != "tokens" else "tokens are not all text")
        if not is_unicode(value):
            raise InputError("half of a surrogate pair (\\ud800 to \\udfff) is not a character")


def _canvas(record: dict[str, Any], filled: int) -> list[str | None] | None:
    if record.get("canvas") is None:
        return None
    canvas = _list(record, "canvas")
    _check_text("canvas", [token for token in canvas if token is not None])
    if canvas.count(None) != filled:
        raise InputError(f"{canvas.count(None)} positions of the canvas are masked but there are {filled} tokens")
    return canvas


def _writes(record: dict[str, Any]) -> list[Write] | None:
    if record.get("writes") is None:
        return None
    writes = []
    for item in _list(record, "writes"):
        match item:
            case [int(position), int(step), str(token), logprob] if position >= 0 and step >= 1 and is_number(logprob):
                writes.append(Write(position, step, token, logprob))
            case _:
                raise InputError("writes are not all [position, step, token, logprob]")
    return writes


def _forwards(record: dict[str, Any]) -> int:
    value = record.get("forwards")
    if value is None:
        return 0
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise InputError("forwards is not a whole number from 1")
    return value

"""The record of one generation, and how to read and write it. Everything downstream of decoding uses these records.

A file has one JSON object per line (plain, .gz or .xz). Files from other programs need only `tokens` and `steps`.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from anyorder.data.corpus import read_lines
from anyorder.data.vocabulary import join_subwords
from anyorder.errors import InputError
from anyorder.files import atomic_file
from anyorder.records import decode_json

if TYPE_CHECKING:
    from pandas import DataFrame

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
    writes: Sequence[tuple[int, int, int, float]] | None, to_tokens: Callable[[Sequence[int]], list[str]]
) -> list[Write] | None:
    """Convert (position, step, id, log-probability) tuples to `Write` objects; None stays None."""
    if writes is None:
        return None
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
    completion: str | None = None
    """What was generated after a prompt, up to the first end token or stop string; None for other tasks."""
    completion_length: int | None = None
    """How many of the `tokens` spell the completion; those after it are the end token and what follows it."""

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

    def _repr_html_(self) -> str:
        """For notebooks: the tokens, darker the later they were filled; the step is below each."""
        given = self.canvas or [None] * self.length
        filled = iter(zip(self.tokens, self.steps, strict=True))
        cells = [(token, 0) if token is not None else next(filled) for token in given]
        last = max(self.steps, default=1)
        style = "display:inline-block; padding:1px 4px; text-align:center; background:rgba(70,110,200,{:.2f})"
        spans = "".join(
            f'<span style="{style.format(0.6 * step / last)}">{escape(token)}<br><small>{step or ""}</small></span> '
            for token, step in cells
        )
        return f"<div>{spans}<br><small>{escape(self.order)}</small></div>"

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes."""
        record = {name: getattr(self, name) for name in _ALWAYS}
        if self.canvas is not None:
            record |= {"canvas": self.canvas, "positions": self.positions}
        if self.writes is not None:
            record["writes"] = [[one.position, one.step, one.token, one.logprob] for one in self.writes]
        if self.note:
            record["note"] = self.note
        if self.forwards != max(self.steps, default=0):
            record["forwards"] = self.forwards
        if self.completion is not None:
            record |= {"completion": self.completion, "completion_length": self.completion_length}
        return record

    @classmethod
    def from_json(cls, line: str) -> "Trajectory":
        """The inverse of `to_json`. `tokens` and `steps` are required, all other fields are optional."""
        record = decode_json(line, _Line)
        count = len(record.tokens)
        if len(record.steps) != count:
            raise InputError(f"{count} tokens but {len(record.steps)} steps")
        if len(record.logprobs) not in (0, count):
            raise InputError(f"{count} tokens but {len(record.logprobs)} logprobs")
        if (record.completion_length or 0) > count:
            raise InputError(f"{count} tokens but a completion of {record.completion_length}")
        if record.canvas is not None and (masked := record.canvas.count(None)) != count:
            raise InputError(f"{masked} positions of the canvas are masked but there are {count} tokens")
        fields = msgspec.structs.asdict(record) | {"length": count, "forwards": record.forwards or 0}
        fields |= {name: fields[name] or "" for name in _TEXTS}
        if record.text is None:
            fields["text"] = " ".join(join_subwords(record.tokens)[0])
        if record.writes is not None:
            fields["writes"] = [Write(*write) for write in record.writes]
        return cls(**fields)


_ALWAYS = ("source", "text", "tokens", "steps", "logprobs", "order", "length", "signature", "model", "task")
_TEXTS = ("source", "text", "order", "signature", "model", "task", "note")


def to_dataframe(trajectories: Iterable[Trajectory]) -> "DataFrame":
    """A pandas table with one row per trajectory, and its number of forward passes and mean log-probability."""
    try:
        import pandas
    except ImportError:
        raise InputError("tables need pandas: pip install pandas") from None
    return pandas.DataFrame(
        {**one.to_dict(), "forwards": one.forwards, "mean_logprob": one.mean_logprob} for one in trajectories
    )


def read_trajectories(file: Path) -> Iterator[Trajectory]:
    """The trajectories in a file, one per line; an `InputError` names the first invalid line.

    A file of step maps (`decoding.step_maps`) is read, too, if it has the tokens or their ids.
    """
    from anyorder.decoding.step_maps import from_step_maps, holds_step_maps  # which makes trajectories

    lines = read_lines(file)
    first = next(lines, None)
    if first is None:
        raise InputError(f"{file}: is empty, expected one trajectory a line")
    if holds_step_maps(first):
        yield from from_step_maps(chain([first], lines), str(file))
        return
    for number, line in enumerate(chain([first], lines), start=1):
        try:
            yield Trajectory.from_json(line)
        except InputError as error:
            raise InputError(f"{file}, line {number}: {error}") from None


def write_trajectories(file: Path, trajectories: Iterable[Trajectory]) -> None:
    with atomic_file(file) as stream:
        stream.writelines(f"{trajectory.to_json()}\n" for trajectory in trajectories)


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


_Position = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Step = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class _Line(msgspec.Struct):
    """What a line of a file may hold, from whatever program it comes; other fields are ignored."""

    tokens: list[str]
    steps: list[_Step]
    logprobs: list[float] = []
    source: str | None = None
    text: str | None = None
    order: str | None = None
    signature: str | None = None
    model: str | None = None
    task: str | None = None
    note: str | None = None
    canvas: list[str | None] | None = None
    writes: list[tuple[_Position, _Step, str, float]] | None = None
    forwards: _Step | None = None
    completion: str | None = None
    completion_length: _Position | None = None

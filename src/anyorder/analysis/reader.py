"""Read trajectories from files: those of `anyorder translate --json`, and anyone's."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyorder.analysis.linguistics import join_subwords
from anyorder.data.corpus import read_lines
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError


def read_systems(paths: Sequence[Path]) -> dict[str, list[Trajectory]]:
    """One system a file, called by the file's name; with its folder's where two files have the same."""
    names = [re.sub(r"(\.jsonl?)?(\.gz|\.xz)?$", "", path.name) for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.absolute().parent.name}/{name}" for path, name in zip(paths, names, strict=True)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InputError(
                f"{paths[i]}: another file is called {name} as well; systems go by the names of their files"
            )
    return {name: read_trajectories(path) for name, path in zip(names, paths, strict=True)}


def check_systems(systems: Mapping[str, Sequence[Trajectory]], references: Sequence[str] | None) -> int:
    """How many sentences there are; an `InputError` if the systems do not tell of the same ones.

    A trajectory without a source may be of any sentence.
    """
    if not systems:
        raise InputError("no system to analyse")
    (first, made), *others = systems.items()
    if not made:
        raise InputError(f"{first} has no sentences")
    for name, other in others:
        if len(other) != len(made):
            raise InputError(f"{first} has {len(made):,} sentences but {name} has {len(other):,}")
        for number, (a, b) in enumerate(zip(made, other, strict=True), start=1):
            if a.source and b.source and a.source != b.source:
                raise InputError(f"{first} and {name} translate different sentences in line {number}")
    for name, every in systems.items():
        if not any(one.tokens for one in every):
            raise InputError(f"{name} has no sentences but empty ones")
    if references is not None and len(references) != len(made):
        raise InputError(f"{first} has {len(made):,} sentences but there are {len(references):,} references")
    return len(made)


def read_trajectories(path: Path) -> list[Trajectory]:
    """One JSON object a line with at least `tokens` and `steps`; whatever else a trajectory holds is taken if there."""
    made = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            made.append(_trajectory(line))
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if not made:
        raise InputError(f"{path}: is empty, expected one trajectory a line")
    return made


def _trajectory(line: str) -> Trajectory:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    except RecursionError:
        raise ValueError("lists in lists without end") from None
    if not isinstance(value, dict):
        raise ValueError("expected an object with tokens and steps")
    tokens, steps = (_list(value, name) for name in ("tokens", "steps"))
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError("tokens are not all text")
    if not all(type(step) is int and 1 <= step < 1 << 31 for step in steps):
        raise ValueError("steps are not all whole numbers from 1")
    if len(tokens) != len(steps):
        raise ValueError(f"{len(tokens)} tokens but {len(steps)} steps")
    logprobs = value.get("logprobs", [])
    if not isinstance(logprobs, list) or len(logprobs) not in (0, len(tokens)) or not all(map(_is_number, logprobs)):
        raise ValueError("logprobs are not one number a token")
    text = {name: value.get(name, "") for name in ("source", "text", "order", "signature")}
    for name, one in text.items():
        if not isinstance(one, str):
            raise ValueError(f"{name} is not text")
    if any("\ud800" <= character <= "\udfff" for one in (*tokens, *text.values()) for character in one):
        raise ValueError("half of a surrogate pair (\\ud800 to \\udfff) is no character")
    text["text"] = text["text"] or " ".join(join_subwords(tokens)[0])
    return Trajectory(tokens=tokens, steps=steps, logprobs=logprobs, length=len(tokens), **text)


def _list(value: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(value.get(name), list):
        raise ValueError(f"{name} is missing, expected a list" if name not in value else f"{name} is not a list")
    return value[name]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

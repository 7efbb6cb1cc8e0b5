"""What `generate` reads: texts, token ids, conversations and canvases, in Python and as lines of JSON.

Knows nothing of models or files: whether ids and roles fit a model is for the task to say.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from anyorder.data.line_problems import Problem, valid_text
from anyorder.errors import InputError
from anyorder.records import convert, decode_json

Message = Mapping[str, Any]
"""What someone says in a conversation: a `role`, such as `user`, the `content`, and what else a template reads."""


@dataclass(frozen=True)
class Prompt:
    """What a text begins with, and may end with; or a conversation to answer; or a canvas to fill."""

    source: str
    """What trajectories record: a plain text as it is, anything else as JSON."""
    prompt: str | list[int] | None = None
    """A text, or token ids."""
    suffix: str | list[int] | None = None
    """What follows the tokens that are generated."""
    messages: list[Message] | None = None
    """A conversation up to the answer."""
    canvas: str | list[int | None] | None = None
    """A text with masks, or ids with None at masked positions."""
    problems: tuple[Problem, ...] = ()
    """The last one says why it cannot be used if all else is None."""

    @classmethod
    def of(cls, given: "str | Sequence[Any] | Mapping[str, Any] | Prompt") -> "Prompt":
        """A text, token ids, messages, or an object as in a line of JSON."""
        if isinstance(given, Prompt):
            return given
        if isinstance(given, str):
            text, problems = valid_text(given)
            return cls(text, text, problems=problems)
        given = given.tolist() if hasattr(given, "tolist") else given  # an array or a tensor
        if isinstance(given, bytes) or not isinstance(given, Iterable):
            error = InputError(f"expected a text, token ids, messages or an object, got {type(given).__name__}")
            return cls._unreadable(str(given), error)
        if not isinstance(given, Mapping):
            given = list(given)
            holds_messages = bool(given) and isinstance(given[0], Mapping)
            given = {"messages" if holds_messages else "canvas" if None in given else "prompt": given}
        try:
            return cls._checked(convert(given, _Line))
        except InputError as error:
            return cls._unreadable(str(given), error)

    @classmethod
    def parse(cls, line: str) -> "Prompt":
        """From a line of JSON."""
        try:
            return cls._checked(decode_json(line, _Line))
        except InputError as error:
            return cls._unreadable(line, error)

    @classmethod
    def _checked(cls, line: "_Line") -> "Prompt":
        found = {name: value for name, value in msgspec.structs.asdict(line).items() if value is not None}
        kinds = [name for name in found if name != "suffix"]
        if not kinds:
            raise InputError("has no prompt, messages or canvas")
        if len(kinds) > 1:
            raise InputError(f"has {' and '.join(kinds)}, expected one of them")
        if "suffix" in found and kinds != ["prompt"]:
            raise InputError(f"suffix: goes with a prompt, not with {kinds[0]}")
        if line.messages is not None:
            convert(line.messages, list[_Message], "messages")
            if not line.messages:
                raise InputError("messages: is empty, expected at least one")
        cleaned, problems = _valid(found)
        [only] = cleaned.values() if len(cleaned) == 1 else [cleaned]
        source = only if isinstance(only, str) else json.dumps(only, ensure_ascii=False)
        return cls(source, problems=problems, **cleaned)

    @classmethod
    def _unreadable(cls, source: str, error: InputError) -> "Prompt":
        text, problems = valid_text(source)
        return cls(text, problems=(*problems, Problem("source", f"unreadable prompt ({error})", str(error))))

    @property
    def is_readable(self) -> bool:
        return not (self.prompt is None and self.messages is None and self.canvas is None)


class _Line(msgspec.Struct):
    """What a line of JSON may hold; other fields are ignored, so that a data set's own files can be used."""

    prompt: str | list[int] | None = None
    suffix: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    canvas: str | list[int | None] | None = None


class _Message(msgspec.Struct):
    role: str
    content: str


def _valid(value: Any) -> tuple[Any, tuple[Problem, ...]]:
    """A value in which all texts are valid."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        keys, texts = [_valid(key) for key in value], [_valid(one) for one in value.values()]
        pairs = zip(keys, texts, strict=True)
        return {key: one for (key, _), (one, _) in pairs}, _distinct(keys + texts)
    if isinstance(value, list):
        parts = [_valid(one) for one in value]
        return [one for one, _ in parts], _distinct(parts)
    return value, ()


def _distinct(parts: Sequence[tuple[Any, tuple[Problem, ...]]]) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(problem for _, problems in parts for problem in problems))


def as_prompts(given: Any) -> Sequence[Any]:
    """Several prompts, where a single one may be given: a text, token ids, a conversation or an object."""
    given = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(given, str | bytes | Mapping | Prompt) or not isinstance(given, Iterable):
        return [given]
    given = given if isinstance(given, Sequence) else list(given)
    is_one = bool(given) and (
        isinstance(given[0], int) or given[0] is None or (isinstance(given[0], Mapping) and "role" in given[0])
    )
    return [given] if is_one else given

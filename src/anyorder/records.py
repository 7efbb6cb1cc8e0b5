"""What is read from files that may be damaged: JSON and tensors, every value checked before it is used.

An error names the file, the field and what was expected there. Sizes are checked before memory is allocated.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from anyorder.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 1 << 28
"""Maximum size of a JSON file."""
LARGEST = 1 << 53
"""The largest integer in a file; all integers up to it are exact in every JSON reader."""
T = TypeVar("T")
_REQUIRED: Any = object()


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(f"{file}: has {file.stat().st_size:,} bytes, expected at most {MAX_BYTES:,}")
        return parse_json(file.read_bytes(), str(file))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None


def parse_json(text: str | bytes, where: str) -> dict[str, Any]:
    """The object in a JSON text; `where` is what messages call it."""
    return decode_json(text, dict, where)


def decode_json(text: str | bytes, kind: type[T], where: str = "") -> T:
    """A JSON text as a value of this type, every part of it checked. where: what messages call it."""
    prefix = where and f"{where}: "
    try:
        return _decoder(kind).decode(text)  # type: ignore[arg-type]
    except msgspec.ValidationError as error:
        raise InputError(prefix + _explain(error)) from None
    except RecursionError:
        raise InputError(f"{prefix}not JSON (nested too deeply)") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InputError(f"{prefix}not JSON ({error})") from None


def convert(value: Any, kind: Any, where: str = "") -> Any:
    """A value from Python as one of this type, every part of it checked. where: what messages call it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        place = _explain(error)
        raise InputError(f"{where}{'' if place.startswith('[') or not where else ': '}{place}") from None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder:
    return msgspec.json.Decoder(kind)


def _explain(error: msgspec.ValidationError) -> str:
    """In plain words: "Expected `int`, got `str` - at `$.size`" is `size: expected a whole number, got text`."""
    message, _, place = str(error).replace("$.", "").replace("$", "").partition(" - at ")
    message = message.replace("Object missing required field", "has no")
    message = re.sub("`([^`]*)`", lambda it: " or ".join(_WORDS.get(one, one) for one in it[1].split(" | ")), message)
    place = place.replace("`", "").replace("key in ", "key ").strip()
    return (f"{place}: " if place else "") + message[0].lower() + message[1:]


_WORDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "an object",
}  # fmt: skip


def read_record(file: Path) -> "Record":
    """The object in a JSON file, to be read field by field."""
    return Record(str(file), read_json(file))


class Record:
    """A JSON object whose fields are checked when they are read."""

    def __init__(self, where: str, values: dict[str, Any], path: str = ""):
        self.where = where
        self.values = values
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def take(self, name: str, kind: Any, default: Any = _REQUIRED) -> Any:
        """A field as a value of this type."""
        if name not in self.values:
            if default is _REQUIRED:
                raise self.error(name, "is missing")
            return default
        value = self.values[name]
        try:
            if isinstance(value, int) and abs(value) > LARGEST:
                raise msgspec.ValidationError(f"Expected `int` <= {LARGEST}")
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            is_choice = get_origin(kind) is Literal
            expected = f"expected {' or '.join(map(repr, get_args(kind)))}" if is_choice else _explain(error)
            raise self.error(name, f"{_short(value)}, {expected.partition(', got ')[0]}") from None

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        return self.take(name, str, default)

    def boolean(self, name: str, default: Any = _REQUIRED) -> bool:
        return self.take(name, bool, default)

    def integer(self, name: str, at_least: int = 0, at_most: int = LARGEST, default: Any = _REQUIRED) -> int:
        return self.take(name, Annotated[int, msgspec.Meta(ge=at_least, le=at_most)], default)

    def number(
        self, name: str, at_least: float | None = None, at_most: float | None = None, default: Any = _REQUIRED
    ) -> float:
        return self.take(name, Annotated[float, msgspec.Meta(ge=at_least, le=at_most)], default)

    def texts(self, name: str, default: Any = _REQUIRED) -> list[str]:
        return self.take(name, list[str], default)

    def record(self, name: str, default: Any = _REQUIRED) -> "Record":
        """An object in this one."""
        return Record(self.where, self.take(name, dict, default), f"{self._path}{name}.")

    def config(self, cls: type[T]) -> T:
        """This object as a config class: unknown fields are an error, missing ones get their default."""
        hints = get_type_hints(cls)
        known = {field.name: field for field in fields(cls) if field.init}  # type: ignore[arg-type]
        for name in self.values:
            if name not in known:
                raise self.error(name, f"no such field (known: {', '.join(known)})")
        for name, field in known.items():
            if name not in self.values and field.default is MISSING and field.default_factory is MISSING:
                raise self.error(name, "is missing")
        values = {
            name: self.record(name).config(hints[name]) if is_dataclass(hints[name]) else self.take(name, hints[name])
            for name in known
            if name in self.values
        }
        try:
            return cls(**values)
        except InputError as error:
            raise InputError(f"{self.where}: {self._path}{error}") from None

    def error(self, name: str, message: str) -> InputError:
        """An `InputError` about one field."""
        return InputError(f"{self.where}: {self._path}{name}: {message}")


def read_tensors(file: Path, expected: dict[str, tuple[int, ...]] | None = None) -> dict[str, "Tensor"]:
    """The tensors of a safetensors file, all numbers finite. Pickled files are never opened.

    expected: the name and shape of every tensor it must hold, checked before any is read.
    """
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        raise no_weights(file)
    try:
        with safe_open(file, "pt") as opened:
            names = sorted(opened.keys())
            if expected is not None:
                check_shapes(str(file), {name: tuple(opened.get_slice(name).get_shape()) for name in names}, expected)
            tensors = {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file}: damaged ({str(error).splitlines()[0]})") from None
    check_finite(file, tensors.items())
    return tensors


def no_weights(file: Path) -> InputError:
    """An `InputError` for a missing safetensors file, which names one that is pickled if that is all there is."""
    pickled = sorted(file.parent.glob("*.bin")) + sorted(file.parent.glob("*.pt*"))
    hint = (
        f"; {pickled[0].name} is pickled and will not be opened; 'anyorder convert' makes it safetensors"
        if pickled
        else ""
    )
    return InputError(f"{file}: no such file{hint}")


def check_finite(where: object, tensors: Iterable[tuple[str, "Tensor"]]) -> None:
    """Raise an `InputError` that names the first tensor with a number that is infinite or NaN."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"{where}: {name} holds numbers that are not finite")


def check_shapes(where: str, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an `InputError` that names the first tensor that is missing, unknown or of another shape."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise InputError(f"{where}: lacks {name}")
        if name not in expected:
            raise InputError(f"{where}: has unknown {name}")
        if found[name] != tuple(expected[name]):
            raise InputError(f"{where}: {name} is {found[name]}, expected {tuple(expected[name])}")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 40 else text[:37] + "..."

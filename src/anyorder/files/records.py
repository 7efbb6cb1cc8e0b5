"""What is read from files that may be damaged: JSON and tensors, every value checked before it is used.

An error names the file, the field and what was expected there. Sizes are checked before memory is allocated.
"""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from anyorder.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 1 << 28
"""Maximum size of a JSON file."""
LARGEST = 1 << 53
"""The largest integer in a file; all integers up to it are exact in every JSON reader."""
Config = TypeVar("Config")
_REQUIRED: Any = object()


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(f"{file}: has {file.stat().st_size:,} bytes, expected at most {MAX_BYTES:,}")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except UnicodeDecodeError:
        raise InputError(f"{file}: not JSON (it is not UTF-8)") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    return parse_json(text, str(file))


def parse_json(text: str, where: str) -> dict[str, Any]:
    """The object in a JSON text; `where` is what messages call it."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InputError(f"{where}: not JSON (nested too deeply)") from None
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


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

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        return self._take(name, default, "text", lambda value: isinstance(value, str) and is_unicode(value))

    def boolean(self, name: str, default: Any = _REQUIRED) -> bool:
        return self._take(name, default, "true or false", lambda value: isinstance(value, bool))

    def integer(self, name: str, at_least: int = 0, at_most: int = LARGEST, default: Any = _REQUIRED) -> int:
        expected = f"a whole number from {at_least:,} to {at_most:,}"
        return self._take(name, default, expected, lambda value: _is_integer(value) and at_least <= value <= at_most)

    def number(
        self, name: str, at_least: float = -math.inf, at_most: float = math.inf, default: Any = _REQUIRED
    ) -> float:
        expected = "a number" if math.isinf(at_least) else f"a number of at least {at_least}"
        return self._take(name, default, expected, lambda value: is_number(value) and at_least <= value <= at_most)

    def texts(self, name: str, default: Any = _REQUIRED) -> list[str]:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(item, str) and is_unicode(item) for item in value)

        return self._take(name, default, "a list of text", fits)

    def record(self, name: str, default: Any = _REQUIRED) -> "Record":
        """An object in this one."""
        value = self._take(name, default, "an object", lambda value: isinstance(value, dict))
        return Record(self.where, value, f"{self._path}{name}.")

    def config(self, cls: type[Config]) -> Config:
        """This object as a config class: unknown fields are an error, missing ones get their default."""
        hints = get_type_hints(cls)
        known = {field.name: field for field in fields(cls) if field.init}  # type: ignore[arg-type]
        for name in self.values:
            if name not in known:
                raise self.error(name, "no such field", known=", ".join(known))
        values = {}
        for name, field in known.items():
            if name in self.values:
                values[name] = self._as(hints[name], name)
            elif field.default is MISSING and field.default_factory is MISSING:
                raise self.error(name, "is missing")
        try:
            return cls(**values)
        except InputError as error:
            raise InputError(f"{self.where}: {self._path}{error}") from None

    def error(self, name: str, message: str, known: str = "") -> InputError:
        """An `InputError` about one field."""
        return InputError(f"{self.where}: {self._path}{name}: {message}" + (f" (known: {known})" if known else ""))

    def _as(self, hint: Any, name: str) -> Any:
        """A field converted according to its type hint."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            if NoneType in arguments and self.values[name] is None:
                return None
            hint = next(one for one in arguments if one is not NoneType)
            origin, arguments = get_origin(hint), get_args(hint)
        if origin is Literal:
            return self._take(name, _REQUIRED, " or ".join(map(repr, arguments)), lambda value: value in arguments)
        if origin is tuple:
            return tuple(self.texts(name))
        if is_dataclass(hint):
            return self.record(name).config(hint)  # type: ignore[arg-type]
        if hint is bool:
            return self.boolean(name)
        if hint is int:
            return self.integer(name, at_least=-LARGEST)
        if hint is float:
            return float(self.number(name))
        return self.text(name)

    def _take(self, name: str, default: Any, expected: str, fits: Any) -> Any:
        if name not in self.values:
            if default is _REQUIRED:
                raise self.error(name, f"is missing, expected {expected}")
            return default
        if not fits(self.values[name]):
            raise self.error(name, f"{_short(self.values[name])}, expected {expected}")
        return self.values[name]


def read_tensors(file: Path, expected: dict[str, tuple[int, ...]] | None = None) -> dict[str, "Tensor"]:
    """The tensors of a safetensors file, all numbers finite. Pickled files are never opened.

    Args:
        file: The file.
        expected: The name and shape of every tensor it must hold, checked before any is read.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        pickled = sorted(file.parent.glob("*.bin")) + sorted(file.parent.glob("*.pt*"))
        hint = f"; {pickled[0].name} is pickled and will not be opened, convert it to safetensors" if pickled else ""
        raise InputError(f"{file}: no such file{hint}")
    try:
        with safe_open(file, "pt") as opened:
            names = set(opened.keys())
            if expected is not None:
                _check_shapes(file, {name: tuple(opened.get_slice(name).get_shape()) for name in names}, expected)
            tensors = {name: opened.get_tensor(name) for name in sorted(names)}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file}: damaged ({str(error).splitlines()[0]})") from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{file}: {name} holds numbers that are not finite")
    return tensors


def _check_shapes(file: Path, found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> None:
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise InputError(f"{file}: lacks {name}")
        if name not in expected:
            raise InputError(f"{file}: has unknown {name}")
        if found[name] != tuple(expected[name]):
            raise InputError(f"{file}: {name} is {found[name]}, expected {tuple(expected[name])}")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 40 else text[:37] + "..."


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a finite number, small enough for arithmetic with floats."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_unicode(text: str) -> bool:
    """Whether it has no lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)

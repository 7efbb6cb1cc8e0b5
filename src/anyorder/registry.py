"""Lookup by name: the part before the colon is a key in a dict, the part after it holds options.

`outer-in:stride=2`, `threshold:0.9`. Knows nothing about orders, schedules, revisions, rewards or tasks.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any, Self, TypeVar

from anyorder.errors import InputError, unknown


class Named:
    """Something that users find by name."""

    name: str = ""
    """As the user wrote it, options included, for tables and signatures."""

    def __str__(self) -> str:
        return self.name or type(self).__name__

    @classmethod
    def parse(cls, options: str) -> Self:
        """Build it from the part after the colon: numbers, in the order of its constructor's arguments."""
        numbers: list[float] = []
        for text in filter(None, (part.strip() for part in options.split(","))):
            try:
                number = float(text)
            except ValueError:
                raise InputError(f"'{text}' is not a number") from None
            numbers.append(int(number) if number.is_integer() else number)
        arguments = signature(cls).parameters
        if len(numbers) > len(arguments):
            raise InputError(f"takes {len(arguments) or 'no'} options ({', '.join(arguments)})".replace(" ()", ""))
        return cls(*numbers)


N = TypeVar("N", bound=Named)
T = TypeVar("T")


def from_name(kind: str, name: str, registry: Mapping[str, type[N]], also: Iterable[str] = ()) -> N:
    """The object of that name. Messages call it a `kind`; one about an unknown name also lists those of `also`."""
    name = name.strip()
    base, _, options = name.partition(":")
    if base not in registry:
        raise unknown(kind, base, [*also, *sorted(registry)])
    try:
        found = registry[base].parse(options)
    except InputError as error:
        raise InputError(f"{kind} '{name}': {error}") from None
    found.name = name
    return found


def summary(named: object) -> str:
    """The first line of its documentation: what a user reads about a name."""
    return (named.__doc__ or "").strip().partition("\n")[0]


def register(kind: str, name: str, registry: dict[str, Any]) -> Callable[[T], T]:
    """A decorator that puts what it decorates into a registry under this name.

    The name of a built-in is taken. A user's own may be replaced, as in a notebook.
    """

    def add(entry: T) -> T:
        module = getattr(registry.get(name), "__module__", None) or ""
        if module.partition(".")[0] == __name__.partition(".")[0]:
            raise InputError(f"there is already {kind} '{name}': choose another name")
        registry[name] = entry
        return entry

    return add


def is_count(text: str) -> bool:
    """Whether this is a whole number from 1 to a billion, more than any count needs."""
    return text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= 10**9


def check_count(what: str, value: float, at_least: int = 1, at_most: int = 10**9) -> None:
    """Raise an `InputError` unless this is a whole number within these bounds."""
    if not (at_least <= value <= at_most and value == int(value)):
        raise InputError(f"{what} {value:g}: expected a whole number from {at_least} to {at_most:,}")


def split_names(text: str, continues: Callable[[str], bool]) -> list[str]:
    """Names from a comma-separated list; a part that `continues` the previous name's options is joined to it."""
    found: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if found and ":" in found[-1] and continues(part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def is_number(text: str) -> bool:
    """Whether this reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True

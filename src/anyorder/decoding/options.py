"""Options in the name of a schedule or a revision: the `0.9` of `threshold:0.9`."""

from inspect import signature
from typing import TypeVar

from anyorder.errors import InputError

T = TypeVar("T")


def with_numbers(kind: type[T], options: str) -> T:
    """An object made from comma-separated numbers, in the order of its constructor's arguments."""
    numbers: list[float] = []
    for text in filter(None, (part.strip() for part in options.split(","))):
        try:
            number = float(text)
        except ValueError:
            raise InputError(f"'{text}' is not a number") from None
        numbers.append(int(number) if number.is_integer() else number)
    arguments = signature(kind).parameters
    if len(numbers) > len(arguments):
        raise InputError(f"takes {len(arguments) or 'no'} options ({', '.join(arguments)})".replace(" ()", ""))
    return kind(*numbers)

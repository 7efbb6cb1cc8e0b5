"""Errors for the user. They may be raised anywhere; the command line prints them as one line and exits with code 2.

Nothing here knows the name of a flag. An error carries the field it is about and the config class that the field
belongs to, and `anyorder.cli` says which flag that is.
"""

from collections.abc import Iterable
from difflib import get_close_matches

LARGEST = (1 << 63) - 1
"""The largest number that a user may give."""
MAX_SEED = (1 << 32) - 1
"""The largest seed that every library accepts."""


class InputError(Exception):
    """The user's input is wrong; the message is one line that says where and what was expected.

    Args:
        message: What is wrong. With a field, it continues after the field's name: `0: expected a number of at least 1`.
        field: The argument or config field that is wrong, such as `log_every`.
        config: The config class that the field belongs to; None for an argument of a function.
    """

    def __init__(self, message: str, field: str | None = None, config: type | None = None):
        super().__init__(message)
        self.message = message
        self.field = field
        self.config = config

    def __str__(self) -> str:
        return f"{self.field} {self.message}" if self.field else self.message


class LostProcessError(InputError):
    """Another of the processes that share the work is gone; each remaining one reports it."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that is not in `known`, with the nearest one suggested.

    >>> str(unknown("order", "margn", ["margin", "uniform"]))
    "unknown order 'margn': did you mean 'margin'? (known: margin, uniform)"
    >>> str(unknown("order", "l2r", ["margin", "uniform"]))
    "unknown order 'l2r' (known: margin, uniform)"
    """
    known = list(known)
    near = [one for one in known if name.startswith(one) or (name and one.startswith(name))]
    near = near or get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else ""
    return InputError(f"unknown {kind} '{name}'{hint} (known: {', '.join(known)})")


def check_number(
    field: str,
    value: float | None,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    whole: bool = False,
    config: type | None = None,
) -> None:
    """Raise an `InputError` for what is no number, or one that is out of bounds, infinite, NaN or absurd.

    None passes: nothing given. whole: whether only whole numbers are right.

    >>> check_number("log_every", 0, at_least=1)
    Traceback (most recent call last):
    anyorder.errors.InputError: log_every 0: expected a number of at least 1
    """
    if value is None or (
        (is_number := hasattr(value, "__abs__"))
        and abs(value) <= LARGEST
        and (not whole or value % 1 == 0)
        and (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
    ):
        return
    if at_most is None and below is None and is_number and abs(value) > LARGEST:
        at_most = LARGEST
    bounds = (("at least", at_least), ("more than", above), ("at most", at_most), ("less than", below))
    expected = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
    raise InputError(f"{value}: expected a {'whole ' if whole else ''}number of {expected}", field, config)

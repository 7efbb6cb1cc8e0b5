"""Errors that speak to the user. Raised anywhere, caught once in `anyorder.cli`: one line, exit code 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(Exception):
    """What the user gave is wrong; the message is one line that says where and what was expected."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that is not in `known`, with the nearest one suggested.

    >>> str(unknown("order", "margn", ["margin", "uniform"]))
    "unknown order 'margn': did you mean 'margin'? (known: margin, uniform)"
    """
    known = list(known)
    near = [one for one in known if name.startswith(one) or (name and one.startswith(name))]
    near = near or get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return InputError(f"unknown {kind} '{name}': {hint}(known: {', '.join(known)})")

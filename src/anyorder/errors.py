"""Errors that speak to the user. Raised anywhere, caught once in `anyorder.cli`: one line, exit code 2."""

import math
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


def check_number(
    option: str,
    value: float | None,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """An `InputError` for a number that is out of bounds, infinite or no number. None passes: nothing was given.

    >>> check_number("--run.log_every", 0, least=1)
    Traceback (most recent call last):
    anyorder.errors.InputError: --run.log-every 0: expected a number of at least 1
    """
    if value is None or (
        math.isfinite(value)
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    ):
        return
    if option.startswith("--"):
        option = option.replace("_", "-")  # as help spells it
    bounds = (("at least", least), ("more than", above), ("at most", most), ("less than", below))
    told = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
    raise InputError(f"{option} {value}: expected a number of {told}")

"""Schedules and revisions that the page offers, with short labels, and what `anyorder orders` says about any other."""

from dataclasses import dataclass
from typing import Literal

from anyorder.decoding.revision import REVISIONS, make_revision
from anyorder.decoding.schedules import SCHEDULES

Kind = Literal["translation", "infill", "puzzle"]


@dataclass(frozen=True)
class Choice:
    """One name to choose."""

    name: str
    label: str
    """What it does, in a few words."""
    group: str = ""
    """The heading under which it is offered."""


def schedule_choices(kind: Kind) -> list[Choice]:
    """A short list, the default first. Texts with masks have few of them, so their steps and blocks are smaller."""
    size, word = (4, "four") if kind == "infill" else (8, "eight")
    groups = {
        "So many at once": {
            "one": "one position a step",
            "2": "two positions a step",
            "4": "four positions a step",
        },
        "So many steps": {
            "steps:1": "everything at once",
            f"steps:{size}": f"{word} steps of equal size",
            f"cosine:{size}": f"{word} steps, small ones first",
            "dilated": "on a grid that gets finer, with the order dilated",
        },
        "Where the model is confident": {
            "threshold:0.7": "all tokens with a probability of 70 %",
            "threshold:0.9": "all tokens with a probability of 90 %",
            "factor:1": "the more at once, the more probable they must be",
            "entropy-bound:1": "until the uncertainty adds up to 1 nat",
            "klass": "what is probable and has stopped changing",
        },
        "Block by block": {
            f"blocks:{size}": f"{word} positions from the left, then the next {word}",
            f"blocks:{size}+threshold:0.7": "in each block, what has a probability of 70 %",
        },
    }
    return [Choice(name, label, group) for group, names in groups.items() for name, label in names.items()]


REVISION_CHOICES = [
    Choice("none", "what is filled stays"),
    Choice("mask-predict:4", "four passes: the least probable tokens are written again"),
    Choice("p2:4", "four passes: what the model doubts now is written again"),
    Choice("gibbs", "every token is written once more, one at a time"),
]


def describe_schedule(name: str) -> str:
    """What a schedule does, in one line. name: one that `make_schedule` takes."""
    base = name.partition(":")[0].strip()
    if base not in SCHEDULES:
        return "One position a step." if base in ("one", "1") else f"{base} positions a step."
    return _first_line(SCHEDULES[base])


def describe_revision(name: str) -> str:
    """What a revision masks again, in one line. name: one that `make_revision` takes."""
    return _first_line(REVISIONS[name.partition(":")[0].strip()])


def usual_schedule(revision: str) -> str:
    """The schedule that a revision was published with."""
    return make_revision(revision).usual_schedule


def _first_line(named: type) -> str:
    return (named.__doc__ or "").strip().partition("\n")[0]

"""Schedules and revisions that the page offers, with short labels, and what `anyorder orders` says about any other."""

from dataclasses import dataclass
from typing import Literal

from anyorder.decoding.revision import REVISIONS
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


def schedule_choices(kind: Kind, default: str) -> list[Choice]:
    """A short list, the default first. Texts with masks have few of them, so their steps and blocks are smaller."""
    size, word = (4, "four") if kind == "infill" else (8, "eight")
    groups = {
        "Positions per step": {
            "one": "one position per step",
            "2": "two positions per step",
            "4": "four positions per step",
        },
        "Number of steps": {
            "steps:1": "everything at once",
            f"steps:{size}": f"{word} steps of equal size",
            f"cosine:{size}": f"{word} steps, small ones first",
            "dilated": "increasingly fine grids, with the order dilated",
        },
        "Where the model is confident": {
            "threshold:0.7": "all tokens with a probability of 70 % or more",
            "threshold:0.9": "all tokens with a probability of 90 % or more",
            "factor:1": "the more tokens at once, the more probable they must be",
            "entropy-bound:1": "until the entropies add up to 1 nat",
            "klass": "tokens that are probable and no longer change",
        },
        "Block by block": {
            f"blocks:{size}": f"{word} positions from the left, then the next {word}",
            f"blocks:{size}+threshold:0.7": "in each block, all tokens with 70 % or more",
        },
    }
    choices = [Choice(name, label, group) for group, names in groups.items() for name, label in names.items()]
    if default == choices[0].name:
        return choices
    first = Choice(default, "one position per step, in the blocks of the model", choices[0].group)
    return [first, *(choice for choice in choices if choice.name != default)]


REVISION_CHOICES = [
    Choice("none", "filled tokens stay"),
    Choice("mask-predict:4", "four passes that rewrite the least probable tokens"),
    Choice("p2:4", "four passes that rewrite what the model now doubts"),
    Choice("gibbs", "rewrite every token once, one at a time"),
]


def describe_schedule(name: str) -> str:
    """What a schedule does, in one line. name: one that `make_schedule` takes."""
    base = name.partition(":")[0].strip()
    if base not in SCHEDULES:
        return "One position per step." if base in ("one", "1") else f"{base} positions per step."
    return _first_line(SCHEDULES[base])


def describe_revision(name: str) -> str:
    """What a revision masks again, in one line. name: one that `make_revision` takes."""
    return _first_line(REVISIONS[name.partition(":")[0].strip()])


def _first_line(named: type) -> str:
    return (named.__doc__ or "").strip().partition("\n")[0]

"""Schedules and revisions that the page offers, with short labels, and what `anyorder orders` says about any other."""

from collections.abc import Callable

from anyorder.app.schemas import Kind, RevisionChoice, ScheduleChoice
from anyorder.decoding.revision import REVISIONS
from anyorder.decoding.schedules import SCHEDULES
from anyorder.registry import summary


def schedule_choices(kind: Kind, default: str) -> list[ScheduleChoice]:
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
    choices = [
        ScheduleChoice(name=name, label=label, group=group)
        for group, names in groups.items()
        for name, label in names.items()
    ]
    if default == choices[0].name:
        return choices
    label = "one position per step, in the blocks of the model"
    first = ScheduleChoice(name=default, label=label, group=choices[0].group)
    return [first, *(choice for choice in choices if choice.name != default)]


def revision_choices(usual_schedule: Callable[[str], str]) -> list[RevisionChoice]:
    """A short list, none first. usual_schedule: of the revision of that name."""
    labels = {
        "none": "filled tokens stay",
        "mask-predict:4": "four passes that rewrite the least probable tokens",
        "p2:4": "four passes that rewrite what the model now doubts",
        "gibbs": "rewrite every token once, one at a time",
    }
    return [
        RevisionChoice(name=name, label=label, usual_schedule=usual_schedule(name)) for name, label in labels.items()
    ]


def describe_schedule(name: str) -> str:
    """What a schedule does, in one line. name: one that `make_schedule` takes."""
    base = name.partition(":")[0].strip()
    if base not in SCHEDULES:
        return "One position per step." if base in ("one", "1") else f"{base} positions per step."
    return summary(SCHEDULES[base])


def describe_revision(name: str) -> str:
    """What a revision masks again, in one line. name: one that `make_revision` takes."""
    return summary(REVISIONS[name.partition(":")[0].strip()])

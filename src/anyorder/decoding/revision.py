"""Revision: which filled positions are masked again after a step. There is none by default.

Without revision a trajectory is a permutation; with it the trajectory keeps every write.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from anyorder.registry import from_name, with_numbers


@dataclass(frozen=True)
class RevisionState:
    """What a revision may look at after a step: B sequences, padded to T positions."""

    step: int
    """The step that was just made, from 1."""
    lengths: Tensor
    """(B,) int64"""
    filled: Tensor
    """(B, T) bool: true where a position was filled and may be masked again. Given positions never are."""
    tokens: Tensor
    """(B, T) int64: what stands there now."""
    logprobs: Tensor
    """(B, T) float: the model's log-probability of each token when it was written."""
    steps: Tensor
    """(B, T) int: the step of the last write."""


class Revision(ABC):
    """One way to decide what is masked again."""

    name: str = ""
    """As the user wrote it: it names the revision in signatures."""

    @classmethod
    def parse(cls, options: str) -> "Revision":
        """From what stands after the colon of its name: numbers for its constructor."""
        return with_numbers(cls, options)

    @abstractmethod
    def last_step(self, length: int) -> int:
        """The last step after which anything may be masked again, for canvases of up to `length` positions."""

    @abstractmethod
    def remask(self, state: RevisionState) -> Tensor:
        """(B, T) bool: the filled positions to mask again."""


class NoRevision(Revision):
    """What is filled stays."""

    name = "none"

    def last_step(self, length: int) -> int:
        return 0

    def remask(self, state: RevisionState) -> Tensor:
        raise AssertionError("never asked")


REVISIONS: dict[str, type[Revision]] = {"none": NoRevision}


def register_revision(name: str) -> Callable[[type[Revision]], type[Revision]]:
    """Class decorator: the revision is found under this name."""

    def add(revision: type[Revision]) -> type[Revision]:
        REVISIONS[name] = revision
        return revision

    return add


def make_revision(name: str | Revision) -> Revision:
    """The revision of that name: `none`."""
    if isinstance(name, Revision):
        return name
    return from_name("revision", name, REVISIONS)

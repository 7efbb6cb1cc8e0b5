"""Options that several verbs share, each defined once, with its default and its help."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from anyorder.cli.parser import SharedOptions
from anyorder.data.corpus import OnInvalid
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.device import Device


@dataclass(frozen=True)
class OrderOptions(SharedOptions):
    """Which positions to fill, and when."""

    order: str = AUTO
    """Which position to fill next; 'anyorder orders' lists the names. auto is the model's learned order, or margin if
    it has none."""
    schedule: str = AUTO
    """How many positions to fill per step: one, a number, steps:T, cosine:T, threshold:P (all positions whose best
    token has probability P or more), blocks:B+threshold:P, and others that 'anyorder orders' lists. auto is the
    schedule published with the revision; without a revision it is one, or blocks:B for a model with blocks of B
    positions."""
    revision: str = "none"
    """Which filled positions to mask again after a step: none, mask-predict:T, refine:T, gibbs:N, p2:T or remdm:T."""


@dataclass(frozen=True)
class SearchOptions(SharedOptions):
    """How to choose tokens."""

    beam: str = "1"
    """Beam size for each text (and each target length): N (beam over tokens, in the given order), positions:N (over
    the positions that the order ranks highest), or joint:N (over positions and tokens at once, for the order
    max-prob). 1 is greedy."""
    temperature: float = 0.0
    """Sampling temperature; 0 always picks the most likely token."""
    top_p: float = 1.0
    """Nucleus sampling: sample from the smallest set of tokens whose total probability reaches this."""
    seed: int = 1
    """Random seed for orders, revisions and sampled tokens."""
    device: Device = "auto"
    """Device to run on."""
    batch_tokens: int | None = None
    """Tokens to decode per batch. On CUDA, rounding may change a few results."""

    def config(self, **more: Any) -> DecodingConfig:
        """The config of these options and more fields."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "device"}
        return DecodingConfig(**own, **more)


@dataclass(frozen=True)
class DecodingOptions(SearchOptions, OrderOptions):
    """How to decode."""


@dataclass(frozen=True)
class LineOptions(SharedOptions):
    """What to print and write."""

    trace: bool = False
    """Show the text after every step: [ ] marks neighbors filled from left to right, { } from right to left, and
    old->new a revised token. A puzzle is shown as a grid: [ ] marks newly filled cells, { } revised ones."""
    json: Path | None = None
    """Also write the trajectories to this file, one per line (plain, .gz, .xz)."""
    strict: bool = False
    """Stop with an error at the first problematic line."""

    @property
    def on_invalid(self) -> OnInvalid:
        """What to do with invalid UTF-8."""
        return "strict" if self.strict else "replace"

"""The record of one generation, which everything downstream reads: what was written, and in which order."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from anyorder.errors import InputError


@dataclass(frozen=True)
class Trajectory:
    """One sentence and how it came about."""

    source: str
    """The sentence that was translated, as given."""
    text: str
    """The finished translation, as a reader expects it."""
    tokens: list[str]
    """Its subwords; `@@` where a word goes on."""
    steps: list[int]
    """The step, from 1, at which each position was filled."""
    logprobs: list[float]
    """The model's log-probability of each token when it was filled in."""
    order: str
    length: int
    """Number of subwords."""
    signature: str
    """How it was made: order, budget, beam, length, seed, version."""

    @property
    def mean_logprob(self) -> float:
        return sum(self.logprobs) / len(self.logprobs)

    @property
    def permutation(self) -> list[int]:
        """Positions in the order in which they were filled, from the left within one step."""
        return sorted(range(self.length), key=lambda i: (self.steps[i], i))

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "Trajectory":
        try:
            value: dict[str, Any] = json.loads(line)
            made = cls(**{field.name: value[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"not a trajectory: {error}") from None
        if not len(made.tokens) == len(made.steps) == len(made.logprobs) == made.length:
            raise InputError("not a trajectory: tokens, steps and logprobs differ in length")
        return made

"""Where the target length is chosen.

First a length rule says which lengths to try for a source: the reference's, predicted ones, those of a table. Then the
hypothesis with the best log-probability / length ** length_penalty is kept; `best_first` ranks them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyorder.decoding.state import Hypothesis
from anyorder.errors import InputError
from anyorder.models.native.translation_model import TranslationModel
from anyorder.registry import is_count

DEFAULT_LENGTH = "candidates:4"
"""The default in Python, on the command line and in the explorer; evaluation and validation use `gold`."""
GIVEN = "given"
"""The rule for canvases whose masks already fix the length."""


@dataclass(frozen=True)
class LengthRule:
    """Where target lengths come from."""

    kind: str
    count: int = 1

    @property
    def name(self) -> str:
        return self.kind if self.kind in ("gold", "predicted", GIVEN) else f"{self.kind}:{self.count}"

    def candidates(
        self, model: TranslationModel, sources: Sequence[np.ndarray], direction: str, gold: Sequence[int] | None
    ) -> list[list[int]]:
        """Lengths to try for every source, best guess first. gold: the lengths of the references."""
        if self.kind == GIVEN:
            raise InputError("given is for canvases with masks: use predicted, candidates:N or gold", "length")
        if self.kind == "gold":
            if gold is None:
                raise InputError("gold needs references: or use predicted, candidates:N or table:N", "length")
            return [[length] for length in gold]
        if self.kind == "fixed":
            if self.count > model.max_length:
                raise InputError(f"{self.count}: the model has room for {model.max_length} subwords", "length")
            return [[self.count] for _ in sources]
        if self.kind == "table":
            return table_lengths(model, [len(ids) for ids in sources], direction, self.count)
        lengths: list[list[int]] = []
        for start in range(0, len(sources), 256):
            lengths += model.predict_lengths(list(sources[start : start + 256]), direction, self.count)
        return lengths


def best_first(hypotheses: Sequence[Hypothesis], length_penalty: float = 1.0) -> list[Hypothesis]:
    """Rank the hypotheses of a sentence by summed log-probability / length ** length_penalty.

    A penalty of 1 gives the mean, 0 the sum; higher values favor longer hypotheses. If two are equal, the one whose
    length was proposed first wins: sorting is stable.
    """

    def score(hypothesis: Hypothesis) -> float:
        return float(hypothesis.logprobs.mean()) * len(hypothesis.ids) ** (1 - length_penalty)

    return sorted(hypotheses, key=score, reverse=True)


def table_lengths(model: TranslationModel, sources: Sequence[int], direction: str, count: int) -> list[list[int]]:
    """The most frequent target lengths for sources of these lengths, at most `count` each."""
    if model.length_table is None:
        raise InputError("table needs a model with a table of lengths: use predicted or gold", "length")
    table = [model.length_table.candidates(direction, length, count) for length in sources]
    return [list(dict.fromkeys(min(length, model.max_length) for length in lengths)) for lengths in table]


def make_length(name: str) -> LengthRule:
    """`gold`, `predicted`, `candidates:N`, `table:N` or `fixed:N`; `given` if the canvas fixes it."""
    kind, colon, count = name.partition(":")
    if kind in ("gold", "predicted", GIVEN) and not colon:
        return LengthRule(kind)
    if kind in ("candidates", "table", "fixed") and is_count(count):
        return LengthRule(kind, int(count))
    if kind in ("candidates", "table") and not colon:
        return LengthRule(kind, 4)
    raise InputError(f"unknown length '{name}': expected gold, predicted, candidates:N, table:N or fixed:N")

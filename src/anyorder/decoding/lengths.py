"""Which target lengths are tried for a source: the reference's, the predictor's, the table's, or a given one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel


@dataclass(frozen=True)
class LengthChoice:
    """Where target lengths come from. Of several candidates the one with the best mean log-probability is kept."""

    kind: str
    count: int = 1

    @property
    def name(self) -> str:
        return self.kind if self.kind in ("gold", "predicted") else f"{self.kind}:{self.count}"

    def candidates(
        self, model: TranslationModel, sources: Sequence[np.ndarray], direction: str, gold: Sequence[int] | None
    ) -> list[list[int]]:
        """Lengths to try for every source, best guess first."""
        if self.kind == "gold":
            if gold is None:
                raise InputError("--length gold needs references: use predicted, candidates:N or table:N")
            return [[length] for length in gold]
        room = model.config.transformer.max_positions - 2
        if self.kind == "fixed":
            if self.count > room:
                raise InputError(f"length {self.count}: the model has room for {room} subwords")
            return [[self.count] for _ in sources]
        if self.kind == "table":
            if model.length_table is None:
                raise InputError("this model has no table of lengths: use --length predicted or gold")
            table = model.length_table
            return [
                list(dict.fromkeys(min(length, room) for length in table.candidates(direction, len(ids), self.count)))
                for ids in sources
            ]
        return predict_in_pieces(model, sources, direction, self.count)


def make_length(name: str) -> LengthChoice:
    """`gold`, `predicted`, `candidates:N`, `table:N` or `fixed:N`."""
    kind, colon, count = name.partition(":")
    if kind in ("gold", "predicted") and not colon:
        return LengthChoice(kind)
    if kind in ("candidates", "table", "fixed") and count.isdecimal() and int(count) > 0:
        return LengthChoice(kind, int(count))
    if kind in ("candidates", "table") and not colon:
        return LengthChoice(kind, 4)
    raise InputError(f"unknown length '{name}': expected gold, predicted, candidates:N, table:N or fixed:N")


def predict_in_pieces(
    model: TranslationModel, sources: Sequence[np.ndarray], direction: str, count: int, piece: int = 256
) -> list[list[int]]:
    """The predictor's best lengths, a few hundred sources at a time."""
    lengths: list[list[int]] = []
    for start in range(0, len(sources), piece):
        lengths += model.predict_lengths(list(sources[start : start + piece]), direction, count)
    return lengths

"""Masked language modelling on monolingual text (Devlin et al. 2019, as in XLM), to start a translation model from."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import pack
from anyorder.data.store import Store
from anyorder.errors import InputError, check_number
from anyorder.models.attention import FullAttention, QueryPositions, Segments
from anyorder.models.translation import TranslationModel
from anyorder.training.batches import (
    BatchRows,
    Cursor,
    draw,
    offsets_of,
    pad_places,
    pad_to,
    random_for,
    shuffled,
    tail,
)
from anyorder.training.task import HostBatch, TextTask


@dataclass(frozen=True)
class MLMConfig:
    """What the model learns from."""

    share: float = 0.15
    """Share of the words that are predicted."""
    masked: float = 0.8
    """Of those, how many are replaced by the mask."""
    random: float = 0.1
    """Of those, how many are replaced by any other word; the rest stays as it is."""

    def check(self) -> None:
        check_number("--cloze.share", self.share, above=0, at_most=1)
        check_number("--cloze.masked", self.masked, at_least=0, at_most=1)
        check_number("--cloze.random", self.random, at_least=0, at_most=1)
        check_number("--cloze.masked + --cloze.random", round(self.masked + self.random, 9), at_most=1)


class MLMLoss(nn.Module):
    def __init__(self, model: TranslationModel):
        super().__init__()
        self.model = model

    def forward(
        self, batch: dict[str, Tensor], longest: int, lengths: dict[str, np.ndarray] | None = None
    ) -> tuple[Tensor, Tensor]:
        lengths = lengths or {}
        segments = Segments(batch["segment_offsets"], longest, lengths.get("segment"))
        at = QueryPositions(batch["rows"], Segments(batch["row_offsets"], longest, lengths.get("row")))
        inputs = batch["tokens"], batch["positions"], batch["languages"]
        hidden = self.model.transformer(*inputs, FullAttention(segments), at)
        loss = F.cross_entropy(self.model.logits(hidden.last).float(), batch["labels"])
        return loss, loss.detach()[None]


class PretrainTask(TextTask):
    """Sentences of all languages of a store: its monolingual text, or both sides of its training pairs."""

    reports = ("loss",)

    def __init__(
        self, store: Store, model: TranslationModel, cloze: MLMConfig, batch_tokens: int, seed: int, fixed: bool
    ):
        cloze.check()
        self.learner = model
        self.module = MLMLoss(model)
        # Nothing here trains it, and processes that wait for its gradients would wait for ever.
        model.length.requires_grad_(False)
        model.config = replace(model.config, predicts_length=False)
        split = store.split("mono" if "mono" in store else "train")
        self._languages = [store.languages.index(language) for language in split.sides]
        self._sides = list(split.sides.values())
        self._side = np.repeat(np.arange(len(self._sides)), [len(side) for side in self._sides])
        self._sentence = np.concatenate([np.arange(len(side)) for side in self._sides])
        self._sizes = np.concatenate([side.lengths for side in self._sides]) + 2
        self._longest = int(self._sizes.max())
        room = min(batch_tokens, model.config.transformer.max_positions)
        if self._longest > room:
            raise InputError(f"{store.path}: has sentences of {self._longest - 2} subwords, room is for {room - 2}")
        store.check_ids(split, len(model.vocabulary))
        self._most = int(1.25 * batch_tokens / self._sizes.mean()) + 10
        self._cloze, self._batch_tokens, self._seed, self._fixed = cloze, batch_tokens, seed, fixed

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[HostBatch, Cursor]]:
        everything = np.arange(len(self._sizes))

        def epoch_rows(epoch: int) -> np.ndarray:
            return shuffled(everything, None, random_for(self._seed, "epoch", epoch))

        sizes = self._sizes.__getitem__
        room = self._batch_tokens, self._most
        for one, behind in draw(cursor, epoch_rows, sizes, room, self._seed, first, rank, world):
            yield self._build(one), behind

    def _build(self, drawn: BatchRows) -> HostBatch:
        vocabulary, random = self.learner.vocabulary, drawn.random
        side = self._side[drawn.rows]
        languages = np.array(self._languages)[side]
        row = pack(self._sides, side, self._sentence[drawn.rows], languages, vocabulary.eos)
        inner = row.inner
        rows = inner[random.random(len(inner)) < self._cloze.share]
        labels = row.tokens[rows]
        lot = random.random(len(rows))
        other = random.integers(vocabulary.first_word, len(vocabulary), len(rows))
        changed = np.where(lot < self._cloze.masked + self._cloze.random, other, labels)
        row.tokens[rows] = np.where(lot < self._cloze.masked, vocabulary.mask, changed)
        real, predicted = len(row.tokens), len(rows)
        sizes, longest = row.sizes, self._longest
        arrays = {"tokens": row.tokens, "positions": row.positions, "languages": row.languages}
        segments = len(sizes)
        if self._fixed:
            size, segments = self._batch_tokens, self._most + self._batch_tokens // longest + 1
            rows, labels = pad_places(rows, labels, size, int(size * min(1.0, 1.25 * self._cloze.share)))
            sizes = np.concatenate([sizes, tail(real, size, longest)])
            arrays = {name: pad_to(array, size, 0) for name, array in arrays.items()}
        segment_of = np.repeat(np.arange(len(sizes)), sizes)
        per_segment = np.bincount(segment_of[rows], minlength=len(sizes))
        arrays |= {"rows": rows, "labels": labels}
        arrays["segment_offsets"] = offsets_of(sizes, segments)
        arrays["row_offsets"] = offsets_of(per_segment, segments)
        lengths = None if self._fixed else {"segment": sizes, "row": per_segment}
        return HostBatch(arrays, longest, lengths, real, min(predicted, len(rows)))

    def validate(self, average: nn.Module) -> dict[str, float]:
        return {}

    def fingerprint(self) -> dict[str, object]:
        vocabulary = self.learner.vocabulary.fingerprint
        return {
            "objective": "pretrain",
            "vocabulary": vocabulary,
            "sentences": len(self._sizes),
            "batch_tokens": self._batch_tokens,
            "shape": asdict(self.learner.config.transformer),
            "cloze": asdict(self._cloze),
        }

"""Masked language modeling on monolingual text (Devlin et al. 2019, as in XLM), to initialize a translation model.

Knows nothing about how long to train.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import pack
from anyorder.data.store import Split, Store
from anyorder.data.stores import Data, open_stores
from anyorder.errors import InputError, check_number
from anyorder.models.attention import FullAttention, QueryPositions, Segments
from anyorder.models.transformer import TransformerConfig
from anyorder.models.translation import TranslationModel
from anyorder.training.batches import (
    BatchRows,
    Cursor,
    iter_batches,
    pad_predictions,
    pad_to,
    padded_cu_seqlens,
    random_for,
    shuffled,
    tail_lengths,
)
from anyorder.training.deepnorm import DeepNorm, use_deepnorm
from anyorder.training.objective import HostBatch, TextObjective


@dataclass(frozen=True)
class MLMConfig:
    """What the model learns from."""

    probability: float = 0.15
    """Probability that a token is predicted."""
    mask_replace_prob: float = 0.8
    """Probability that a predicted token is replaced by the mask."""
    random_replace_prob: float = 0.1
    """Probability that a predicted token is replaced by a random one; otherwise it is left unchanged."""

    def __post_init__(self) -> None:
        check_number("probability", self.probability, above=0, at_most=1, config=MLMConfig)
        for name in ("mask_replace_prob", "random_replace_prob"):
            check_number(name, getattr(self, name), at_least=0, at_most=1, config=MLMConfig)
        if round(self.mask_replace_prob + self.random_replace_prob, 9) > 1:
            raise InputError(
                f"{self.random_replace_prob}: with mask_replace_prob {self.mask_replace_prob} it is more than 1",
                "random_replace_prob",
                MLMConfig,
            )


class MLMLoss(nn.Module):
    """The loss of one batch: cross-entropy of the predicted tokens."""

    def __init__(self, model: TranslationModel):
        super().__init__()
        self.model = model

    def forward(
        self, batch: dict[str, Tensor], longest: int, lengths: dict[str, np.ndarray] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss to minimize, and (1,) values to report."""
        lengths = lengths or {}
        segments = Segments(batch["segment_cu_seqlens"], longest, lengths.get("segment"))
        predicted = Segments(batch["predicted_cu_seqlens"], longest, lengths.get("predicted"))
        at = QueryPositions(batch["predicted"], predicted)
        inputs = batch["tokens"], batch["positions"], batch["languages"]
        hidden = self.model.transformer(*inputs, FullAttention(segments), at)
        loss = F.cross_entropy(self.model.logits(hidden.last).float(), batch["labels"])
        return loss, loss.detach()[None]


class MLMObjective(TextObjective):
    """Masked language modeling in all languages of the stores, on monolingual text or both sides of training pairs."""

    reports = ("loss",)

    def __init__(
        self,
        data: Data,
        model: TranslationModel,
        mlm: MLMConfig,
        batch_tokens: int,
        seed: int,
        fixed: bool,
        deepnorm: DeepNorm = "auto",
    ):
        stores = open_stores(data)
        splits = [text_split(store) for store in stores]
        self.learner = model
        self.module = MLMLoss(model)
        # The length predictor is not trained here, and distributed processes would wait forever for its gradients.
        model.length.requires_grad_(False)
        model.config = replace(model.config, predicts_length=False)
        self.deepnorm = use_deepnorm(deepnorm, model.config.transformer.num_layers)
        sides = [(language, side) for split in splits for language, side in split.sides.items()]
        self._languages = [model.config.languages.index(language) for language, _ in sides]
        self._sides = [side for _, side in sides]
        self._side = np.repeat(np.arange(len(self._sides)), [len(side) for side in self._sides])
        self._sentence = np.concatenate([np.arange(len(side)) for side in self._sides])
        self._sizes = np.concatenate([side.lengths for side in self._sides]) + 2
        self._longest = int(self._sizes.max())
        room = min(batch_tokens, model.config.transformer.max_positions)
        if self._longest > room:
            where = ", ".join(str(store.path) for store in stores)
            raise InputError(f"{where}: has sentences of {self._longest - 2} subwords, room is for {room - 2}")
        for store, split in zip(stores, splits, strict=True):
            store.check_ids(split, len(model.vocabulary))
        self._max_sentences = int(1.25 * batch_tokens / self._sizes.mean()) + 10
        self._mlm, self._batch_tokens, self._seed, self._fixed = mlm, batch_tokens, seed, fixed

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[HostBatch, Cursor]]:
        sentences = np.arange(len(self._sizes))

        def epoch_rows(epoch: int) -> np.ndarray:
            return shuffled(sentences, None, random_for(self._seed, "epoch", epoch))

        sizes = self._sizes.__getitem__
        for rows, behind in iter_batches(
            cursor, epoch_rows, sizes, self._batch_tokens, self._max_sentences, self._seed, first, rank, world
        ):
            yield self._build(rows), behind

    def _build(self, batch: BatchRows) -> HostBatch:
        mlm, vocabulary, random = self._mlm, self.learner.vocabulary, batch.random
        side = self._side[batch.rows]
        languages = np.array(self._languages)[side]
        row = pack(self._sides, side, self._sentence[batch.rows], languages, vocabulary.eos)
        inner = row.inner
        predicted = inner[random.random(len(inner)) < mlm.probability]
        if not len(predicted):  # a small batch; the loss needs something to predict
            predicted = inner[random.integers(len(inner), size=1)]
        labels = row.tokens[predicted]
        chance = random.random(len(predicted))
        other = random.integers(vocabulary.first_word, len(vocabulary), len(predicted))
        replaced = np.where(chance < mlm.mask_replace_prob + mlm.random_replace_prob, other, labels)
        row.tokens[predicted] = np.where(chance < mlm.mask_replace_prob, vocabulary.mask, replaced)
        real, count = len(row.tokens), len(predicted)
        sizes, longest = row.sizes, self._longest
        arrays = {"tokens": row.tokens, "positions": row.positions, "languages": row.languages}
        segments = len(sizes)
        if self._fixed:
            size, segments = self._batch_tokens, self._max_sentences + self._batch_tokens // longest + 1
            max_predicted = max(1, int(size * min(1.0, 1.25 * mlm.probability)))
            predicted, labels = pad_predictions(predicted, labels, size, max_predicted)
            sizes = np.concatenate([sizes, tail_lengths(real, size, longest)])
            arrays = {name: pad_to(array, size, 0) for name, array in arrays.items()}
        segment_of = np.repeat(np.arange(len(sizes)), sizes)
        per_segment = np.bincount(segment_of[predicted], minlength=len(sizes))
        arrays |= {"predicted": predicted, "labels": labels}
        arrays["segment_cu_seqlens"] = padded_cu_seqlens(sizes, segments)
        arrays["predicted_cu_seqlens"] = padded_cu_seqlens(per_segment, segments)
        lengths = None if self._fixed else {"segment": sizes, "predicted": per_segment}
        return HostBatch(arrays, longest, lengths, real, min(count, len(predicted)))

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        return {}

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "mlm",
            "vocabulary": self.learner.vocabulary.fingerprint,
            "sentences": len(self._sizes),
            "batch_tokens": self._batch_tokens,
            "transformer": asdict(self.learner.config.transformer),
            "mlm": asdict(self._mlm),
            "deepnorm": self.deepnorm,
        }

    def fingerprint_defaults(self) -> dict[str, dict[str, object]]:
        return {"transformer": asdict(TransformerConfig()), "mlm": asdict(MLMConfig())}


def text_split(store: Store) -> Split:
    """The store's monolingual text, or its training pairs if it has none."""
    return store.split("mono" if "mono" in store else "train")

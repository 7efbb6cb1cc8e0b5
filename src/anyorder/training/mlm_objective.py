"""Masked language modeling on monolingual text (Devlin et al. 2019, as in XLM), to initialize a translation model.

Knows nothing about how long to train.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.data.packing import pack
from anyorder.data.store import Data, Split, Store, open_stores
from anyorder.errors import InputError, check_number
from anyorder.models.native.attention import FullAttention, QueryPositions, Segments
from anyorder.models.native.translation_model import TranslationModel
from anyorder.training.config import DeepNorm
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
        segments = Segments(batch["row_cu_seqlens"], longest, lengths.get("row"))
        predicted = Segments(batch["predicted_cu_seqlens"], longest, lengths.get("predicted"))
        at = QueryPositions(batch["predicted"], predicted)
        inputs = batch["tokens"], batch["positions"], batch["languages"]
        hidden = self.model.transformer(*inputs, FullAttention(segments), at)
        loss = F.cross_entropy(self.model.logits(hidden).float(), batch["labels"])
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
        sides = [(language, side) for split in splits for language, side in split.sides.items()]
        self._languages = np.array([model.config.languages.index(language) for language, _ in sides])
        self._sides = [side for _, side in sides]
        self._side = np.repeat(np.arange(len(self._sides)), [len(side) for side in self._sides])
        self._sentence = np.concatenate([np.arange(len(side)) for side in self._sides])
        sizes = np.concatenate([side.lengths for side in self._sides]) + 2
        # A quarter more than expected: the number varies, and surplus predictions are dropped.
        max_predicted = max(1, int(batch_tokens * min(1.0, 1.25 * mlm.probability)))
        super().__init__(model, sizes, None, batch_tokens, seed, fixed, max_predicted, deepnorm)
        self._mlm = mlm
        self.module = MLMLoss(model)
        # The length predictor is not trained here, and distributed processes would wait forever for its gradients.
        model.length.requires_grad_(False)
        model.config = replace(model.config, predicts_length=False)
        room = min(batch_tokens, model.config.transformer.max_positions)
        if self._longest > room:
            where = ", ".join(str(store.path) for store in stores)
            raise InputError(f"{where}: has sentences of {self._longest - 2} subwords, room is for {room - 2}")
        for store, split in zip(stores, splits, strict=True):
            store.check_ids(split, len(model.vocabulary))

    def build(self, rows: np.ndarray, random: np.random.Generator) -> HostBatch:
        mlm, vocabulary, side = self._mlm, self.learner.vocabulary, self._side[rows]
        row = pack(self._sides, side, self._sentence[rows], self._languages[side], vocabulary.eos)
        inner = row.inner
        predicted = inner[random.random(len(inner)) < mlm.probability]
        if not len(predicted):  # a small batch; the loss needs something to predict
            predicted = inner[random.integers(len(inner), size=1)]
        labels = row.tokens[predicted]
        chance = random.random(len(predicted))
        other = random.integers(vocabulary.first_word, len(vocabulary), len(predicted))
        replaced = np.where(chance < mlm.mask_replace_prob + mlm.random_replace_prob, other, labels)
        row.tokens[predicted] = np.where(chance < mlm.mask_replace_prob, vocabulary.mask, replaced)
        by_token = {"tokens": row.tokens, "positions": row.positions, "languages": row.languages}
        return self._host_batch(by_token, predicted, labels, row.sizes)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "mlm",
            "vocabulary": self.learner.vocabulary.fingerprint,
            "sentences": len(self._sizes),
            "batch_tokens": self._batch_tokens,
            "transformer": self.learner.config.transformer,
            "mlm": self._mlm,
            "deepnorm": self.deepnorm,
        }


def text_split(store: Store) -> Split:
    """The store's monolingual text, or its training pairs if it has none."""
    return store.split("mono" if "mono" in store else "train")

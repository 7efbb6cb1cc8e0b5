"""Learning an order: pairs of a store, batches of rollouts, validation and saving. The loss is in `order_loss.py`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from anyorder.analysis.order_metrics import edge_share
from anyorder.data.packing import pack
from anyorder.data.store import Split, Store, join
from anyorder.decoding.state import DecodeBatch
from anyorder.device import inference_dtype
from anyorder.errors import InputError, unknown
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order, make_order, split_orders
from anyorder.orders.features import prediction_stats
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from anyorder.orders.storage import save_order
from anyorder.training.actor_critic import ActorCritic
from anyorder.training.batches import BatchRows, Cursor, iter_batches, random_for, shuffled, weights_by_corpus
from anyorder.training.config import choose_by_device
from anyorder.training.order_loss import OrderLoss, RLConfig, compute_advantages
from anyorder.training.rewards import make_reward
from anyorder.training.rollout import SamplingOrder, roll_out
from anyorder.training.task import Task
from anyorder.training.validation import ValidationSet, validation_split

FOLDER = "order"
"""Where in the folder of a run the learned order is written."""


@dataclass(frozen=True)
class OrderBatch:
    """Sentences to roll out, on the host."""

    sentences: DecodeBatch
    references: np.ndarray
    """(sentences, R) ids, padded."""
    reference_lengths: np.ndarray
    """(sentences,)"""


def with_sizes(rl: RLConfig, device: torch.device) -> RLConfig:
    """The config with every size that was not given chosen by the device."""
    return replace(
        rl,
        sentences=max(rl.num_minibatches, choose_by_device(rl.sentences, device, cuda=256, cpu=8)),
        validation_sentences=choose_by_device(rl.validation_sentences, device, cuda=3000, cpu=50),
    )


class OrderTask(Task[OrderBatch]):
    """Learn an order for a frozen model.

    Args:
        store: The text.
        model: The model that fills; it stays as it is.
        directions: The directions to learn for, such as `de-en`.
        policy: The network.
        rl: Algorithm, reward and data.
        seed: Seed of the weights and of the batches.
        compile: Whether the features are computed by compiled code.
        device: Where to train: sizes that `rl` leaves open depend on it; where the model is if not given.
    """

    reports = ("reward", "edge share", "entropy", "loss", "value loss")
    shown = ("reward", "entropy", "edge share")
    unit = "rollouts"
    folder = FOLDER
    compiles = False
    learner: ActorCritic

    def __init__(
        self,
        store: Store,
        model: TranslationModel,
        directions: Sequence[str],
        policy: PolicyConfig,
        rl: RLConfig,
        seed: int,
        compile: bool = False,
        device: torch.device | None = None,
    ):
        if model.vocabulary.fingerprint != store.vocabulary.fingerprint:
            raise InputError(f"wrong vocabulary: {store.path} was not prepared with this model's tokenizer.json")
        room = model.max_length
        if rl.max_length > room:
            raise InputError(f"{rl.max_length}: the model has room for {room} subwords", "max_length", RLConfig)
        rl = with_sizes(rl, device or model.device)
        rl = replace(rl, validation_split=validation_split(store, rl.validation_split))
        self.model = model.eval().requires_grad_(False)
        self.rl = rl
        self.epochs = rl.epochs if rl.algorithm == "ppo" else 1
        torch.manual_seed(seed)
        self.learner = ActorCritic(PolicyNetwork(policy, model.config.transformer.hidden_size), rl.has_value)
        self.module = OrderLoss(self.learner, rl)
        self.reward = make_reward(rl.reward, model.vocabulary, model.config.languages, model.config.text)
        self._directions = list(dict.fromkeys(directions))
        self._seed = seed
        self._reference = self._reference_order(rl.reference_order) if rl.kl_coef else None
        self._stats_function = torch.compile(prediction_stats, dynamic=True) if compile else prediction_stats
        heuristics = rl.validation_orders.strip()
        self._heuristics = [make_order(name) for name in split_orders(heuristics)] if heuristics else []
        split = rl.split if rl.split != "auto" else "order" if "order" in store else "train"
        self._split = join([store.split(name.strip()) for name in split.split(",")])
        self._pairs = self._eligible_pairs(self._split)
        if len(self._pairs) == 0:
            window = f"{rl.min_length} to {rl.max_length}"
            raise InputError(f"{store.path}: no pair of the split '{split}' has {window} subwords on both sides")
        store.check_ids(self._split, len(model.vocabulary))
        assert self._split.corpus is not None
        self._weights = weights_by_corpus(self._split.corpora, self._split.corpus[self._pairs[:, 1]], rl.weights)
        smallest_epoch = len(self._pairs) if self._weights is None else int(np.floor(self._weights).sum())
        if smallest_epoch < rl.num_minibatches > 1:
            raise InputError(
                f"{rl.num_minibatches}: an epoch of the split '{split}' may have no more than {smallest_epoch} pairs",
                "num_minibatches",
                RLConfig,
            )
        self._validation = None
        if rl.validation_split in store:
            assert rl.validation_sentences is not None
            self._validation = ValidationSet(
                store, rl.validation_split, rl.validation_sentences, rl.validation_length, room
            )
            for direction in self._directions:
                self._validation.check(*self.model.languages(direction))

    def _reference_order(self, name: str) -> Order:
        """That order, which must be the same in all directions."""
        bound = [make_order(name).bind(self.model, direction) for direction in self._directions]
        if len({order.identity for order in bound}) > 1:
            directions = ", ".join(self._directions)
            raise InputError(f"{name}: is not one order for {directions}", "reference_order", RLConfig)
        return bound[0]

    def _eligible_pairs(self, split: Split) -> np.ndarray:
        """(pairs, 2): the numbers of the direction and of the sentence, for pairs within the length window."""
        pairs = []
        for number, direction in enumerate(self._directions):
            for language in self.model.languages(direction):
                if language not in split.sides:
                    raise unknown("language of the store", language, list(split.sides))
            source, target = (split.sides[language].lengths for language in self.model.languages(direction))
            fits = (np.minimum(source, target) >= self.rl.min_length) & (
                np.maximum(source, target) <= self.rl.max_length
            )
            rows = np.flatnonzero(fits)
            pairs.append(np.stack([np.full_like(rows, number), rows], 1))
        return np.concatenate(pairs)

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[OrderBatch, Cursor]]:
        assert self.rl.sentences is not None
        size = min(self.rl.sentences, len(self._pairs))

        def epoch_rows(epoch: int) -> np.ndarray:
            rows = shuffled(np.arange(len(self._pairs)), self._weights, random_for(self._seed, "epoch", epoch))
            # A batch of a few left-over sentences would make a step as large as a full one's, and far noisier.
            return rows[: max(size, len(rows) // size * size)]

        for rows, behind in iter_batches(cursor, epoch_rows, np.ones_like, size, size, self._seed, first, rank, world):
            yield self._build(rows), behind

    def _build(self, batch: BatchRows) -> OrderBatch:
        number, row = self._pairs[batch.rows].T
        languages = np.array([self.model.config.direction(direction) for direction in self._directions])
        used = np.unique(languages)  # a model may know more languages than the store holds
        sides = [self._split.sides[self.model.config.languages[language]] for language in used]
        target_lengths = np.zeros(len(row), np.int64)
        for language, side in zip(used, sides, strict=True):
            into_language = languages[number, 1] == language
            target_lengths[into_language] = side.lengths[row[into_language]]
        by_length = np.argsort(-target_lengths, kind="stable")
        number, row, target_lengths = number[by_length], row[by_length], target_lengths[by_length]
        source, target = languages[number].T
        eos = self.model.vocabulary.eos
        references = pack(sides, np.searchsorted(used, target), row, target, eos)
        padded = np.full((len(row), int(target_lengths.max())), eos, np.int64)
        padded[np.arange(padded.shape[1]) < target_lengths[:, None]] = references.tokens[references.inner]
        copies = self.rl.rollouts_per_sentence
        keys = batch.random.integers(-(1 << 63), (1 << 63) - 1, len(row) * copies)
        sources = pack(sides, np.searchsorted(used, source), row, source, eos)
        canvases = self.model.pack_targets(sources, target_lengths, target)
        return OrderBatch(DecodeBatch(canvases, keys, copies), padded, target_lengths)

    def minibatches(self, batch: OrderBatch, device: torch.device) -> list[dict[str, Any]]:
        """Roll out the sentences of a batch and compute the advantages."""
        rl, networks = self.rl, self.learner
        order = LearnedOrder(networks.policy, stats_function=self._stats_function)
        sampler = SamplingOrder(order, rl.has_value, self._reference, networks.policy.config.init_scale)
        decisions, outcome = roll_out(
            self._model_on(device), batch.sentences, sampler, batch.references, batch.reference_lengths
        )
        rollouts = compute_advantages(decisions, outcome, networks, self.reward, rl)
        return [
            {"rollouts": minibatch} for minibatch in rollouts.minibatches(rl.num_minibatches, rl.rollouts_per_sentence)
        ]

    def _model_on(self, device: torch.device) -> TranslationModel:
        if self.model.device != device:
            self.model.to(device=device, dtype=inference_dtype(device))
            if isinstance(self._reference, LearnedOrder):
                self._reference.network.to(device)
        return self.model

    def cost(self, batch: OrderBatch) -> tuple[int, float]:
        canvases, copies = batch.sentences.canvases, batch.sentences.copies
        assert canvases.sources is not None
        lengths = canvases.lengths.astype(np.float64)
        tokens = copies * float((lengths * (lengths + 2)).sum()) + len(canvases.sources.tokens)
        masked = copies * float((lengths * (lengths + 1)).sum()) / 2
        predicted = copies * float(lengths.sum()) if self.learner.policy.config.needs == "hidden" else masked
        return len(lengths) * copies, 2 * self.model.forward_flops(tokens, masked, predicted)

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """BLEU and edge share of the learned order, positions chosen greedily; the first time, the heuristics' BLEU."""
        if self._validation is None:
            return {}
        assert isinstance(average, ActorCritic)
        model = self._model_on(next(average.parameters()).device)
        scores: dict[str, float] = {}
        for direction in self._directions:
            result = self._validation.evaluate(model, LearnedOrder(average.policy), direction)
            scores |= {f"bleu {direction}": result.bleu, f"edge share {direction}": edge_share(result.steps)}
            if not quick:
                for order in self._heuristics:
                    scores[f"{order.name} {direction}"] = self._validation.evaluate(model, order, direction).bleu
        return scores

    def validation_passes(self, quick: bool = False) -> int:
        heuristics = 0 if quick else len(self._heuristics)
        return len(self._directions) * (1 + heuristics)

    def estimate_pass_seconds(self, average: nn.Module) -> float:
        if self._validation is None:
            return 0.0
        assert isinstance(average, ActorCritic)
        model = self._model_on(next(average.parameters()).device)
        return self._validation.estimate_seconds(model, LearnedOrder(average.policy), self._directions[0])

    def selection_metric(self, scores: dict[str, float]) -> float:
        bleu = [score for name, score in scores.items() if name.startswith("bleu ")]
        return sum(bleu) / len(bleu)

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, ActorCritic)
        settings = {"rl": asdict(self.rl), "seed": self._seed}
        save_order(average.policy, out / self.folder, self.model, self._directions, **settings)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "order",
            "vocabulary": self.model.vocabulary.fingerprint,
            "pairs": len(self._pairs),
            "directions": self._directions,
            "policy": asdict(self.learner.policy.config),
            "rl": asdict(self.rl),
        }

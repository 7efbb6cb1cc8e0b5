"""Learning an order as a training objective: batches, validation and saving. The algorithm is in `algorithm.py`.

Knows nothing about text or languages: canvases, rewards and validation come from a `LearningData`, which is translation
pairs (`translation_data.py`), puzzles or texts with masks (`masked_data.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from anyorder.analysis.order_metrics import edge_share
from anyorder.data.random_streams import random_for
from anyorder.device import inference_dtype
from anyorder.errors import InputError
from anyorder.learning.algorithm import ActorCritic, OrderLoss, sample_rollouts
from anyorder.learning.config import RLConfig
from anyorder.learning.rewards import Reward
from anyorder.learning.rollout import OrderBatch, SamplingOrder
from anyorder.models.base import SavedModel
from anyorder.orders import Order, make_order, split_orders
from anyorder.orders.learned import LearnedOrder, save_order
from anyorder.orders.policy import PolicyConfig, PolicyNetwork, prediction_stats
from anyorder.training.batches import Cursor, iter_batches, shuffled
from anyorder.training.objective import Objective
from anyorder.training.validation import Validation

FOLDER = "order"
"""The subfolder of the run folder for the learned order."""


class LearningData(ABC):
    """Canvases for a frozen model, and how well orders fill them."""

    model: SavedModel
    """The model that fills."""
    network: nn.Module
    """Its weights."""
    tasks: Sequence[str]
    """What validations are called: directions, `infill`, or the name of a puzzle. One order is learned for all."""
    model_tasks: Sequence[str]
    """What orders are bound to: the same, or `infill` for a puzzle."""
    unit: str
    """What messages call the canvases."""
    weights: np.ndarray | None = None
    """(canvases,) how often each is used per epoch; None if each is used once."""
    metric: str
    """The name of the validation's score, such as `bleu`."""
    validations: Mapping[str, Validation]
    """By task, if it has data to validate on."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of canvases to learn from."""

    @abstractmethod
    def batch(self, numbers: np.ndarray, keys: np.ndarray, copies: int, random: np.random.Generator) -> OrderBatch:
        """These canvases `copies` times, those with the most masked positions first, and their references.

        keys: see `DecodeBatch`. random: for what is drawn anew each time.
        """

    @abstractmethod
    def reward(self, name: str) -> Reward:
        """The reward of that name."""

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What must be the same when a run is resumed."""

    def forward_flops(self, tokens: float, last: float, predicted: float) -> float:
        """Multiply-adds of a forward pass, from the numbers of tokens, those in the last layer, and those predicted."""
        return 0.0


class OrderObjective(Objective[OrderBatch]):
    """Learn an order for a frozen model.

    rl: all sizes must be set. compile: whether to compile the computation of the features. init: a learned order to
    start from, whose kind and size the policy then has; if not given, it starts from a heuristic order or at random.
    """

    reports = ("reward", "edge share", "entropy", "loss", "value loss")
    shown = ("reward", "entropy", "edge share")
    unit = "rollouts"
    folder = FOLDER
    compiles = False
    learner: ActorCritic

    def __init__(
        self,
        data: LearningData,
        policy: PolicyConfig,
        rl: RLConfig,
        seed: int,
        compile: bool = False,
        init: str | None = None,
    ):
        self.rl = rl
        self.epochs = rl.epochs if rl.algorithm == "ppo" else 1
        self._data = data
        self._seed = seed
        self.validations = data.validations
        start = None if init is None else self._order_to_start_from(init, policy)
        self._init = "none" if start is None else start.fingerprint  # its weights, not its place
        torch.manual_seed(seed)
        config = policy if start is None else replace(start.network.config, dropout=policy.dropout)
        network = PolicyNetwork(config, data.model.hidden_size)
        if start is not None:
            network.load_state_dict(start.network.state_dict())
        self.learner = ActorCritic(network, rl.has_value)
        self.module = OrderLoss(self.learner, rl)
        self.reward = data.reward(rl.reward)
        self._reference = None
        if rl.kl_coef:
            self._reference = self._one_order(make_order(rl.reference_order), "reference_order", RLConfig)
        self._stats_function = torch.compile(prediction_stats, dynamic=True) if compile else prediction_stats
        heuristics = rl.validation_orders.strip()
        self._heuristics = [make_order(name) for name in split_orders(heuristics)] if heuristics else []
        smallest_epoch = len(data) if data.weights is None else int(np.floor(data.weights).sum())
        if smallest_epoch < rl.num_minibatches > 1:
            found = f"{rl.num_minibatches}: an epoch may have no more than {smallest_epoch} {data.unit}"
            raise InputError(found, "num_minibatches", RLConfig)

    def _one_order(self, order: Order, field: str, config: type | None = None) -> Order:
        """The order, bound to the model. It must be the same for all tasks of the data."""
        bound = [order.bind(self._data.model, task) for task in self._data.model_tasks]
        if len({each.identity for each in bound}) > 1:
            tasks = ", ".join(self._data.tasks)
            raise InputError(f"{order.name}: is not one order for {tasks}", field, config)
        return bound[0]

    def _order_to_start_from(self, name: str, policy: PolicyConfig) -> LearnedOrder:
        order = self._one_order(make_order(name), "init")
        if not isinstance(order, LearnedOrder):
            raise InputError(f"{name}: is not a learned order; policy.start takes heuristic ones", "init")
        if policy not in (replace(same, dropout=policy.dropout) for same in (PolicyConfig(), order.network.config)):
            raise InputError("gives the policy its kind and size: leave the policy's options out", "init")
        return order

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[OrderBatch, Cursor]]:
        assert self.rl.sentences is not None
        data, size = self._data, min(self.rl.sentences, len(self._data))

        def epoch_rows(epoch: int) -> np.ndarray:
            rows = shuffled(np.arange(len(data)), data.weights, random_for(self._seed, "epoch", epoch))
            # A batch of a few leftover sentences would make a step as large as that of a full batch, and far noisier.
            return rows[: max(size, len(rows) // size * size)]

        copies = self.rl.rollouts_per_sentence
        batches = iter_batches(cursor, epoch_rows, np.ones_like, size, size, self._seed, first, rank, world)
        for rows, random, after in batches:
            keys = random.integers(-(1 << 63), (1 << 63) - 1, len(rows) * copies)
            yield data.batch(rows, keys, copies, random), after

    def minibatches(self, batch: OrderBatch, device: torch.device) -> list[dict[str, Any]]:
        """Roll out the sentences of a batch and compute the advantages."""
        rl, networks = self.rl, self.learner
        order = LearnedOrder(networks.policy, stats_function=self._stats_function)
        sampler = SamplingOrder(order, rl.has_value, self._reference, networks.policy.config.init_scale)
        self._move(device)
        rollouts = sample_rollouts(self._data.model, batch, sampler, networks, self.reward, rl)
        parts = rollouts.minibatches(rl.num_minibatches, rl.rollouts_per_sentence)
        return [{"rollouts": part} for part in parts]

    def _move(self, device: torch.device) -> None:
        """Everything to the device; the model in the precision for inference there."""
        if isinstance(self._reference, LearnedOrder):
            self._reference.network.to(device)
        if self._data.model.device != device:
            self._data.network.to(device=device, dtype=inference_dtype(device))

    def cost(self, batch: OrderBatch) -> tuple[int, float]:
        canvases, copies = batch.sentences.canvases, batch.sentences.copies
        lengths, sizes = canvases.lengths.astype(np.float64), canvases.packed.sizes
        sources = 0 if canvases.sources is None else len(canvases.sources.tokens)
        tokens = copies * float((lengths * sizes).sum()) + sources
        masked = copies * float((lengths * (lengths + 1)).sum()) / 2
        predicted = copies * float(lengths.sum()) if self.learner.policy.config.needs == "hidden" else masked
        return len(lengths) * copies, 2 * self._data.forward_flops(tokens, masked, predicted)

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """Score and edge share of the learned order, decoded greedily; the first time, also those of the heuristics."""
        scores: dict[str, float] = {}
        learned, model = self.validation_order(average)
        for task, validation in self.validations.items():
            result = validation.evaluate(learned, model)
            scores |= {f"{self._data.metric} {task}": result.score, f"edge share {task}": edge_share(result.steps)}
            if not quick:
                for order in self._heuristics:
                    scores[f"{order.name} {task}"] = validation.evaluate(order, model).score
        return scores

    def validation_passes(self, quick: bool = False) -> int:
        heuristics = 0 if quick else len(self._heuristics)
        return super().validation_passes() * (1 + heuristics)

    def validation_order(self, average: nn.Module) -> tuple[Order, SavedModel]:
        assert isinstance(average, ActorCritic)
        self._move(next(average.parameters()).device)
        return LearnedOrder(average.policy), self._data.model

    def selection_metric(self, scores: dict[str, float]) -> float:
        validated = [scores[f"{self._data.metric} {task}"] for task in self.validations]
        return sum(validated) / len(validated)

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, ActorCritic)
        data = self._data
        tasks = list(dict.fromkeys([*data.model_tasks, *data.tasks]))
        save_order(average.policy, out / self.folder, data.model, tasks, rl=asdict(self.rl), seed=self._seed)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "order",
            **self._data.fingerprint(),
            "policy": self.learner.policy.config,
            "init": self._init,
            "rl": self.rl,
        }

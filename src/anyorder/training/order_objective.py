"""Learning an order: batches of rollouts, validation and saving. The loss is in `order_loss.py`.

Knows nothing about text or languages: canvases, rewards and validation come from an `OrderData`.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from anyorder.analysis.order_metrics import edge_share
from anyorder.decoding.state import DecodeBatch
from anyorder.errors import InputError
from anyorder.models.base import Model
from anyorder.orders import Order, make_order, split_orders
from anyorder.orders.features import prediction_stats
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from anyorder.training.actor_critic import ActorCritic
from anyorder.training.batches import BatchRows, Cursor, iter_batches, random_for, shuffled
from anyorder.training.config import choose_by_device
from anyorder.training.objective import Objective
from anyorder.training.order_data import OrderData
from anyorder.training.order_loss import OrderLoss, RLConfig, compute_advantages
from anyorder.training.rollout import SamplingOrder, roll_out

FOLDER = "order"
"""The subfolder of the run folder for the learned order."""


@dataclass(frozen=True)
class OrderBatch:
    """Canvases to roll out, on the host."""

    sentences: DecodeBatch
    references: np.ndarray
    """(canvases, R) ids, padded."""
    reference_lengths: np.ndarray
    """(canvases,)"""


def with_sizes(
    rl: RLConfig,
    device: torch.device,
    sentences: tuple[int, int] = (256, 8),
    validation_sentences: tuple[int, int] = (3000, 50),
) -> RLConfig:
    """The config with default values for sizes that were not set: the first one on CUDA, the second on the CPU."""

    def choose(given: int | None, sizes: tuple[int, int]) -> int:
        return choose_by_device(given, device, cuda=sizes[0], cpu=sizes[1])

    return replace(
        rl,
        sentences=max(rl.num_minibatches, choose(rl.sentences, sentences)),
        validation_sentences=choose(rl.validation_sentences, validation_sentences),
    )


class OrderObjective(Objective[OrderBatch]):
    """Learn an order for a frozen model.

    Args:
        data: Canvases for the model, their rewards, and what to validate on.
        policy: The policy network.
        rl: Algorithm and reward; all sizes must be set.
        seed: Seed for the weights and the batches.
        compile: Whether to compile the computation of the features.
        init: A learned order to start from, whose kind and size the policy then has; if not given, the policy starts
            from a heuristic order or from random weights.
    """

    reports = ("reward", "edge share", "entropy", "loss", "value loss")
    shown = ("reward", "entropy", "edge share")
    unit = "rollouts"
    folder = FOLDER
    compiles = False
    learner: ActorCritic

    def __init__(
        self,
        data: OrderData,
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
        start = None if init is None else self._order_to_start_from(init, policy)
        self._init = "none" if start is None else start.identity.rpartition("@")[2]  # its weights, not its place
        torch.manual_seed(seed)
        network = PolicyNetwork(policy if start is None else start.network.config, data.hidden_size)
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
            raise InputError(
                f"{rl.num_minibatches}: an epoch may have no more than {smallest_epoch} {data.unit}",
                "num_minibatches",
                RLConfig,
            )

    def _one_order(self, order: Order, field: str, config: type | None = None) -> Order:
        """The order, bound to the model. It must be the same for all tasks of the data."""
        bound = self._data.bind(order)
        if len({each.identity for each in bound}) > 1:
            tasks = ", ".join(self._data.tasks)
            raise InputError(f"{order.name}: is not one order for {tasks}", field, config)
        return bound[0]

    def _order_to_start_from(self, name: str, policy: PolicyConfig) -> LearnedOrder:
        order = self._one_order(make_order(name), "init")
        if not isinstance(order, LearnedOrder):
            raise InputError(f"{name}: is not a learned order; policy.start takes heuristic ones", "init")
        if policy not in (PolicyConfig(), order.network.config):
            raise InputError("gives the policy its kind and size: leave the policy's options out", "init")
        return order

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[OrderBatch, Cursor]]:
        assert self.rl.sentences is not None
        data, size = self._data, min(self.rl.sentences, len(self._data))

        def epoch_rows(epoch: int) -> np.ndarray:
            rows = shuffled(np.arange(len(data)), data.weights, random_for(self._seed, "epoch", epoch))
            # A batch of a few leftover sentences would make a step as large as that of a full batch, and far noisier.
            return rows[: max(size, len(rows) // size * size)]

        for rows, behind in iter_batches(cursor, epoch_rows, np.ones_like, size, size, self._seed, first, rank, world):
            yield self._build(rows), behind

    def _build(self, batch: BatchRows) -> OrderBatch:
        copies = self.rl.rollouts_per_sentence
        keys = batch.random.integers(-(1 << 63), (1 << 63) - 1, len(batch.rows) * copies)
        examples = self._data.examples(batch.rows, batch.random)
        sentences = DecodeBatch(examples.canvases, keys, copies)
        return OrderBatch(sentences, examples.references, examples.reference_lengths)

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

    def _model_on(self, device: torch.device) -> Model:
        if isinstance(self._reference, LearnedOrder):
            self._reference.network.to(device)
        return self._data.model_on(device)

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
        assert isinstance(average, ActorCritic)
        data, scores = self._data, dict[str, float]()
        self._model_on(next(average.parameters()).device)
        for task in data.validated:
            result = data.evaluate(LearnedOrder(average.policy), task)
            scores |= {f"{data.metric} {task}": result.score, f"edge share {task}": edge_share(result.steps)}
            if not quick:
                for order in self._heuristics:
                    scores[f"{order.name} {task}"] = data.evaluate(order, task).score
        return scores

    def validation_passes(self, quick: bool = False) -> int:
        heuristics = 0 if quick else len(self._heuristics)
        return max(1, len(self._data.validated)) * (1 + heuristics)

    def estimate_pass_seconds(self, average: nn.Module) -> float:
        if not self._data.validated:
            return 0.0
        assert isinstance(average, ActorCritic)
        self._model_on(next(average.parameters()).device)
        return self._data.estimate_seconds(LearnedOrder(average.policy))

    def selection_metric(self, scores: dict[str, float]) -> float:
        validated = [scores[f"{self._data.metric} {task}"] for task in self._data.validated]
        return sum(validated) / len(validated)

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, ActorCritic)
        self._data.save(average.policy, out / self.folder, rl=asdict(self.rl), seed=self._seed)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "order",
            **self._data.fingerprint(),
            "policy": asdict(self.learner.policy.config),
            "init": self._init,
            "rl": asdict(self.rl),
        }

    def fingerprint_defaults(self) -> dict[str, dict[str, object]]:
        return {"policy": asdict(PolicyConfig()), "rl": asdict(RLConfig())}

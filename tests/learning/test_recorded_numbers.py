"""Rewards, losses and weights of a few steps of learning, as an earlier version (0.2.0) computed them."""

import pytest
import torch

from anyorder.data.store import Store
from anyorder.learning.config import RLConfig
from anyorder.orders.policy import PolicyConfig
from anyorder.training.run_folder import Cursor
from tests.conftest import tiny
from tests.learning.objectives import translation_order_objective

A2C = RLConfig("a2c", sentences=6, max_length=14, entropy_coef=0.01)
A2C_SEVERAL = RLConfig(
    "a2c", "bleu-add-one", sentences=6, rollouts=3, max_length=14, entropy_scale="printed", gamma=0.9
)
PPO = RLConfig("ppo", "edit-distance", sentences=6, rollouts=2, max_length=14, num_minibatches=2)
RLOO = RLConfig("rloo", sentences=6, rollouts=4, max_length=14, kl_coef=0.1)
RLOO_STEPS = RLConfig("rloo", "chrf", "yes", sentences=6, rollouts=4, max_length=14, num_minibatches=3)
RECORDED = {
    "a2c": (
        A2C,
        PolicyConfig("hidden"),
        [0.00624629483, 0.516129017, 1.74608922, -0.34327209, 0.0648516417, 529.848803],
        [0.0, 0.510638297, 1.50494325, 0.327446371, 0.0478712358, 533.998343],
    ),
    "a2c-several": (
        A2C_SEVERAL,
        PolicyConfig("hidden", attention=1),
        [0.117489949, 0.456989259, 1.71164632, 0.0225009918, 0.0218931101, 3286.40578],
        [0.142947137, 0.567375898, 1.37886536, 0.0595675409, 0.0613850169, 3358.79615],
    ),
    "ppo": (
        PPO,
        PolicyConfig("hidden"),
        [0.0, 0.459677428, 1.7646488, 0.0521811321, 0.0539457798, 530.5137],
        [0.0, 0.542553186, 1.41828871, -0.00140064256, 0.000436613685, 592.471497],
    ),
    "rloo": (
        RLOO,
        PolicyConfig("features"),
        [0.0043064137, 0.459677428, 1.7450515, -0.00188645162, 0.0, 407.895597],
        [0.00547272945, 0.542553186, 1.51121759, -0.00137725833, 0.0, 408.737979],
    ),
    "rloo-each": (
        RLOO_STEPS,
        PolicyConfig("confidence"),
        [0.0923881307, 0.459677428, 1.85408175, -0.00185408164, 0.0, 289.166814],
        [0.096474953, 0.537234068, 1.32482314, -0.00160646671, 0.0, 300.227864],
    ),
}
"""By name: algorithm, policy, then for some optimizer steps the reward, edge share, entropy, loss and value loss, and the
sum of the weights' absolute values after the step."""


@pytest.mark.parametrize("name", RECORDED)
def test_steps_of_learning(store: Store, name: str) -> None:
    rl, policy, *expected = RECORDED[name]
    model = tiny(store.vocabulary)
    objective = translation_order_objective(store, model, ["de-en", "en-de"], policy, rl, seed=3)
    parameters = list(objective.learner.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-2)
    found = []
    for _, (batch, _) in zip(range(3), objective.batches(Cursor(), 0, 0, 1), strict=False):
        minibatches = objective.minibatches(batch, torch.device("cpu"))
        for inputs in minibatches * objective.epochs:
            loss, report = objective.module(**inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            reward, edges, _, *rest = report.tolist()
            weight = float(sum(weights.detach().abs().double().sum() for weights in parameters))
            found.append([reward, edges, *rest, weight])
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-6)
    assert found[-1] == pytest.approx(expected[1], rel=1e-4, abs=1e-5)

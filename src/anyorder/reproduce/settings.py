"""How orders are learned at each scale: `here`, in minutes on one GPU, or as in the `paper`. Touches no files."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from anyorder.orders.policy import PolicyConfig
from anyorder.reproduce.tables import LearnedRow
from anyorder.training.config import TrainConfig
from anyorder.training.order_loss import RLConfig

Scale = Literal["here", "paper"]


@dataclass(frozen=True)
class LearningSettings:
    """The settings of one run that learns an order."""

    policy: PolicyConfig
    rl: RLConfig
    run: TrainConfig
    ablation_steps: int | None = None
    """Training steps of an ablation; None for as many as usual."""

    def for_order(self, order: LearnedRow, seed: int, steps: int | None, device: str) -> "LearningSettings":
        """The same settings with a table row's changes; `steps` overrides the settings' own if given."""
        changes: dict[str, Any] = {}
        if order.reward is not None:
            changes["reward"] = order.reward
        if order.entropy_coef is not None:
            changes["entropy_coef"] = order.entropy_coef
        run: dict[str, Any] = {"seed": seed, "device": device}
        if steps is None and order.ablation:
            steps = self.ablation_steps
        if steps is not None:
            run["steps"] = steps
        return replace(self, rl=replace(self.rl, **changes), run=replace(self.run, **run))


_SMALL: dict[str, Any] = {
    "weight_decay": 0.0,
    "ema": 0.98,
    "log_every": 10,
    "validate_every": 100,
    "save_every": 100,
    "warmup": 20,
}
_RLOO = RLConfig(
    algorithm="rloo", reward="bleu", sentences=64, rollouts=8, num_minibatches=4, entropy_coef=0.0001,
    validation_orders="",
)  # fmt: skip
_FEATURES = LearningSettings(
    PolicyConfig(kind="features", start="max-prob", init_scale=3),
    _RLOO,
    TrainConfig(steps=600, learning_rate=0.001, **_SMALL),
)
_CONFIDENCE = LearningSettings(
    PolicyConfig(kind="confidence", start="max-prob", init_scale=3),
    _RLOO,
    # .003 had a better selection BLEU over six directions (`multi`) than .001.
    TrainConfig(steps=600, learning_rate=0.003, **_SMALL),
)
_HIDDEN = PolicyConfig(kind="hidden")
# 1,250 batches in 16 minibatches each are 20,000 updates. Learning rate and lambda had the best selection BLEU over six
# directions (`multi`) in short runs, of .0003, .001, .002 and .001, .0001.
_A2C_HERE = LearningSettings(
    _HIDDEN,
    RLConfig(
        algorithm="a2c", reward="bleu", sentences=64, rollouts=8, num_minibatches=16, entropy_coef=0.0001,
        validation_orders="",
    ),
    TrainConfig(steps=1250, learning_rate=0.001, **_SMALL),
    ablation_steps=300,
)  # fmt: skip
_PPO_HERE = LearningSettings(
    _HIDDEN,
    RLConfig(
        algorithm="ppo", reward="edit-distance", sentences=64, rollouts=8, num_minibatches=4, entropy_coef=0.0,
        validation_orders="",
    ),
    TrainConfig(steps=300, learning_rate=0.001, **_SMALL),
)  # fmt: skip
# The paper's appendix: Adam at a constant 1e-4, 4 GPUs with 32 sentences each, about 97,000 updates.
_PAPER_RUN = TrainConfig(
    steps=97_000, learning_rate=0.0001, warmup=0, decay_from=1.0, weight_decay=0.0, max_grad_norm=0.0, ema=0.0,
    validate_every=2000, save_every=1000,
)  # fmt: skip
_PAPER_RL = RLConfig(
    algorithm="a2c", reward="bleu", rollouts=1, sentences=128, gamma=0.999, entropy_coef=0.001, validation_orders=""
)
_A2C_PAPER = LearningSettings(_HIDDEN, _PAPER_RL, _PAPER_RUN)
_PPO_PAPER = LearningSettings(
    _HIDDEN, replace(_PAPER_RL, algorithm="ppo", reward="edit-distance", entropy_coef=0.0), _PAPER_RUN
)

SETTINGS: dict[Scale, dict[str, LearningSettings]] = {
    "here": {"features": _FEATURES, "confidence": _CONFIDENCE, "hidden": _A2C_HERE, "ppo": _PPO_HERE},
    "paper": {"features": _FEATURES, "confidence": _CONFIDENCE, "hidden": _A2C_PAPER, "ppo": _PPO_PAPER},
}
"""Settings by scale and kind of order."""

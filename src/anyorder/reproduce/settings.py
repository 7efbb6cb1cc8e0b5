"""How orders are learned at each scale: `here`, in minutes on one GPU, or as in the `paper`. Touches no files."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from anyorder.learning.config import RLConfig
from anyorder.orders.policy import PolicyConfig
from anyorder.reproduce.tables import Row
from anyorder.training.config import TrainConfig

Scale = Literal["here", "paper"]
ABLATION_STEPS = 300
"""Steps `here` of a run that is only compared with its neighbors."""


@dataclass(frozen=True)
class LearningSettings:
    """The settings of one run that learns an order."""

    policy: PolicyConfig
    rl: RLConfig
    run: TrainConfig


def settings_of(row: Row, scale: Scale, seed: int, steps: int | None, device: str) -> LearningSettings:
    """How the order of a row is learned; `steps` overrides the scale's if given."""
    settings = SETTINGS[scale][row.kind]
    reward = settings.rl.reward if row.reward in (None, "bleu") else row.reward  # at the paper's scale, its code's BLEU
    entropy_coef = settings.rl.entropy_coef if row.entropy_coef is None else row.entropy_coef
    usual = ABLATION_STEPS if row.is_ablation and scale == "here" else settings.run.steps
    place: Any = device
    return replace(
        settings,
        rl=replace(settings.rl, reward=reward, entropy_coef=entropy_coef),
        run=replace(settings.run, steps=steps or usual, seed=seed, device=place),
    )


_RLOO = RLConfig(
    algorithm="rloo", reward="bleu", sentences=64, rollouts=8, num_minibatches=4, entropy_coef=0.0001,
    validation_orders="",
)  # fmt: skip
_RUN = TrainConfig(
    steps=600, learning_rate=0.001, warmup=20, weight_decay=0.0, ema=0.98, log_every=10, validate_every=100,
    save_every=100,
)  # fmt: skip
_FEATURES = PolicyConfig(kind="features", start="max-prob", init_scale=3)
_OURS = {
    "features": LearningSettings(_FEATURES, _RLOO, _RUN),
    # .003 had a better selection BLEU over six directions (`multi`) than .001.
    "confidence": LearningSettings(replace(_FEATURES, kind="confidence"), _RLOO, replace(_RUN, learning_rate=0.003)),
}
_HIDDEN = PolicyConfig(kind="hidden")
# 1,250 batches in 16 minibatches each are 20,000 updates. Learning rate and lambda had the best selection BLEU over six
# directions (`multi`) in short runs, of .0003, .001, .002 and .001, .0001.
_A2C = LearningSettings(_HIDDEN, replace(_RLOO, algorithm="a2c", num_minibatches=16), replace(_RUN, steps=1250))
_PPO_RL = replace(_RLOO, algorithm="ppo", reward="edit-distance", entropy_coef=0.0)
# As in recipes/paper: Adam at a constant 1e-4, 4 GPUs with 32 sentences each, about 97,000 updates.
_PAPER_RL = RLConfig(
    algorithm="a2c", reward="bleu-paper", rollouts=1, sentences=128, gamma=0.999, entropy_coef=0.001,
    validation_orders="",
)  # fmt: skip
_PAPER_PPO_RL = replace(_PAPER_RL, algorithm="ppo", reward="edit-distance", entropy_coef=0.0)
_PAPER_RUN = TrainConfig(
    steps=97_000, learning_rate=0.0001, warmup=0, decay_from=1.0, weight_decay=0.0, max_grad_norm=5.0, ema=0.0,
    validate_every=2000, save_every=1000,
)  # fmt: skip
_PAPER_POLICY = replace(_HIDDEN, dropout=0.1)

SETTINGS: dict[Scale, dict[str, LearningSettings]] = {
    "here": {**_OURS, "hidden": _A2C, "ppo": LearningSettings(_HIDDEN, _PPO_RL, replace(_RUN, steps=300))},
    "paper": {
        **_OURS,
        "hidden": LearningSettings(_PAPER_POLICY, _PAPER_RL, _PAPER_RUN),
        "ppo": LearningSettings(_PAPER_POLICY, _PAPER_PPO_RL, _PAPER_RUN),
    },
}
"""Settings by scale and kind of order."""

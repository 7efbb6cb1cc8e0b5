"""Learning an order and decoding in an order, as jobs; and how orders are learned at each scale of a table."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from anyorder.data.store import MANIFEST, Store
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory
from anyorder.files import sha256
from anyorder.learning.config import RLConfig
from anyorder.learning.learn_order import learn_order
from anyorder.learning.objective import FOLDER as ORDER
from anyorder.orders import Order
from anyorder.orders.learned import CONFIG as ORDER_CONFIG
from anyorder.orders.learned import UnboundLearnedOrder
from anyorder.orders.policy import PolicyConfig
from anyorder.reproduce.jobs import DecodeJob, OpenModel, RunJob
from anyorder.reproduce.tables import Row
from anyorder.training.config import TrainConfig

Scale = Literal["here", "paper"]


@dataclass(frozen=True)
class LearningSettings:
    """The settings of one run that learns an order."""

    policy: PolicyConfig
    rl: RLConfig
    run: TrainConfig


def learn_job(
    out: Path, model: OpenModel, directions: Sequence[str], kind: str, settings: LearningSettings, stores: list[Store]
) -> RunJob:
    """Learn an order with one seed, for one direction or for several that share it. Tables call this kind `kind`."""
    policy, rl, run = settings.policy, settings.rl, settings.run
    key = asdict(settings)
    for name in ("device", "compile", "track", "log_every", "save_every", "seed", "steps"):
        del key["run"][name]
    data = "+".join(sha256(store.path / MANIFEST)[:8] for store in stores)
    shared = ",shared" if len(directions) > 1 else ""
    # Named by the settings in which orders differ, so that tables with the same order share it.
    name = f"{kind},reward={rl.reward},lambda={rl.entropy_coef:g},steps={run.steps}{shared}"
    together = "+".join(directions)
    folder = out / "learn" / model.label / together / name / f"seed-{run.seed}"

    def learn() -> bool:
        return learn_order(model.place, directions, folder, stores, policy=policy, rl=rl, run=run, resume=True).finished

    return RunJob(
        kind="learn",
        title=f"learn {together} {name}, seed {run.seed}",
        folder=folder,
        result=folder / ORDER / ORDER_CONFIG,
        key={"model": model.label, "data": data, **key},
        device=model.device,
        train=learn,
        defaults={"policy": asdict(PolicyConfig()), "rl": asdict(RLConfig())},
    )


@dataclass(frozen=True)
class OrderJob(DecodeJob):
    """Decode in an order: the one that is learned first, if any."""

    order: str
    """Its name; that of a learned one is what trajectories and signatures call it."""
    batch_tokens: int | None
    """Target tokens to decode per batch."""

    def key(self) -> dict[str, Any] | None:
        if self.needs is not None and not self.needs.result.exists():
            return None
        bound = self.decoder.bind(self._config())
        return {"order": bound.order.identity, "seed": bound.seed}

    def decode(self, rows: Sequence[int], on_progress: Callable[[int], None]) -> list[Trajectory]:
        return self.data.test_set.decode(self._config(), rows, on_progress)

    def _config(self) -> DecodingConfig:
        order: str | Order = self.order
        if self.needs is not None:
            order = UnboundLearnedOrder(str(self.needs.result.parent))
            order.name = self.order  # not its path, which differs between machines
        return DecodingConfig(order=order, length=self.rule, batch_tokens=self.batch_tokens)


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


ABLATION_STEPS = 300
"""Steps `here` of a run that is only compared with its neighbors."""


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

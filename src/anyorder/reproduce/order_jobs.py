"""Learning an order and decoding in an order, as jobs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anyorder.data.store import MANIFEST, Store
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory
from anyorder.files import sha256
from anyorder.learning.config import RLConfig
from anyorder.learning.learn_order import learn_order
from anyorder.learning.objective import FOLDER as ORDER
from anyorder.models.native.storage import WEIGHTS, find
from anyorder.orders import Order
from anyorder.orders.learned import UnboundLearnedOrder
from anyorder.orders.policy import PolicyConfig
from anyorder.orders.storage import CONFIG as ORDER_CONFIG
from anyorder.reproduce.jobs import DecodeJob, RunJob, plain_name
from anyorder.reproduce.settings import LearningSettings


def model_label(model: str | Path) -> str:
    """A name for folders: that of a model, and a hash of its weights."""
    path = find(str(model))
    path = path.resolve() if path.name in ("", ".", "..") else path
    name = path.parent.name if path.name == "model" else path.name
    return f"{plain_name(name)}-{sha256(path / WEIGHTS)[:8]}"


def learn_job(
    out: Path,
    model: str,
    label: str,
    directions: Sequence[str],
    kind: str,
    settings: LearningSettings,
    stores: Sequence[Store],
    device: torch.device,
) -> RunJob:
    """Learn an order with one seed, for one direction or for several that share it.

    Folders call the model `label`, and tables call this kind of order `kind`.
    """
    policy, rl, run = settings.policy, settings.rl, settings.run
    key = asdict(settings)
    for name in ("device", "compile", "track", "log_every", "save_every", "seed", "steps"):
        del key["run"][name]
    data = "+".join(sha256(store.path / MANIFEST)[:8] for store in stores)
    shared = ",shared" if len(directions) > 1 else ""
    # Named by the settings in which orders differ, so that tables with the same order share it.
    name = f"{kind},reward={rl.reward},lambda={rl.entropy_coef:g},steps={run.steps}{shared}"
    together = "+".join(directions)
    folder = out / "learn" / label / together / name / f"seed-{run.seed}"

    def learn() -> bool:
        return learn_order(model, directions, folder, list(stores), policy=policy, rl=rl, run=run, resume=True).finished

    return RunJob(
        kind="learn",
        title=f"learn {together} {name}, seed {run.seed}",
        folder=folder,
        result=folder / ORDER / ORDER_CONFIG,
        key={"model": label, "data": data, **key},
        device=device,
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

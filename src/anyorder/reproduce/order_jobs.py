"""Learning an order and decoding in an order, as jobs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anyorder.data.store import MANIFEST, Store
from anyorder.decoder import Decoder
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
from anyorder.reproduce.jobs import RunJob, plain_name
from anyorder.reproduce.settings import LearningSettings
from anyorder.tasks.translation import Sentence


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

    Args:
        out: The folder of all results.
        model: A bundled name, a folder or a hub id.
        label: What folders call the model.
        directions: The directions.
        kind: What tables call this kind of order.
        settings: How to learn it.
        stores: What to learn it from.
        device: Where.
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
class OrderDecoder:
    """Decodes in one order."""

    decoder: Decoder
    rule: str
    """The length rule."""
    order: str | Path
    """A name, or the folder of a learned order, which may not exist yet."""
    order_name: str
    """What trajectories and signatures call an order that has a folder."""
    batch_tokens: int | None
    """Target tokens to decode per batch."""

    @property
    def device(self) -> torch.device:
        return self.decoder.model.device

    def key(self) -> dict[str, Any] | None:
        if isinstance(self.order, Path) and not (self.order / ORDER_CONFIG).exists():
            return None
        bound = self.decoder.bind(self._config())
        return {"order": bound.order.identity, "seed": bound.seed}

    def decode(self, sentences: Sequence[Sentence], on_progress: Callable[[int], None]) -> list[Trajectory]:
        return list(self.decoder.decode(sentences, self._config(), on_progress))

    def _config(self) -> DecodingConfig:
        order: str | Order = str(self.order)
        if isinstance(self.order, Path):
            order = UnboundLearnedOrder(str(self.order))
            order.name = self.order_name  # not its path, which differs between machines
        return DecodingConfig(order=order, length=self.rule, batch_tokens=self.batch_tokens)

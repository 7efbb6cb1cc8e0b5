"""Learned orders on disk: a folder with `order.json` and `order.safetensors`.

A model's own orders are stored next to its weights, in `learned/NAME` or `learned/NAME/TASK`; a task is a direction
such as `de-en`, or `infill`.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes

from anyorder.device import shapes_only
from anyorder.errors import InputError, unknown
from anyorder.files import atomic_folder, is_leftover, read_whole, sha256, verify, write_json
from anyorder.models.base import SavedModel
from anyorder.models.native.storage import BUNDLED
from anyorder.orders.policy import FEATURES, PolicyConfig, PolicyNetwork
from anyorder.records import read_record, read_tensors

CONFIG, WEIGHTS, FOLDER, DEFAULT = "order.json", "order.safetensors", "learned", "default"
FORMAT = 1


def save_order(
    network: PolicyNetwork, folder: Path, model: SavedModel, directions: Sequence[str], **record: Any
) -> None:
    """Save an order; an existing one in the folder is replaced as a whole. `record`: how it was learned."""
    values = {name: value.detach().float().cpu().contiguous() for name, value in network.state_dict().items()}
    weights = to_bytes(values)
    config = {
        "format": FORMAT,
        "policy": asdict(network.config),
        "features": list(FEATURES) if network.config.uses_features else [],
        "hidden_size": network.hidden_size,
        "vocabulary": model.vocabulary_fingerprint,
        "directions": list(directions),
        "fingerprint": hashlib.sha256(weights).hexdigest()[:8],
        **record,
    }
    with atomic_folder(folder) as partial:
        (partial / WEIGHTS).write_bytes(weights)
        write_json(partial / CONFIG, config)


@dataclass(frozen=True)
class OrderRecord:
    """The metadata of a learned order."""

    policy: PolicyConfig
    hidden_size: int
    """Of the model it was learned with."""
    vocabulary: str
    """Fingerprint of that model's vocabulary."""
    directions: tuple[str, ...]
    """The directions or other tasks it was learned for."""
    fingerprint: str
    """Of its weights."""

    def mismatch(self, model: SavedModel, task: str) -> str:
        """Why the order does not suit this model and task; empty if it does. Without hidden states it suits any."""
        if not self.policy.uses_hidden:
            return ""
        if self.vocabulary != model.vocabulary_fingerprint or self.hidden_size != model.hidden_size:
            return "was learned for another model"
        if task not in self.directions:
            return f"was learned for {', '.join(self.directions)}, not for {task}"
        return ""


def load_order(folder: Path) -> tuple[PolicyNetwork, OrderRecord]:
    """The network and its metadata."""
    return read_whole(folder, _load)


def _read_record(folder: Path) -> OrderRecord:
    record = read_record(folder / CONFIG)
    found = record.integer("format", default=0)
    if found != FORMAT:
        raise InputError(f"{folder / CONFIG}: format {found}, expected {FORMAT}")
    if record.texts("features") not in ([], list(FEATURES)):
        raise InputError(f"{folder / CONFIG}: was learned with other features; learn it again")
    verify(folder, CONFIG)
    return OrderRecord(
        policy=record.record("policy").config(PolicyConfig),
        hidden_size=record.integer("hidden_size", at_least=1, at_most=65_536),
        vocabulary=record.text("vocabulary"),
        directions=tuple(record.texts("directions")),
        fingerprint=record.text("fingerprint"),
    )


def _load(folder: Path) -> tuple[PolicyNetwork, OrderRecord]:
    record = _read_record(folder)
    verify(folder, WEIGHTS)
    with shapes_only():
        empty = PolicyNetwork(record.policy, record.hidden_size)
    weights = read_tensors(folder / WEIGHTS, {name: tuple(value.shape) for name, value in empty.state_dict().items()})
    if sha256(folder / WEIGHTS)[: len(record.fingerprint)] != record.fingerprint or len(record.fingerprint) < 8:
        raise InputError(f"{folder / WEIGHTS}: damaged, its fingerprint is not the {record.fingerprint} of {CONFIG}")
    network = PolicyNetwork(record.policy, record.hidden_size)
    network.load_state_dict(weights)
    return network, record


def find_order(place: str, model: SavedModel, task: str) -> Path:
    """The folder of a learned order: a path, a name next to the model, or a bundled model's `MODEL/NAME`."""
    if (Path(place) / CONFIG).exists():
        return Path(place)
    candidates = [(model.path / FOLDER, place)] if model.path else []
    parts = Path(place).parts
    is_bundled = len(parts) == 2 and (BUNDLED / parts[0] / FOLDER).is_dir()
    if is_bundled:
        candidates.append((BUNDLED / parts[0] / FOLDER, parts[1]))
    for parent, name in candidates:
        for folder in (parent / name / task, parent / name):
            if (folder / CONFIG).exists():
                return folder
    if is_bundled:
        raise unknown(f"learned order of {parts[0]}", parts[1], order_names(BUNDLED / parts[0]))
    names = order_names(model.path) if model.path else []
    if place == DEFAULT and not names:
        raise InputError("this model has no learned order; learn one with 'anyorder learn-order'")
    if place != DEFAULT and (os.sep in place or not names):
        raise InputError(f"{place}: no learned order there (no {CONFIG})")
    raise unknown("learned order", place, names)


def order_names(path: Path) -> list[str]:
    """Names of the learned orders of the model in that folder."""
    names = {file.relative_to(path / FOLDER).parts[0] for file in path.glob(f"{FOLDER}/**/{CONFIG}")}
    return sorted(name for name in names if not is_leftover(name))


def default_order(model: SavedModel, task: str) -> str:
    """`learned` if the model has its own order for this task, else `margin`."""
    try:
        folder = find_order(DEFAULT, model, task)
    except InputError:
        return "margin"
    return "margin" if read_whole(folder, _read_record).mismatch(model, task) else "learned"

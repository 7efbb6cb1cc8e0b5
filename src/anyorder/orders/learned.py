"""Learned orders: a policy network scores the masked positions (paper, section 3.1).

`hidden` is the paper's policy: two layers on the model's last hidden state. `features` also sees the model's confidence
at each position and what is filled around it, and starts from a heuristic order. `confidence` sees only these features,
and `linear` is a weighted sum of them; both ignore words and language, so they work with any model.

On disk an order is a folder with `order.json` and `order.safetensors`. A model's own orders are stored next to its
weights, in `learned/NAME` or `learned/NAME/TASK`; a task is a direction such as `de-en`, or `infill`.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
from safetensors.torch import save as to_bytes
from torch import Tensor

from anyorder.device import shapes_only
from anyorder.errors import InputError, unknown
from anyorder.files import atomic_folder, is_leftover, read_whole, sha256, verify, write_json
from anyorder.models.base import SavedModel
from anyorder.models.native.storage import BUNDLED
from anyorder.orders.base import Order, State, register_order
from anyorder.orders.policy import (
    FEATURES,
    PolicyConfig,
    PolicyInputs,
    PolicyNetwork,
    PolicyScores,
    StatsFunction,
    extract_features,
    prediction_stats,
)
from anyorder.records import read_record, read_tensors

CONFIG, WEIGHTS, FOLDER, DEFAULT = "order.json", "order.safetensors", "learned", "default"
FORMAT = 1
Passes = Sequence[tuple[float, float]]
"""Pairs of a speed, ascending, and the mean number of forward passes at that speed."""


class LearnedOrder(Order):
    """A policy network, ready to decode."""

    def __init__(
        self,
        network: PolicyNetwork,
        name: str = "learned",
        fingerprint: str = "",
        stats_function: StatsFunction = prediction_stats,
        passes: Mapping[str, Passes] = {},
    ):
        self.network = network
        self.name = name
        self.needs = network.config.needs
        self.fingerprint = fingerprint
        """Of the weights, if they come from a file."""
        self.passes = passes
        """See `OrderRecord`."""
        self.speed = 0.0
        """From 0 to 1, for a network that decides how many positions to fill."""
        self._stats_function = stats_function
        self._last: tuple[ReferenceType[State], PolicyScores] | None = None
        """The last state and what was said of it, for a schedule that asks after the order. Not the state itself: its
        logits are large."""

    @property
    def identity(self) -> str:
        return f"{self.name}@{self.fingerprint}" if self.fingerprint else self.name

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": None}  # no pickle can hold it, and no copy at another speed may have it

    def at_speed(self, speed: float) -> "LearnedOrder":
        """The same order at this speed."""
        order = copy(self)
        order.speed = speed
        return order

    def speed_for(self, passes: float) -> float:
        """The speed at which it took so many forward passes in validation, on average over its tasks."""
        if not self.passes:
            raise InputError(f"order '{self.name}': was never validated, so a speed must be given, not passes")
        curves = [np.array(sorted(curve)) for curve in self.passes.values()]
        speeds = curves[0][:, 0]
        mean = np.mean([np.interp(speeds, *curve.T) for curve in curves], 0)
        if not mean.min() <= passes <= mean.max():
            found = f"took {mean.min():.1f} to {mean.max():.1f} passes in validation, not {passes:g}"
            raise InputError(f"order '{self.name}': {found}")
        # At higher speeds it takes fewer passes, but for noise.
        return float(np.interp(-passes, np.maximum.accumulate(-mean), speeds))

    def inputs(self, state: State) -> PolicyInputs:
        """What the network sees of a state."""
        config = self.network.config
        features = extract_features(state, self._stats_function) if config.uses_features else None
        speed = None
        if config.decides_count:
            assert features is not None
            speed = features.new_full((len(features),), self.speed)
        return PolicyInputs(state.hidden if config.uses_hidden else None, features, speed)

    def look(self, state: State) -> PolicyScores:
        """What the network says of the masked positions."""
        last = self._last
        if last is None or last[0]() is not state:
            assert state.segments is not None
            last = self._last = ref(state), self.network(self.inputs(state), state.segments)
        return last[1]  # not self._last: another thread may decode with this order, too

    def scores(self, state: State) -> Tensor:
        return state.spread(self.look(state).order)

    def accepts(self, state: State) -> Tensor:
        """(B, T) bool: the positions that are more likely to be filled now than not."""
        accept = self.look(state).accept
        assert accept is not None
        return state.spread(accept) > 0


@register_order("learned")
class UnboundLearnedOrder(Order):
    """Ranked by a policy: the model's own, or `learned:NAME`, `learned:PATH`, or a bundled `learned:MODEL/NAME`."""

    needs = "both"  # until it is bound; after that, what its kind needs

    def __init__(self, place: str = DEFAULT):
        self.place = place
        self._bound: dict[str, tuple[SavedModel, LearnedOrder]] = {}

    @classmethod
    def parse(cls, options: str) -> "UnboundLearnedOrder":
        return cls(options.strip() or DEFAULT)

    def bind(self, model: SavedModel, task: str) -> LearnedOrder:
        known = self._bound.get(task)
        if known is None or known[0] is not model:
            network, record = load_order(find_order(self.place, model, task))
            if mismatch := record.mismatch(model, task):
                raise InputError(f"order '{self.name}': {mismatch}")
            known = (
                model,
                LearnedOrder(network.to(model.device).eval(), self.name, record.fingerprint, passes=record.passes),
            )
            self._bound[task] = known
        return known[1]

    def scores(self, state: State) -> Tensor:
        raise TypeError("a learned order belongs to a model: bind it first")


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
    passes: Mapping[str, Passes]
    """By task, how many forward passes it took in validation at several speeds; empty if it does not decide how many
    positions to fill."""

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
        passes=record.take("passes", dict[str, list[tuple[float, float]]], {}),
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


def find_order(place: str, model: SavedModel | None, task: str) -> Path:
    """The folder of a learned order: a path, a name next to the model if there is one, or a bundled `MODEL/NAME`."""
    if (Path(place) / CONFIG).exists():
        return Path(place)
    beside = model.path if model else None
    candidates = [(beside / FOLDER, place)] if beside else []
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
    names = order_names(beside) if beside else []
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

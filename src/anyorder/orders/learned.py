"""Orders that were learned: a small network scores every masked position (paper, section 3.2).

`hidden` is the paper's: two layers on the model's last hidden state. `features` also sees how sure the model is at each
position and what is filled around it, and starts as a heuristic order. `confidence` sees only that, and `linear` weighs
it without a network; both know of no words and no language, so they serve any model. On disk an order is a folder with
`order.json` and `order.safetensors`; a model's own orders lie beside its weights, in `learned/NAME` or
`learned/NAME/DIRECTION`.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from anyorder.errors import InputError, check_number, unknown
from anyorder.files import read_json, read_tensors, replace_folder
from anyorder.models.attention import FullAttention, Segments
from anyorder.models.checkpoint import BUNDLED
from anyorder.models.transformer import Layer, Linear, TransformerConfig
from anyorder.models.translation import TranslationModel
from anyorder.orders.base import Needs, Order, State, register

CONFIG, WEIGHTS, FOLDER, DEFAULT = "order.json", "order.safetensors", "learned", "default"

FEATURES = (
    "best", "margin", "entropy", "mask", "lead", "twin left", "twin right", "same left", "same right",
    "from left", "from right", "share masked", "filled left", "filled right", "leftmost", "rightmost",
    "gap left", "gap right",
)  # fmt: skip
"""What all kinds but `hidden` see of a masked position; `read` says what each is."""

STARTS: dict[str, dict[str, float]] = {
    "none": {},
    "margin": {"margin": 1.0},
    "max-prob": {"best": 1.0},
    "entropy": {"entropy": -1.0},
    "least-to-most": {"mask": -1.0},
    "easy-first": {"mask": -1.0, "entropy": -1.0},
}
"""Heuristic orders as weights of features."""

# What brings each feature to about the size of one before it enters the network.
_SCALES = {"best": 0.3, "entropy": 0.2, "mask": 0.1, "lead": 0.3}


@dataclass(frozen=True)
class PolicyConfig:
    """What the learned order looks at, and how large it is."""

    kind: Literal["hidden", "features", "confidence", "linear"] = "features"
    """hidden: the model's last hidden state (the paper). features: also the model's uncertainty at each position, and
    what is filled around it. confidence: only these, so that the order serves other models and languages too. linear:
    these without a network, a weight for each."""
    size: int = 0
    """Units of the network; 0 takes the model's width, for confidence 128."""
    attention: int = 0
    """Layers in which the masked positions of a sentence look at each other."""
    start: Literal["none", "margin", "max-prob", "entropy", "least-to-most", "easy-first"] = "margin"
    """The order that all kinds but `hidden` begin with."""
    init_scale: float = 4.0
    """How firmly: scores begin as that order's, times this."""

    def check(self) -> None:
        for name in ("size", "attention", "init_scale"):
            check_number(f"--policy.{name}", getattr(self, name), at_least=0)
        if self.size % 64:
            raise InputError(f"--policy.size {self.size} is not a multiple of 64")
        if self.kind == "linear" and (self.size or self.attention):
            raise InputError("--policy.kind linear has no network: no --policy.size, no --policy.attention")

    @property
    def sees_hidden(self) -> bool:
        """If not, it knows of no words and no language, and serves any model."""
        return self.kind in ("hidden", "features")

    @property
    def sees_features(self) -> bool:
        return self.kind != "hidden"

    @property
    def needs(self) -> Needs:
        return "logits" if not self.sees_hidden else "both" if self.sees_features else "hidden"


@dataclass(frozen=True)
class PolicyInputs:
    """What the network reads of M masked positions."""

    hidden: Tensor | None
    """(M, width)"""
    features: Tensor | None
    """(M, FEATURES) float32"""

    @classmethod
    def end_to_end(cls, parts: Sequence["PolicyInputs"]) -> "PolicyInputs":
        hidden = [part.hidden for part in parts if part.hidden is not None]
        features = [part.features for part in parts if part.features is not None]
        return cls(torch.cat(hidden) if hidden else None, torch.cat(features) if features else None)

    def __getitem__(self, rows: slice | Tensor) -> "PolicyInputs":
        return PolicyInputs(*(None if part is None else part[rows] for part in (self.hidden, self.features)))

    @property
    def in_half(self) -> bool:
        """The network shall run in half precision, like the model; without hidden states, wherever that is fast."""
        if self.hidden is not None:
            return self.hidden.dtype == torch.bfloat16
        return self.features is not None and self.features.is_cuda


class PolicyNetwork(nn.Module):
    """Two layers on what is known of a masked position; with `attention`, layers over all of them in between.

    A weight for every feature comes on top, so that a network that adds nothing is a heuristic order.
    """

    def __init__(self, shape: PolicyConfig, width: int):
        super().__init__()
        self.shape = shape
        self.width = width
        """Of the model."""
        if shape.kind != "linear":
            size = shape.size or (width if shape.sees_hidden else 128)
            if shape.sees_hidden:
                self.read = Linear(width, size)
            inner = TransformerConfig(hidden_size=size, num_heads=size // 64 or 1, dropout=0.0)
            self.layers = nn.ModuleList(Layer(inner, "gelu") for _ in range(shape.attention))
            self.out = nn.Parameter(torch.empty(size).uniform_(-(size**-0.5), size**-0.5))
            if shape.sees_features:
                self.read_features = Linear(len(FEATURES), size)
                scales = torch.tensor([_SCALES.get(name, 1.0) for name in FEATURES])
                self.register_buffer("scales", scales, persistent=False)
                # The network adds nothing at first: the order begins as the one it starts from.
                nn.init.zeros_(self.out)
        if shape.sees_features:
            start = STARTS[shape.start]
            self.linear = nn.Parameter(torch.tensor([start.get(name, 0.0) * shape.init_scale for name in FEATURES]))

    def forward(self, inputs: PolicyInputs, segments: Segments) -> Tensor:
        """(M,) scores. segments: how many of the positions belong to each sentence."""
        parts = []
        # Sums of forward_flops, not matrix forward_flops: a row's bits must not depend on the other rows.
        if self.shape.kind != "linear":
            parts.append((self._states(inputs, segments).float() * self.out).sum(-1))
        if inputs.features is not None:
            parts.append((inputs.features * self.linear).sum(-1))
        return sum(parts[1:], parts[0])

    def _states(self, inputs: PolicyInputs, segments: Segments) -> Tensor:
        with torch.autocast(self.out.device.type, torch.bfloat16, enabled=inputs.in_half):
            parts = []
            if inputs.hidden is not None:
                parts.append(self.read(inputs.hidden))
            if inputs.features is not None:
                parts.append(self.read_features((inputs.features * self.scales).clamp(-4, 4)))  # type: ignore[operator]
            states = F.leaky_relu(sum(parts[1:], parts[0]), 0.1)
            for index, layer in enumerate(self.layers):
                states = layer(states, FullAttention(segments), index)
        return states


@dataclass(frozen=True)
class PredictionStats:
    """What the logits say at M positions."""

    best: Tensor
    """(M,) log-probability of the best word."""
    second: Tensor
    """... of the second best."""
    entropy: Tensor
    mask: Tensor
    """Log-probability of the mask."""
    token: Tensor
    """(M,) the best word."""
    total: Tensor
    """(M,) the logarithm of the distribution's denominator."""


def look(logits: Tensor, first_word: int, mask: int) -> tuple[Tensor, ...]:
    """The fields of `PredictionStats`, in a few passes over (M, tokens)."""
    words = logits[:, first_word:]
    best, token = words.max(-1)
    places = torch.arange(words.shape[1], device=logits.device)
    second = torch.where(places == token[:, None], -torch.inf, words).amax(-1)
    total = logits.logsumexp(-1)
    logp = logits - total[:, None]
    entropy = -(logp.exp() * logp).sum(-1)
    return best - total, second - total, entropy, logits[:, mask] - total, token + first_word, total


StatsFunction = Callable[[Tensor, int, int], tuple[Tensor, ...]]


def read(state: State, shape: PolicyConfig, looking: StatsFunction = look) -> PolicyInputs:
    """What the network sees of a state.

    best, margin, entropy, mask: the model's uncertainty. lead: best less the sentence's highest. twin: the probability
    of the same word at the masked neighbour. same: the filled neighbour is that word. from left, from right: how far
    from the ends, as a share of the length. filled: the neighbour is filled (the ends count as filled). leftmost,
    rightmost: no masked position lies further out. gap: one over the distance to the next filled position.
    """
    hidden = state.hidden if shape.sees_hidden else None
    assert shape.sees_hidden == (hidden is not None)
    if not shape.sees_features:
        return PolicyInputs(hidden, None)
    assert state.logits is not None
    assert state.where is not None
    assert state.tokens is not None
    where, masked = state.where, state.masked
    width = masked.shape[1]
    sure = PredictionStats(*looking(state.logits, state.first_word, state.mask))
    lead = sure.best - state.spread(sure.best).amax(1)[where // width]
    follows = F.pad((where[1:] == where[:-1] + 1) & (where[1:] % width != 0), (1, 1))
    # The best word of position i at the position after it, and of i + 1 at the one before it.
    right = (state.logits[1:].gather(1, sure.token[:-1, None]).squeeze(1) - sure.total[1:]).exp()
    left = (state.logits[:-1].gather(1, sure.token[1:, None]).squeeze(1) - sure.total[:-1]).exp()
    twin_left, twin_right = F.pad(left, (1, 0)) * follows[:-1], F.pad(right, (0, 1)) * follows[1:]
    words = state.tokens.masked_fill(masked | (state.positions >= state.lengths[:, None]), -1)
    around = F.pad(words, (1, 1), value=-1).unfold(1, 3, 1).reshape(-1, 3)[where]
    same_left, same_right = around[:, 0] == sure.token, around[:, 2] == sure.token
    of_model = (
        sure.best, sure.best.exp() - sure.second.exp(), sure.entropy, sure.mask, lead,
        twin_left, twin_right, same_left, same_right,
    )  # fmt: skip
    of_place = _surroundings(masked, state.positions, state.lengths).flatten(0, 1)[where]
    return PolicyInputs(hidden, torch.cat([torch.stack([value.float() for value in of_model], 1), of_place], 1))


def _surroundings(masked: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, 9): the features that do not depend on the model."""
    length = lengths[:, None].float()
    counted = masked.cumsum(1)
    remaining = counted[:, -1:]
    filled = F.pad(~masked, (1, 1), value=True)
    places = torch.arange(filled.shape[1], device=masked.device)
    before = torch.where(filled, places, -1).cummax(1).values[:, 1:-1]
    after = torch.where(filled, places, len(places)).flip(1).cummin(1).values.flip(1)[:, 1:-1]
    here = places[1:-1]
    shares = (
        (positions + 1) / (length + 1), (length - positions) / (length + 1), (remaining / length).expand(masked.shape),
        filled[:, :-2], filled[:, 2:], counted == 1, counted == remaining,
        1 / (here - before).clamp(min=1), 1 / (after - here).clamp(min=1),
    )  # fmt: skip
    return torch.stack([value.float() for value in shares], 2)


class LearnedOrder(Order):
    """A network that scores positions, ready to decode."""

    def __init__(self, scorer: PolicyNetwork, name: str = "learned", identity: str = "", looking: StatsFunction = look):
        self.scorer = scorer
        self.name = name
        self.needs = scorer.shape.needs
        self._identity = identity or name
        self._looking = looking

    @property
    def identity(self) -> str:
        return self._identity

    def inputs(self, state: State) -> PolicyInputs:
        return read(state, self.scorer.shape, self._looking)

    def scores(self, state: State) -> Tensor:
        assert state.segments is not None
        return state.spread(self.scorer(self.inputs(state), state.segments))


@register("learned")
class Learned(Order):
    """Where a policy network says: the model's own, `learned:NAME`, `learned:PATH`, a bundled `learned:MODEL/NAME`."""

    needs = "both"  # until it is bound: then what its kind needs

    def __init__(self, place: str = DEFAULT):
        self.place = place
        self._bound: dict[str, tuple[TranslationModel, LearnedOrder]] = {}

    @classmethod
    def parse(cls, options: str) -> "Learned":
        return cls(options.strip() or DEFAULT)

    def bind(self, model: TranslationModel, direction: str) -> LearnedOrder:
        known = self._bound.get(direction)
        if known is None or known[0] is not model:
            scorer, about = load_order(find_order(self.place, model, direction))
            if scorer.shape.sees_hidden:
                _check(about, model, direction, self.name)
            identity = f"{self.name}@{about['fingerprint']}"
            known = model, LearnedOrder(scorer.to(model.device).eval(), self.name, identity)
            self._bound[direction] = known
        return known[1]

    def scores(self, state: State) -> Tensor:
        raise TypeError("a learned order belongs to a model: bind it first")


def find_order(place: str, model: TranslationModel, direction: str) -> Path:
    """The folder of a learned order: a path, the name of one beside the model, or a bundled model's, `MODEL/NAME`."""
    if (Path(place) / CONFIG).exists():
        return Path(place)
    homes = [(model.path / FOLDER, place)] if model.path else []
    parts = Path(place).parts
    of_bundled = len(parts) == 2 and (BUNDLED / parts[0] / FOLDER).is_dir()
    if of_bundled:
        homes.append((BUNDLED / parts[0] / FOLDER, parts[1]))
    for home, name in homes:
        for folder in (home / name / direction, home / name):
            if (folder / CONFIG).exists():
                return folder
    if of_bundled:
        raise unknown(f"learned order of {parts[0]}", parts[1], order_names(BUNDLED / parts[0]))
    names = order_names(model.path) if model.path else []
    if place == DEFAULT and not names:
        raise InputError("this model has no learned order; learn one with 'anyorder learn-order'")
    if place != DEFAULT and (os.sep in place or not names):
        raise InputError(f"{place}: no learned order there (no {CONFIG})")
    raise unknown("learned order", place, names)


def order_names(home: Path) -> list[str]:
    """Those that lie beside the model there; what an interrupted command left behind is none."""
    names = {file.relative_to(home / FOLDER).parts[0] for file in home.glob(f"{FOLDER}/**/{CONFIG}")}
    return sorted(name for name in names if ".partial-" not in name and ".old-" not in name)


def default_order(model: TranslationModel, direction: str) -> str:
    """`learned` where the model has an order of its own for this direction, else `margin`."""
    try:
        find_order(DEFAULT, model, direction)
    except InputError:
        return "margin"
    return "learned"


def save_order(
    scorer: PolicyNetwork, folder: Path, model: TranslationModel, directions: Sequence[str], **about: Any
) -> None:
    """Write an order; a folder that holds one already is replaced as a whole."""
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    weights = to_bytes({name: value.detach().float().cpu().contiguous() for name, value in scorer.state_dict().items()})
    content = {
        "format": 1,
        "policy": asdict(scorer.shape),
        "features": list(FEATURES) if scorer.shape.sees_features else [],
        "width": scorer.width,
        "vocabulary": model.vocabulary.fingerprint,
        "directions": list(directions),
        "fingerprint": hashlib.sha256(weights).hexdigest()[:8],
        **about,
    }
    (partial / WEIGHTS).write_bytes(weights)
    (partial / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    replace_folder(partial, folder)


def load_order(folder: Path) -> tuple[PolicyNetwork, dict[str, Any]]:
    about = read_json(folder / CONFIG)
    if about.get("format") != 1:
        raise InputError(f"{folder / CONFIG}: format {about.get('format')}, expected 1")
    if about.get("features") not in ([], list(FEATURES)):
        raise InputError(f"{folder / CONFIG}: was learned with other features; learn it again")
    try:
        scorer = PolicyNetwork(PolicyConfig(**about["policy"]), about["width"])
        about["directions"], about["vocabulary"], about["fingerprint"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder / CONFIG}: damaged ({error})") from None
    weights = read_tensors(folder / WEIGHTS)
    own = scorer.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        if name not in own or name not in weights or own[name].shape != weights[name].shape:
            raise InputError(f"{folder / WEIGHTS}: does not fit its {CONFIG} at {name}")
    scorer.load_state_dict(weights)
    return scorer, about


def _check(about: dict[str, Any], model: TranslationModel, direction: str, name: str) -> None:
    if about["vocabulary"] != model.vocabulary.fingerprint or about["width"] != model.config.transformer.hidden_size:
        raise InputError(f"order '{name}': was learned for another model")
    if direction not in about["directions"]:
        raise InputError(f"order '{name}': was learned for {', '.join(about['directions'])}, not for {direction}")

"""The policy network: a small network that scores every masked position (paper, section 3.1), and what it sees there.

Its features do not depend on words or language, so a network that sees only them works with any model. A network may
also decide how many positions a step fills: then it says of every position how likely it is to be filled now, given the
speed that is asked for. How a network is learned, saved or found is elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.errors import InputError, check_number
from anyorder.models.base import log_probability, restrict, row_sums
from anyorder.models.native.attention import FullAttention, Segments
from anyorder.models.native.transformer import Layer, Linear, TransformerConfig
from anyorder.orders.base import Needs, State

FEATURES = (
    "best", "margin", "entropy", "mask", "lead", "twin left", "twin right", "same left", "same right",
    "from left", "from right", "share masked", "filled left", "filled right", "leftmost", "rightmost",
    "gap left", "gap right",
)  # fmt: skip
"""The features of a masked position; see `extract_features` for each."""
STARTS: dict[str, dict[str, float]] = {
    "none": {},
    "margin": {"margin": 1.0},
    "max-prob": {"best": 1.0},
    "entropy": {"entropy": -1.0},
    "least-to-most": {"mask": -1.0},
    "easy-first": {"mask": -1.0, "entropy": -1.0},
}
"""Heuristic orders as feature weights."""

SCALES = {"best": 0.3, "entropy": 0.2, "mask": 0.1, "lead": 0.3}
"""Factors that scale each feature to about 1 before it enters the network; 1 for the others."""
MOST_CERTAIN = 7.0
"""The log-odds of the best token, about 99.9%, from which a new policy fills positions at speed 0; at speed 1, -7."""
ACCEPT_SCALE = 2.0
"""Factor for the log-odds in a new policy's decision: how sharp its threshold is."""


@dataclass(frozen=True)
class PolicyConfig:
    """The inputs and the size of the policy network."""

    kind: Literal["hidden", "features", "confidence", "linear"] = "features"
    """Inputs of the policy. hidden: the model's last hidden state (the paper). features: also the model's confidence at
    each position and what is filled around it. confidence: only these features, so the order works with any model and
    language. linear: a weighted sum of these features, without a network."""
    size: int = 0
    """Hidden size of the network; 0 means the model's hidden size, or 128 for confidence."""
    attention: int = 0
    """Number of attention layers among the masked positions of a sentence."""
    start: Literal["none", "margin", "max-prob", "entropy", "least-to-most", "easy-first"] = "margin"
    """The heuristic order to initialize from (all kinds except hidden)."""
    init_scale: float = 4.0
    """Factor for that order's scores at initialization."""
    dropout: float = 0.0
    """Dropout in the policy's hidden layer, only where the loss is computed: rollouts and decoding run without it."""
    count: Literal["one", "bernoulli"] = "one"
    """How many positions a step fills. one: as many as the schedule says (the paper: one). bernoulli: the policy
    decides for every position whether to fill it now, given the speed in '--schedule learned:SPEED'. It starts as a
    threshold on the probability of the best token."""

    def __post_init__(self) -> None:
        for name, largest in (("size", 65_536), ("attention", 64), ("init_scale", 1e6)):
            check_number(name, getattr(self, name), at_least=0, at_most=largest, config=PolicyConfig)
        check_number("dropout", self.dropout, at_least=0, below=1, config=PolicyConfig)
        if self.size % 64:
            raise InputError(f"{self.size} is not a multiple of 64", "size", PolicyConfig)
        if self.kind == "linear" and (self.size or self.attention or self.dropout):
            raise InputError("linear has no network: it takes no size, attention or dropout", "kind", PolicyConfig)
        if self.kind == "hidden" and self.decides_count:
            found = "hidden: does not see the confidence by which a policy decides how many positions to fill"
            raise InputError(found, "kind", PolicyConfig)

    @property
    def uses_hidden(self) -> bool:
        """If not, it ignores words and language and works with any model."""
        return self.kind in ("hidden", "features")

    @property
    def uses_features(self) -> bool:
        return self.kind != "hidden"

    @property
    def decides_count(self) -> bool:
        """Whether it decides how many positions a step fills."""
        return self.count != "one"

    @property
    def needs(self) -> Needs:
        return "logits" if not self.uses_hidden else "both" if self.uses_features else "hidden"


@dataclass(frozen=True)
class PolicyInputs:
    """The policy network's inputs for M masked positions."""

    hidden: Tensor | None
    """(M, hidden_size)"""
    features: Tensor | None
    """(M, len(FEATURES)) float32"""
    speed: Tensor | None = None
    """(M,) from 0 to 1, if the network decides how many positions to fill."""

    @property
    def _parts(self) -> tuple[Tensor | None, ...]:
        return self.hidden, self.features, self.speed

    @classmethod
    def cat(cls, parts: Sequence["PolicyInputs"]) -> "PolicyInputs":
        return cls(*(cat_present(each) for each in zip(*(part._parts for part in parts), strict=True)))

    def __getitem__(self, rows: slice | Tensor) -> "PolicyInputs":
        return PolicyInputs(*(None if part is None else part[rows] for part in self._parts))


def cat_present(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Tensors end to end; None if there are none. Either all are there or none is."""
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


class PolicyScores(NamedTuple):
    """What the network says of M masked positions."""

    order: Tensor
    """(M,) which one to fill next: the highest."""
    accept: Tensor | None
    """(M,) whether to fill it now: the log-odds; None if the network does not decide how many."""


class PolicyNetwork(nn.Module):
    """Two layers applied to each masked position; with `attention`, layers across positions in between.

    A weighted sum of the features is added, so that a network that outputs zero is a heuristic order, and a threshold
    if it decides how many positions to fill.
    """

    def __init__(self, config: PolicyConfig, hidden_size: int):
        """hidden_size: of the model."""
        super().__init__()
        self.config = config
        self.hidden_size = hidden_size
        if config.kind != "linear":
            size = config.size or (hidden_size if config.uses_hidden else 128)
            if config.uses_hidden:
                self.read = Linear(hidden_size, size)
            self.layers = nn.ModuleList(Layer(_layer_config(size), "gelu") for _ in range(config.attention))
            self.out = nn.Parameter(torch.empty(size).uniform_(-(size**-0.5), size**-0.5))
            if config.uses_features:
                self.read_features = Linear(len(FEATURES), size)
                scales = torch.tensor([SCALES.get(name, 1.0) for name in FEATURES])
                self.register_buffer("scales", scales, persistent=False)
                # The network adds nothing initially: the policy begins as the heuristic order it starts from.
                nn.init.zeros_(self.out)
            if config.decides_count:
                self.read_speed = nn.Parameter(torch.empty(size).uniform_(-1, 1))
                self.accept_out = nn.Parameter(torch.zeros(size))
        if config.uses_features:
            start = STARTS[config.start]
            self.linear = nn.Parameter(torch.tensor([start.get(name, 0.0) * config.init_scale for name in FEATURES]))
        if config.decides_count:
            threshold = torch.tensor([1.0, 2 * MOST_CERTAIN, -MOST_CERTAIN])
            self.accept_linear = nn.Parameter(ACCEPT_SCALE * threshold)
            """Weights of the best token's log-odds, the speed, and 1."""

    def forward(self, inputs: PolicyInputs, segments: Segments, with_dropout: bool = False) -> PolicyScores:
        """segments: how many of the positions belong to each sequence."""
        orders, accepts = [], []
        # Sums of products, not matrix products: a row's bits must not depend on the other rows.
        if self.config.kind != "linear":
            states = self._states(inputs, segments, with_dropout).float()
            orders.append((states * self.out).sum(-1))
            if inputs.speed is not None:
                accepts.append((states * self.accept_out).sum(-1))
        if inputs.features is not None:
            orders.append((inputs.features * self.linear).sum(-1))
        if inputs.speed is not None:
            assert inputs.features is not None
            certainty = log_odds(inputs.features[:, FEATURES.index("best")])
            terms = torch.stack([certainty, inputs.speed, torch.ones_like(certainty)], 1)
            accepts.append((terms * self.accept_linear).sum(-1))
        return PolicyScores(sum(orders[1:], orders[0]), sum(accepts[1:], accepts[0]) if accepts else None)

    def _states(self, inputs: PolicyInputs, segments: Segments, with_dropout: bool) -> Tensor:
        # Half precision like the model's; without hidden states, wherever that is fast.
        half = self.out.is_cuda if inputs.hidden is None else inputs.hidden.dtype == torch.bfloat16
        with torch.autocast(self.out.device.type, torch.bfloat16, enabled=half):
            parts = []
            if inputs.hidden is not None:
                parts.append(self.read(inputs.hidden))
            if inputs.features is not None:
                parts.append(self.read_features((inputs.features * self.scales).clamp(-4, 4)))  # type: ignore[operator]
            if inputs.speed is not None:
                parts.append(inputs.speed[:, None] * self.read_speed)
            states = F.leaky_relu(sum(parts[1:], parts[0]), 0.1)
            if with_dropout and self.config.dropout:
                states = F.dropout(states, self.config.dropout)
            for index, layer in enumerate(self.layers):
                states = layer(states, FullAttention(segments), index)
        return states


def log_odds(logprobs: Tensor) -> Tensor:
    """log(p / (1 - p)) of log-probabilities, at most 15, which is above any threshold."""
    return (logprobs - (-torch.expm1(logprobs)).clamp(min=1e-12).log()).clamp(max=15)


def _layer_config(size: int) -> TransformerConfig:
    """As many heads of at least 64 units as divide the size evenly."""
    heads = next(count for count in range(max(1, size // 64), 0, -1) if size % count == 0)
    return TransformerConfig(hidden_size=size, num_heads=heads, dropout=0.0)


class PredictionStats(NamedTuple):
    """Statistics of the logits, (M,) each; `best`, `second` (best token) and `mask` are log-probabilities."""

    best: Tensor
    second: Tensor
    entropy: Tensor
    """In nats."""
    mask: Tensor
    token: Tensor
    """The best token."""
    log_total: Tensor
    """The log of the softmax denominator."""


StatsFunction = Callable[[Tensor, int, Tensor | None, int], PredictionStats]


def prediction_stats(logits: Tensor, first: int, blocked: Tensor | None, mask_token: int) -> PredictionStats:
    """In a few passes over (M, vocab_size), as a compilable function. first, blocked: see `AllowedTokens`."""
    logp = log_probability(logits, logits)
    highest, index = restrict(logits, first, blocked).max(-1)
    allowed = restrict(logp, first, blocked)
    best = allowed.gather(1, index[:, None]).squeeze(1)
    tokens = torch.arange(allowed.shape[1], device=logits.device)
    second = torch.where(tokens == index[:, None], -torch.inf, allowed).amax(-1)
    entropy = -row_sums(logp.exp() * logp)
    return PredictionStats(best, second, entropy, logp[:, mask_token], index + first, highest - best)


def extract_features(state: State, stats_function: StatsFunction = prediction_stats) -> Tensor:
    """(M, len(FEATURES)) features of the masked positions.

    best, margin, entropy, mask: the model's uncertainty. lead: best minus the sequence's highest. twin: the probability
    of the same token at the masked neighbor. same: the filled neighbor is that token. from left, from right: distance
    from the ends, as a share of the length. filled: the neighbor is filled (the ends count as filled). leftmost,
    rightmost: no masked position is further out. gap: one over the distance to the next filled position.
    """
    assert state.logits is not None
    assert state.where is not None
    assert state.tokens is not None
    where, masked, logits = state.where, state.masked, state.logits
    width = masked.shape[1]
    stats = stats_function(logits, state.allowed.first, state.allowed.blocked, state.mask_token)
    lead = stats.best - state.spread(stats.best).amax(1)[where // width]
    # Neighbors among the masked positions: where[i + 1] is right of where[i], and not the start of the next sequence.
    follows = F.pad((where[1:] == where[:-1] + 1) & (where[1:] % width != 0), (1, 1))
    # The probability of position i's best token at i + 1, and of i + 1's best token at i.
    right = (logits[1:].gather(1, stats.token[:-1, None]).squeeze(1) - stats.log_total[1:]).exp()
    left = (logits[:-1].gather(1, stats.token[1:, None]).squeeze(1) - stats.log_total[:-1]).exp()
    twin_left, twin_right = F.pad(left, (1, 0)) * follows[:-1], F.pad(right, (0, 1)) * follows[1:]
    tokens = state.tokens.masked_fill(masked | (state.positions >= state.lengths[:, None]), -1)
    around = F.pad(tokens, (1, 1), value=-1).unfold(1, 3, 1).reshape(-1, 3)[where]
    same_left, same_right = around[:, 0] == stats.token, around[:, 2] == stats.token
    of_predictions = (
        stats.best, stats.best.exp() - stats.second.exp(), stats.entropy, stats.mask, lead,
        twin_left, twin_right, same_left, same_right,
    )  # fmt: skip
    of_positions = _position_features(masked, state.positions, state.lengths).flatten(0, 1)[where]
    return torch.cat([torch.stack([value.float() for value in of_predictions], 1), of_positions], 1)


def _position_features(masked: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, 9): the features that do not depend on the model."""
    length = lengths[:, None].float()
    count = masked.cumsum(1)
    remaining = count[:, -1:]
    filled = F.pad(~masked, (1, 1), value=True)
    index = torch.arange(filled.shape[1], device=masked.device)
    before = torch.where(filled, index, -1).cummax(1).values[:, 1:-1]
    after = torch.where(filled, index, len(index)).flip(1).cummin(1).values.flip(1)[:, 1:-1]
    here = index[1:-1]
    features = (
        (positions + 1) / (length + 1), (length - positions) / (length + 1), (remaining / length).expand(masked.shape),
        filled[:, :-2], filled[:, 2:], count == 1, count == remaining,
        1 / (here - before).clamp(min=1), 1 / (after - here).clamp(min=1),
    )  # fmt: skip
    return torch.stack([value.float() for value in features], 2)

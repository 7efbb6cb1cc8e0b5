"""The policy network: a small network that scores every masked position (paper, section 3.1).

This module defines its settings and layers, not what it sees, or how it is learned, saved or found.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.errors import InputError, check_number
from anyorder.models.native.attention import FullAttention, Segments
from anyorder.models.native.transformer import Layer, Linear, TransformerConfig
from anyorder.orders.base import Needs
from anyorder.orders.features import FEATURES, PolicyInputs

STARTS: dict[str, dict[str, float]] = {
    "none": {},
    "margin": {"margin": 1.0},
    "max-prob": {"best": 1.0},
    "entropy": {"entropy": -1.0},
    "least-to-most": {"mask": -1.0},
    "easy-first": {"mask": -1.0, "entropy": -1.0},
}
"""Heuristic orders as feature weights."""

# Factors that scale each feature to about 1 before it enters the network.
_SCALES = {"best": 0.3, "entropy": 0.2, "mask": 0.1, "lead": 0.3}


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

    def __post_init__(self) -> None:
        for name, largest in (("size", 65_536), ("attention", 64), ("init_scale", 1e6)):
            check_number(name, getattr(self, name), at_least=0, at_most=largest, config=PolicyConfig)
        check_number("dropout", self.dropout, at_least=0, below=1, config=PolicyConfig)
        if self.size % 64:
            raise InputError(f"{self.size} is not a multiple of 64", "size", PolicyConfig)
        if self.kind == "linear" and (self.size or self.attention or self.dropout):
            raise InputError("linear has no network: it takes no size, attention or dropout", "kind", PolicyConfig)

    @property
    def uses_hidden(self) -> bool:
        """If not, it ignores words and language and works with any model."""
        return self.kind in ("hidden", "features")

    @property
    def uses_features(self) -> bool:
        return self.kind != "hidden"

    @property
    def needs(self) -> Needs:
        return "logits" if not self.uses_hidden else "both" if self.uses_features else "hidden"


class PolicyNetwork(nn.Module):
    """Two layers applied to each masked position; with `attention`, layers across positions in between.

    A weighted sum of the features is added, so that a network that outputs zero is a heuristic order.
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
                scales = torch.tensor([_SCALES.get(name, 1.0) for name in FEATURES])
                self.register_buffer("scales", scales, persistent=False)
                # The network adds nothing initially: the policy begins as the heuristic order it starts from.
                nn.init.zeros_(self.out)
        if config.uses_features:
            start = STARTS[config.start]
            self.linear = nn.Parameter(torch.tensor([start.get(name, 0.0) * config.init_scale for name in FEATURES]))

    def forward(self, inputs: PolicyInputs, segments: Segments, with_dropout: bool = False) -> Tensor:
        """(M,) scores. segments: how many of the positions belong to each sequence."""
        parts = []
        # Sums of products, not matrix products: a row's bits must not depend on the other rows.
        if self.config.kind != "linear":
            parts.append((self._states(inputs, segments, with_dropout).float() * self.out).sum(-1))
        if inputs.features is not None:
            parts.append((inputs.features * self.linear).sum(-1))
        return sum(parts[1:], parts[0])

    def _states(self, inputs: PolicyInputs, segments: Segments, with_dropout: bool) -> Tensor:
        # Half precision like the model's; without hidden states, wherever that is fast.
        half = self.out.is_cuda if inputs.hidden is None else inputs.hidden.dtype == torch.bfloat16
        with torch.autocast(self.out.device.type, torch.bfloat16, enabled=half):
            parts = []
            if inputs.hidden is not None:
                parts.append(self.read(inputs.hidden))
            if inputs.features is not None:
                parts.append(self.read_features((inputs.features * self.scales).clamp(-4, 4)))  # type: ignore[operator]
            states = F.leaky_relu(sum(parts[1:], parts[0]), 0.1)
            if with_dropout and self.config.dropout:
                states = F.dropout(states, self.config.dropout)
            for index, layer in enumerate(self.layers):
                states = layer(states, FullAttention(segments), index)
        return states


def _layer_config(size: int) -> TransformerConfig:
    """As many heads of at least 64 units as divide the size evenly."""
    heads = next(count for count in range(max(1, size // 64), 0, -1) if size % count == 0)
    return TransformerConfig(hidden_size=size, num_heads=heads, dropout=0.0)

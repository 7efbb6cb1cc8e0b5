"""A calm start for deep post-LayerNorm Transformers: DeepNorm (Wang et al. 2022), for the Transformer as it is.

With N layers DeepNorm computes LN(a x + f(x)), a = (2N)^(1/4), and the value, output and feed-forward matrices of every
branch f start smaller by b = (8N)^(-1/4). LN(a x + f(x)) is LN(x + f(x) / a), so here the last matrix of a branch
carries the 1 / a, and the model itself is as before. That matrix also learns 1 / a as fast, so that a step of the
optimizer changes a branch as much as in DeepNorm.
"""

from typing import Literal

import torch
from torch import nn

from anyorder.models.transformer import Layer, Transformer

DeepNorm = Literal["auto", "yes", "no"]
DEEP = 8
"""Models with more layers do not train reliably without it."""


def use_deepnorm(setting: DeepNorm, num_layers: int) -> bool:
    """Whether a model of so many layers is trained this way."""
    return setting == "yes" or (setting == "auto" and num_layers > DEEP)


@torch.no_grad()
def scale_branches(transformer: Transformer) -> None:
    """Scale the initial weights."""
    gain, residual = _constants(transformer)
    width = transformer.config.hidden_size
    for layer in _layers(transformer):
        layer.key_value.weight[width:].mul_(gain)  # the keys come first
        layer.attended.weight.mul_(gain / residual)
        layer.inner.weight.mul_(gain)
        layer.outer.weight.mul_(gain / residual)


def branch_rates(transformer: Transformer) -> dict[nn.Parameter, float]:
    """The share of the learning rate of every parameter that has not the whole."""
    _, residual = _constants(transformer)
    last = [part for layer in _layers(transformer) for part in (layer.attended, layer.outer)]
    return {parameter: 1 / residual for part in last for parameter in part.parameters()}


def _layers(transformer: Transformer) -> list[Layer]:
    return [layer for layer in transformer.layers if isinstance(layer, Layer)]


def _constants(transformer: Transformer) -> tuple[float, float]:
    """The gain b and the scale a of the residual."""
    layers = len(transformer.layers)
    return (8 * layers) ** -0.25, (2 * layers) ** 0.25

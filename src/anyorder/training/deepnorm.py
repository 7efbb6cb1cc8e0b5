"""DeepNorm (Wang et al. 2022): stable training of deep post-LayerNorm Transformers, without changing the model.

With N layers DeepNorm computes LN(a x + f(x)), a = (2N)^(1/4), and the value, output and feed-forward matrices of every
branch f are initialized with gain b = (8N)^(-1/4). LN(a x + f(x)) is LN(x + f(x) / a), so here the last matrix of a
branch is scaled by 1 / a, and the model itself is unchanged. That matrix also gets 1 / a of the learning rate, so that
an optimizer step changes a branch as much as in DeepNorm.
"""

from typing import Literal

import torch
from torch import nn

from anyorder.models.transformer import Layer, Transformer

DeepNorm = Literal["auto", "yes", "no"]
DEEP = 8
"""Models with more layers do not train reliably without DeepNorm."""


def use_deepnorm(setting: DeepNorm, num_layers: int) -> bool:
    """Whether to train a model with this many layers with DeepNorm."""
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
    """Learning-rate factors of the parameters that do not get the full learning rate."""
    _, residual = _constants(transformer)
    last = [part for layer in _layers(transformer) for part in (layer.attended, layer.outer)]
    return {parameter: 1 / residual for part in last for parameter in part.parameters()}


def _layers(transformer: Transformer) -> list[Layer]:
    return [layer for layer in transformer.layers if isinstance(layer, Layer)]


def _constants(transformer: Transformer) -> tuple[float, float]:
    """The gain b and the residual scale a."""
    layers = len(transformer.layers)
    return (8 * layers) ** -0.25, (2 * layers) ** 0.25

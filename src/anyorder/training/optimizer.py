"""How weights start and change: AdamW, its learning-rate schedule, the moving average, and DeepNorm.

DeepNorm (Wang et al. 2022) trains deep post-LayerNorm Transformers stably, here without changing the model.
With N layers DeepNorm computes LN(a x + f(x)), a = (2N)^(1/4), and the value, output and feed-forward matrices of every
branch f are initialized with gain b = (8N)^(-1/4). LN(a x + f(x)) is LN(x + f(x) / a), so here the last matrix of a
branch is scaled by 1 / a, and the model itself is unchanged. That matrix also gets 1 / a of the learning rate, so that
an optimizer step changes a branch as much as in DeepNorm.
"""

from collections.abc import Mapping

import torch
from torch import nn

from anyorder.models.native.transformer import Layer, Transformer
from anyorder.training.config import DeepNorm, TrainConfig

DEEP = 8
"""Models with more layers do not train reliably without DeepNorm."""


def make_optimizer(
    model: nn.Module, run: TrainConfig, cuda: bool, rate_scales: Mapping[nn.Parameter, float] | None = None
) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only. rate_scales: learning-rate factors, by default 1."""
    scales = rate_scales or {}
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {(True, 1.0): [], (False, 1.0): []}
    for parameter in model.parameters():
        groups.setdefault((parameter.dim() >= 2, scales.get(parameter, 1.0)), []).append(parameter)
    settings = [
        {"params": parameters, "weight_decay": run.weight_decay if is_matrix else 0.0, "rate_scale": scale}
        for (is_matrix, scale), parameters in groups.items()
    ]
    return torch.optim.AdamW(settings, lr=run.learning_rate, betas=(0.9, 0.98), eps=1e-8, fused=cuda or None)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate; a parameter group with a factor gets that fraction of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_scale"]


def rate_factor(run: TrainConfig, step: int, done: float) -> float:
    """The fraction of the peak learning rate: linear warm-up, then constant, then linear decay to zero."""
    warm = min(1.0, (step + 1) / max(1, run.warmup))
    left = min(1.0, (1 - min(done, 1.0)) / max(1e-9, 1 - run.decay_from))
    return warm * left


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """Move the exponential moving average of the weights towards the weights."""
    # Early on, the average follows closely; otherwise it would contain the random initial weights for too long.
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


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

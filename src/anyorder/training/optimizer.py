"""AdamW, its learning-rate schedule, and the moving average of the weights. Knows nothing about objectives."""

from collections.abc import Mapping

import torch
from torch import nn

from anyorder.training.config import TrainConfig


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

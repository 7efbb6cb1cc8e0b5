"""AdamW, its learning rate over a run, and the moving average of the weights. Knows no objective."""

import torch
from torch import nn

from anyorder.training.config import TrainConfig


def make_optimizer(model: nn.Module, run: TrainConfig, cuda: bool) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": run.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=run.learning_rate, betas=(0.9, 0.98), eps=1e-8, fused=cuda or None)


def rate_factor(run: TrainConfig, step: int, done: float) -> float:
    """The share of the peak learning rate: linear warm-up, then flat, then linearly down to zero at the end."""
    warm = min(1.0, (step + 1) / max(1, run.warmup))
    left = min(1.0, (1 - min(done, 1.0)) / max(1e-9, 1 - run.decay_from))
    return warm * left


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """Move the exponential moving average of the weights towards the weights."""
    # Early on the average follows closely, or the random start would stay in it for long.
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)

"""The networks that learn an order (paper, section 3.1): policy and value network. They see decisions, not rollouts."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from anyorder.models.native.transformer import Linear
from anyorder.orders.policy import PolicyNetwork

if TYPE_CHECKING:
    from anyorder.learning.rollout import Decisions


class ActorCritic(nn.Module):
    """The policy network, and the value network where an algorithm needs one."""

    def __init__(self, policy: PolicyNetwork, with_value: bool):
        super().__init__()
        self.policy = policy
        size = policy.hidden_size
        self.value = nn.Sequential(Linear(size, size), nn.LeakyReLU(0.1), Linear(size, 1)) if with_value else None

    def log_probs(self, decisions: "Decisions", with_dropout: bool = False) -> Tensor:
        """(D, T) log-probability of every position at every decision; -inf where nothing may be filled."""
        scores = torch.full((len(decisions.chosen) * decisions.width,), -torch.inf, device=decisions.chosen.device)
        of_masked = self.policy(decisions.inputs, decisions.segments, with_dropout)
        scores = scores.index_copy(0, decisions.positions, of_masked)
        return scores.view(-1, decisions.width).log_softmax(1)

    def values(self, decisions: "Decisions") -> Tensor:
        """(D,) the return that the value network predicts."""
        assert self.value is not None
        assert decisions.opening is not None
        half = decisions.opening.dtype == torch.bfloat16
        with torch.autocast(decisions.opening.device.type, torch.bfloat16, enabled=half):
            return self.value(decisions.opening).squeeze(1).float()

"""Orders that look at the model's own predictions at the masked positions."""

from abc import abstractmethod

import torch
from torch import Tensor

from anyorder.orders.base import Order, State, register


class Confidence(Order):
    """Scores every masked position by the model's distribution there."""

    needs = "logits"

    def scores(self, state: State) -> Tensor:
        assert state.logits is not None
        return state.spread(self.confidence(state.logits, state))

    @abstractmethod
    def confidence(self, logits: Tensor, state: State) -> Tensor:
        """(M, tokens) to (M,)."""


@register("max-prob")
class MaxProb(Confidence):
    """Where the best word is most probable."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return logits[:, state.first_word :].amax(-1) - logits.logsumexp(-1)


@register("margin")
class Margin(Confidence):
    """Where the best word is furthest ahead of the second best, in probability."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        words = logits[:, state.first_word :]
        best, index = words.max(-1, keepdim=True)
        second = words.scatter(-1, index, -torch.inf).amax(-1)
        total = logits.logsumexp(-1)
        return (best.squeeze(-1) - total).exp() - (second - total).exp()


@register("entropy")
class Entropy(Confidence):
    """Where the distribution has the least entropy."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return -entropy(logits)


@register("least-to-most")
class LeastToMost(Confidence):
    """Where the token that stands there now, the mask, is least likely (paper, section 4.2)."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return logits.logsumexp(-1) - logits[:, state.mask]


@register("easy-first")
class EasyFirst(Confidence):
    """logp * (-log p(mask)) + negent * (-H): unlikely masks where the model is sure (paper, section 4.2)."""

    def __init__(self, logp: float = 1.0, negent: float = 1.0):
        self.logp = logp
        self.negent = negent

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        unlikely = logits.logsumexp(-1) - logits[:, state.mask]
        return self.logp * unlikely - self.negent * entropy(logits)


def entropy(logits: Tensor) -> Tensor:
    """In nats. (M, tokens) to (M,)"""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)

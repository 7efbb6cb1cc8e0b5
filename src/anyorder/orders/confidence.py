"""Orders that look only at the model's predictions at the masked positions, not at tokens or positions."""

from abc import abstractmethod

import torch
from torch import Tensor

from anyorder.models.base import log_total, row_sums
from anyorder.orders.base import Order, State, register_order


class Confidence(Order):
    """Scores every masked position by the model's distribution there."""

    needs = "logits"
    is_local = True

    def scores(self, state: State) -> Tensor:
        assert state.logits is not None
        return state.spread(self.confidence(state.logits, state))

    @abstractmethod
    def confidence(self, logits: Tensor, state: State) -> Tensor:
        """(M, vocab_size) to (M,)."""


@register_order("max-prob")
class MaxProb(Confidence):
    """Where the best token is most probable."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        # Less than the last bit of a logit (about 1e-6) vanishes: nearly certain positions tie, and ties go left.
        return state.allowed.restrict(logits).amax(-1) - log_total(logits)


@register_order("margin")
class Margin(Confidence):
    """Where the probability margin between the best and the second-best token is largest."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        words = state.allowed.restrict(logits)
        best, index = words.max(-1, keepdim=True)
        # The best token is masked by its index, so that a second one with an equal logit gives a margin of zero.
        second = words.scatter(-1, index, -torch.inf).amax(-1)
        total = log_total(logits)
        return (best.squeeze(-1) - total).exp() - (second - total).exp()


@register_order("entropy")
class Entropy(Confidence):
    """Where the predicted distribution has the lowest entropy."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return -entropy(logits)


@register_order("least-to-most")
class LeastToMost(Confidence):
    """Where the mask token is least likely (paper, section 4.2)."""

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return mask_surprisal(logits, state)


@register_order("easy-first")
class EasyFirst(Confidence):
    """Where logp * (-log p(mask)) + negent * (-entropy) is highest (paper, section 4.2)."""

    def __init__(self, logp: float = 1.0, negent: float = 1.0):
        self.logp = logp
        self.negent = negent

    def confidence(self, logits: Tensor, state: State) -> Tensor:
        return self.logp * mask_surprisal(logits, state) - self.negent * entropy(logits)


def mask_surprisal(logits: Tensor, state: State) -> Tensor:
    """-log p(mask). (M, vocab_size) to (M,)"""
    return log_total(logits) - logits[:, state.mask_token]


def entropy(logits: Tensor) -> Tensor:
    """In nats. (M, vocab_size) to (M,)"""
    logp = logits.log_softmax(-1)
    return -row_sums(logp.exp() * logp)

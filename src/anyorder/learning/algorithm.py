"""How an order is learned: section 3 of the paper (Jiang & Bansal 2021), read from top to bottom.

3.1 Predicting generation order. A frozen model fills a sentence of T masks in T steps. At step i the policy network's
    distribution P_pol over the masked positions is sampled for the position p_i to fill; the token is the model's best.
    (Between equal scores the noise of the sample decides, where decoding takes the leftmost position.)

3.2 Reinforcement learning objectives. The finished sentence earns the reward R, and the value network outputs v_i:

        A_i     = gamma^(T-i) R - v_i                                            the advantage of step i
        L_RL    = -1/T  sum_i log P_pol(p_i) A_i                                 the policy gradient
        L_ent   = -1/T^2  sum_i sum_j P_pol(p_i^j) log P_pol(p_i^j)              equation 1, the entropy penalty
        L_total = L_RL + lambda L_ent                                            equation 1

    and the value network minimizes (v_i - G_i)^2, where G_i = gamma^(T-i) R is the return.

The three algorithms differ in the baseline that is subtracted from G_i, and in how often they use a rollout:

    a2c   v_i                                                                    (the paper)
    ppo   v_i, several epochs on the same rollouts                               (Mansimov et al. 2019)
    rloo  the mean return of the sentence's other rollouts, no value network     (Kool et al. 2019)

A policy may also decide how many positions a step fills, given a speed s from 0 to 1. It then accepts every masked
position j with its own probability a_j; if it accepts none, it fills one position, sampled from P_pol as above. So

        P({p})  = prod_j (1 - a_j) (P_pol(p) + a_p / (1 - a_p))                  one position, accepted or sampled
        P(S)    = prod_(j in S) a_j  prod_(j not in S) (1 - a_j)                 several

takes the place of P_pol(p_i), and a sentence of T masks that took n steps earns

        R' = R ((T - n + 1) / T)^(alpha s)                                       the reward times the passes saved

which is R itself at speed 0. (Multiplied: with a reward for speed added to R, one step would be best at every speed.)

What follows is in the order of the computation: `ActorCritic` (networks), `sample_rollouts` (rollout), `step_rewards`
(reward), `discounted_returns` (return), `leave_one_out` (advantage), `OrderLoss` (entropy, loss, and so the gradient).
Sampling itself is in `rollout.py`. Knows nothing about texts or files.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.device import to_device
from anyorder.learning.config import RLConfig
from anyorder.learning.rewards import Outcome, Reward
from anyorder.learning.rollout import Decisions, LogProbs, OrderBatch, SamplingOrder, edge_fills, roll_out
from anyorder.memory import Halving
from anyorder.models.base import Model
from anyorder.models.native.transformer import Linear
from anyorder.orders.policy import PolicyNetwork


class ActorCritic(nn.Module):
    """The policy network, and the value network where an algorithm needs one (section 3.1)."""

    def __init__(self, policy: PolicyNetwork, with_value: bool):
        super().__init__()
        self.policy = policy
        size = policy.hidden_size
        self.value = nn.Sequential(Linear(size, size), nn.LeakyReLU(0.1), Linear(size, 1)) if with_value else None

    def log_probs(self, decisions: Decisions, with_dropout: bool = False) -> LogProbs:
        said = self.policy(decisions.inputs, decisions.segments, with_dropout)
        empty = torch.full((len(decisions.chosen) * decisions.width,), -torch.inf, device=decisions.chosen.device)
        shape = -1, decisions.width
        scores = empty.index_copy(0, decisions.positions, said.order).view(shape)
        accept = None if said.accept is None else empty.index_copy(0, decisions.positions, said.accept).view(shape)
        return LogProbs(scores.log_softmax(1), accept)

    def values(self, decisions: Decisions) -> Tensor:
        """v_i: (D,) the return that the value network predicts."""
        assert self.value is not None
        assert decisions.opening is not None
        half = decisions.opening.dtype == torch.bfloat16
        with torch.autocast(decisions.opening.device.type, torch.bfloat16, enabled=half):
            return self.value(decisions.opening).squeeze(1).float()


@dataclass(frozen=True)
class Rollouts:
    """Decisions with their returns and advantages: everything that the loss needs.

    A decision is a step at which two or more positions were masked. One at which only one was is forced: its
    log-probability and its entropy are zero. The paper's sums include it; here, as in its code, the T - 1 others count.
    """

    decisions: Decisions
    returns: Tensor
    """(D,) G_i"""
    advantages: Tensor
    """(D,) A_i, with the baseline at the time of the rollout."""
    old_log_probs: Tensor | None
    """(D,) log P_pol(p_i) at the time of the rollout; None if the rollouts are used only once."""
    report: Tensor
    """(3,) mean reward, edge share, and the share of the passes that were saved."""

    def minibatches(self, count: int, rollouts_per_sentence: int) -> list["Rollouts"]:
        """Split into parts of about the same size; the rollouts of a sentence stay together.

        Sentences are sorted by length, so every `count`-th goes into the same part.
        """
        if count == 1:
            return [self]
        part = self.decisions.rollout // rollouts_per_sentence % count
        parts = []
        for number in range(count):
            chosen = np.flatnonzero(part == number)
            index = to_device(chosen, self.returns.device)
            old = None if self.old_log_probs is None else self.old_log_probs[index]
            decisions = self.decisions.select(chosen)
            parts.append(Rollouts(decisions, self.returns[index], self.advantages[index], old, self.report))
        return parts


@torch.no_grad()
def sample_rollouts(
    model: Model,
    batch: OrderBatch,
    sampler: SamplingOrder,
    networks: ActorCritic,
    reward: Reward,
    rl: RLConfig,
    halving: Halving | None = None,
) -> Rollouts:
    """Fill sentences with the frozen model in orders sampled from P_pol, and compare the return of every decision with
    its baseline. reward: R. halving: see `roll_out`."""
    decisions, outcome = roll_out(model, batch, sampler, halving)
    rewards = step_rewards(reward, outcome, rl.rewards_steps)
    saved, speeds = share_of_passes_saved(outcome), batch.rollout_speeds(model.device)
    if speeds is not None:
        rewards = rewards * saved.pow(rl.passes_exponent * speeds)[:, None]
    returns = discounted_returns(rewards, rl.gamma)
    if speeds is not None:
        # The rollouts of a sentence differ in their number of steps; one that is finished counts with what it earned.
        later = torch.arange(returns.shape[1], device=returns.device) >= outcome.last_steps[:, None]
        returns = returns.where(~later, rewards.sum(1, keepdim=True))
    index = to_device(decisions.rollout, model.device), decisions.step
    advantages = returns
    if rl.has_value:
        advantages = advantages.index_put(index, networks.values(decisions).neg(), accumulate=True)
    if rl.rollouts_per_sentence > 1:
        # For a2c and ppo, too, of the value network's errors G_i - v_i: its error on a sentence's other rollouts is
        # most likely its error on this one.
        advantages = leave_one_out(advantages, rl.rollouts_per_sentence)
    old_log_probs = None
    if rl.reuses_rollouts:
        old_log_probs = networks.log_probs(decisions).of_chosen(decisions)
    edge_share = edge_fills(outcome).sum() / outcome.to_fill.sum()
    report = torch.stack([rewards.sum(1).mean(), edge_share, saved.mean()])
    return Rollouts(decisions, returns[index], advantages[index], old_log_probs, report)


def step_rewards(reward: Reward, outcome: Outcome, each_step: bool) -> Tensor:
    """(N, T) the reward of every step: R at the last one, or at each the change that it made (Mansimov et al. 2019)."""
    if each_step:
        return reward.each_step(outcome)
    rewards = torch.zeros(outcome.ids.shape, device=outcome.ids.device)
    # At the last step, not in the last column: sentences have different lengths, and given positions take no step. The
    # exponent of gamma would be too large otherwise.
    last = (outcome.last_steps[:, None] - 1).clamp(min=0)
    return rewards.scatter(1, last.long(), reward.final(outcome)[:, None])


def share_of_passes_saved(outcome: Outcome) -> Tensor:
    """(N,) (T - n + 1) / T of sentences with T masks that took n steps: 1 for one pass, 1 / T for one by one."""
    masked = outcome.to_fill.sum(1).clamp(min=1)
    return (masked - outcome.last_steps + 1) / masked


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """G_i: (N, T) step rewards to (N, T) discounted sums from each step on.

    With the reward at step T this is gamma^(T-i) R, as printed: the last real decision, i = T - 1, has exponent 1. (The
    paper's code counts from there: gamma^(T-1-i) R.)
    """
    steps = torch.arange(rewards.shape[1], device=rewards.device, dtype=torch.float64)
    # The powers are computed one by one, in float64: dividing a cumulative sum by gamma^i overflows for a small gamma.
    discount = (gamma ** (steps - steps[:, None]).clamp(min=0)).triu()
    return (rewards.double() @ discount.T).float()


def leave_one_out(returns: Tensor, rollouts: int) -> Tensor:
    """Each return minus the mean of the sentence's other rollouts at the same step: (N, T) to (N, T)."""
    grouped = returns.unflatten(0, (-1, rollouts))
    # Without the rollout itself: a baseline that depends on the decision would bias the gradient.
    others = (grouped.sum(1, keepdim=True) - grouped) / (rollouts - 1)
    return (grouped - others).flatten(0, 1)


def printed_entropy(step_entropy: Tensor, lengths: Tensor) -> Tensor:
    """L_ent as printed: 1/T^2 times the sum over a rollout's steps, averaged over rollouts.

    step_entropy: (D,) of every decision. lengths: (D,) T of its sentence. A rollout has T - 1 decisions.
    """
    return (step_entropy / lengths.square()).sum() / (1 / (lengths - 1)).sum()


class OrderLoss(nn.Module):
    """The loss of a batch of rollouts: L_total plus the value network's error. Its gradient teaches the order."""

    def __init__(self, networks: ActorCritic, rl: RLConfig):
        super().__init__()
        self.networks = networks
        self.rl = rl

    def forward(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """The loss to minimize, and (6,) values to report: those of the rollouts, entropy, loss, value loss."""
        rl, decisions = self.rl, rollouts.decisions
        # Dropout is only here, and not where rollouts are sampled: an order is decoded without it.
        log_probs = self.networks.log_probs(decisions, with_dropout=self.training)
        chosen, step_entropy = log_probs.of_chosen(decisions), log_probs.entropies()
        entropy = step_entropy.mean()
        advantages, value_loss = rollouts.advantages, torch.zeros_like(entropy)
        if rl.has_value:
            value_loss = (self.networks.values(decisions) - rollouts.returns).square().mean()
        if rollouts.old_log_probs is None:
            gain = advantages * chosen
        else:
            # After the first update the rollouts are off-policy. PPO's clipped ratio of the new to the old probability
            # has the same gradient as the line above while it is 1.
            ratio = (chosen - rollouts.old_log_probs).exp()
            gain = torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - rl.clip_range, 1 + rl.clip_range))
        # Equation 1 divides the entropy by T twice; the paper's code, to which its values of lambda belong, takes the
        # mean over the steps.
        bonus = entropy if rl.entropy_scale == "mean" else printed_entropy(step_entropy, decisions.target_lengths)
        # The mean is over all decisions of the batch, as in the paper's code; with 1/T in every sentence, the steps of
        # short ones would weigh more. Minus lambda: entropy is rewarded. As printed, L_ent is the entropy itself and
        # would be minimized; the paper's text ("minimize the negative entropy") and its code mean the opposite.
        loss = -gain.mean() + rl.value_coef * value_loss - rl.entropy_coef * bonus
        if decisions.reference is not None:
            log_ratio = (log_probs.order - decisions.reference).masked_fill(log_probs.order == -torch.inf, 0.0)
            loss = loss + rl.kl_coef * (log_probs.order.exp() * log_ratio).sum(1).mean()
        report = torch.stack([entropy.detach(), loss.detach(), value_loss.detach()])
        return loss, torch.cat([rollouts.report, report])

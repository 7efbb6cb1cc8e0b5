"""The loss that teaches an order, read from top to bottom like section 3.3 of the paper (Jiang & Bansal 2021).

A frozen model fills a sentence of T masks in T steps. At step i the policy pi chooses the position a_i to fill; the
finished sentence earns a reward R. With returns G_i = gamma^(T-i) R and a baseline b_i the loss is

    - mean (G_i - b_i) log pi(a_i)   + value_coef * mean (v_i - G_i)^2   - entropy_coef * mean H(pi)

over all steps at which there is a choice: the last one is forced, so its log-probability and entropy are zero. The
paper prints the entropy with a plus sign; its text and code treat it as a bonus. In print it also divides the sum over
the steps by T twice, where its code takes the mean (`entropy_scale`).

Rollouts that are used for more than one optimizer step are off-policy after the first. The loss then uses the ratio r_i
of the new probability of a_i to the one at the time of the rollout, clipped as in PPO, instead of log pi(a_i):
min(r_i A_i, clip(r_i) A_i) with A_i = G_i - b_i, whose gradient at r_i = 1 is the one above.

The algorithms differ in the baseline and in how often they use a rollout:

    a2c   b_i is the value network's estimate v_i                                          (Jiang & Bansal 2021)
    ppo   the same, several epochs on the same rollouts                                    (Mansimov et al. 2019)
    rloo  several rollouts of each sentence, b_i is the mean return of the others          (Kool et al. 2019)

If a2c or ppo use several rollouts per sentence, both baselines are subtracted: the value network's error on the other
rollouts is most likely its error on this one, too.

Nothing here knows about text, batches or files.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.decoding.lengths import make_length
from anyorder.errors import InputError, check_number
from anyorder.models.attention import to_device
from anyorder.training.actor_critic import ActorCritic
from anyorder.training.rewards import Outcome, Reward, check_reward
from anyorder.training.rollout import Decisions, edge_fills

AUTO = "auto"


@dataclass(frozen=True)
class RLConfig:
    """What the order learns from."""

    algorithm: Literal["a2c", "ppo", "rloo"] = "rloo"
    """a2c: a value network as the baseline (the paper). ppo: the same, with several epochs (Mansimov et al. 2019).
    rloo: several rollouts per sentence, each compared with the others."""
    reward: str = "auto"
    """Reward of a finished sentence, by name. auto: bleu for translation, accuracy for tasks with one right answer.
    bleu: sentence BLEU on subwords (the paper), smoothed as in sacreBLEU. bleu-add-one: the same, smoothed as in the
    paper's code. corpus-bleu: the sentence's contribution to the corpus BLEU of its batch, on words. chrf: sentence
    chrF. edit-distance: minus the edit distance to the reference. likelihood: the geometric mean of its tokens'
    probabilities. accuracy: the fraction of correct positions. exact-match: 1 if all are correct, else 0. Or the name
    of a registered reward."""
    each_step: Literal["auto", "yes", "no"] = "auto"
    """Reward every step by how much it changes the reward, not only the finished sentence; auto does so for
    edit-distance and accuracy."""
    sentences: int | None = None
    """Sentences per batch; by default 256 on CUDA and 8 on the CPU (512 and 32 puzzles or texts)."""
    rollouts: int = 0
    """Orders sampled per sentence; 0 means 8 for rloo and 1 for the others (the paper). With several, each is also
    compared with the others."""
    gamma: float = 0.999
    """Discount factor."""
    entropy_coef: float = 0.001
    """Weight of the entropy bonus (the paper's lambda)."""
    entropy_scale: Literal["mean", "printed"] = "mean"
    """mean: the bonus is the mean entropy per step (the paper's code). printed: the sum over a sentence's T steps,
    divided by T squared (the paper's formula), so the same lambda is weaker by a factor of about T."""
    value_coef: float = 1.0
    """Weight of the value network's squared error (a2c, ppo)."""
    clip_range: float = 0.2
    """PPO's clipping range for probability ratios; used only if rollouts are reused (ppo, or several minibatches)."""
    epochs: int = 4
    """Passes over the same rollouts (ppo)."""
    num_minibatches: int = 1
    """Minibatches that a batch's sentences are split into; each is one optimizer step."""
    kl_coef: float = 0.0
    """Weight of the KL divergence from a reference order; 0 for none."""
    reference_order: str = "margin"
    """The reference order; its distribution is the softmax of its scores times the policy's init_scale."""
    split: str = "auto"
    """The store's split to learn from, or several, separated by commas; auto is 'order' if there is one (text that the
    model was not trained on), else 'train'."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often each pair of a corpus is used per epoch, by name (CORPUS, or STORE/CORPUS such as ro-en/news); by
    default 1."""
    min_length: int = 5
    """Learn only from pairs with at least this many subwords per side."""
    max_length: int = 30
    """Learn only from pairs with at most this many subwords per side."""
    length: str = "gold"
    """Target lengths to learn with. gold: those of the references. table:N: one of the N most frequent for the length
    of the source, drawn at random each time that a pair is used."""
    validation_sentences: int | None = None
    """Validation sentences per direction; by default 3,000 on CUDA, 50 on the CPU (puzzles, texts: 1,000 and 200)."""
    validation_length: int = 30
    """Validate only on pairs with at most this many subwords per side; 0 for no limit."""
    validation_split: str = "auto"
    """The store's split to validate on; auto is 'selection' if there is one, else 'dev'; none skips validation."""
    validation_orders: str = "left-to-right,easy-first,margin"
    """Orders to compare the learned order with in validation."""

    def __post_init__(self) -> None:
        for name, largest in (("sentences", 1 << 20), ("epochs", 1000), ("num_minibatches", 1 << 20)):
            check_number(name, getattr(self, name), at_least=1, at_most=largest, config=RLConfig)
        check_number("validation_sentences", self.validation_sentences, at_least=1, config=RLConfig)
        check_number("num_minibatches", self.num_minibatches, at_most=self.sentences, config=RLConfig)
        check_number("rollouts", self.rollouts, at_least=0, at_most=4096, config=RLConfig)
        for name in ("entropy_coef", "value_coef", "kl_coef"):
            check_number(name, getattr(self, name), at_least=0, at_most=1e6, config=RLConfig)
        check_number("validation_length", self.validation_length, at_least=0, config=RLConfig)
        check_number("gamma", self.gamma, above=0, at_most=1, config=RLConfig)
        check_number("clip_range", self.clip_range, above=0, below=1, config=RLConfig)
        check_number("min_length", self.min_length, at_least=2, config=RLConfig)  # one position leaves no choice
        check_number("max_length", self.max_length, at_least=self.min_length, config=RLConfig)
        if self.length.partition(":")[0] not in ("gold", "table"):
            raise InputError(f"{self.length}: expected gold or table:N", "length", RLConfig)
        make_length(self.length)
        if self.reward != AUTO:
            check_reward(self.reward)
        if self.reward == "corpus-bleu" and self.each_step == "yes":
            raise InputError(
                "corpus-bleu: rewards whole sentences only, so each_step cannot be yes", "reward", RLConfig
            )
        if self.algorithm == "rloo" and self.rollouts_per_sentence < 2:
            raise InputError(f"{self.rollouts}: rloo needs at least 2 rollouts", "rollouts", RLConfig)

    @property
    def rollouts_per_sentence(self) -> int:
        return self.rollouts or (8 if self.algorithm == "rloo" else 1)

    @property
    def has_value(self) -> bool:
        return self.algorithm != "rloo"

    @property
    def reuses_rollouts(self) -> bool:
        """Whether a batch of rollouts is used for more than one optimizer step."""
        return self.algorithm == "ppo" or self.num_minibatches > 1

    @property
    def rewards_steps(self) -> bool:
        return self.each_step == "yes" or (self.each_step == "auto" and self.reward in ("edit-distance", "accuracy"))

    def with_reward(self, reward: str) -> "RLConfig":
        """The same config with this reward if none was chosen."""
        return replace(self, reward=reward) if self.reward == AUTO else self


def step_rewards(reward: Reward, outcome: Outcome, each_step: bool) -> Tensor:
    """(N, T) the reward of every step: the whole reward at the last step, or at each step the change it made."""
    if each_step:
        return reward.each_step(outcome)
    rewards = torch.zeros(outcome.ids.shape, device=outcome.ids.device)
    last = (outcome.last_steps[:, None] - 1).clamp(min=0)
    return rewards.scatter(1, last.long(), reward.final(outcome)[:, None])


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """G_i: (N, T) step rewards to (N, T) discounted sums from each step on."""
    steps = torch.arange(rewards.shape[1], device=rewards.device, dtype=torch.float64)
    discount = (gamma ** (steps - steps[:, None]).clamp(min=0)).triu()
    return (rewards.double() @ discount.T).float()


def leave_one_out(returns: Tensor, rollouts: int) -> Tensor:
    """Each return minus the mean of the sentence's other rollouts at the same step: (N, T) to (N, T)."""
    grouped = returns.unflatten(0, (-1, rollouts))
    others = (grouped.sum(1, keepdim=True) - grouped) / (rollouts - 1)
    return (grouped - others).flatten(0, 1)


@dataclass(frozen=True)
class Rollouts:
    """Decisions with their returns and advantages: everything that the loss needs."""

    decisions: Decisions
    returns: Tensor
    """(D,) G_i"""
    advantages: Tensor
    """(D,) G_i - b_i, with the baseline at the time of the rollout."""
    old_log_probs: Tensor | None
    """(D,) log pi(a_i) at the time of the rollout; None if the rollouts are used only once."""
    report: Tensor
    """(2,) mean reward and edge share."""

    def minibatches(self, count: int, rollouts_per_sentence: int) -> list["Rollouts"]:
        """Split into parts of about the same size; the rollouts of a sentence stay together.

        Sentences are sorted by length, so every `count`-th goes into the same part.
        """
        if count == 1:
            return [self]
        part = self.decisions.rollout_on_host // rollouts_per_sentence % count
        return [self._select(np.flatnonzero(part == number)) for number in range(count)]

    def _select(self, numbers: np.ndarray) -> "Rollouts":
        index = to_device(numbers, self.returns.device)
        return Rollouts(
            decisions=self.decisions.select(numbers),
            returns=self.returns[index],
            advantages=self.advantages[index],
            old_log_probs=None if self.old_log_probs is None else self.old_log_probs[index],
            report=self.report,
        )


@torch.no_grad()
def compute_advantages(
    decisions: Decisions, outcome: Outcome, networks: ActorCritic, reward: Reward, rl: RLConfig
) -> Rollouts:
    """Score the outcome, and compare the return of every decision with its baseline."""
    rewards = step_rewards(reward, outcome, rl.rewards_steps)
    returns = discounted_returns(rewards, rl.gamma)
    index = decisions.rollout, decisions.step
    advantages = returns
    if rl.has_value:
        advantages = advantages.index_put(index, networks.values(decisions).neg(), accumulate=True)
    if rl.rollouts_per_sentence > 1:
        advantages = leave_one_out(advantages, rl.rollouts_per_sentence)
    old_log_probs = None
    if rl.reuses_rollouts:
        old_log_probs = networks.log_probs(decisions).gather(1, decisions.chosen[:, None]).squeeze(1)
    edge_share = edge_fills(outcome).sum() / outcome.to_fill.sum()
    report = torch.stack([rewards.sum(1).mean(), edge_share])
    return Rollouts(decisions, returns[index], advantages[index], old_log_probs, report)


def printed_entropy(step_entropy: Tensor, lengths: Tensor) -> Tensor:
    """The entropy term by the paper's formula: 1/T^2 times the sum over a rollout's steps, averaged over rollouts.

    step_entropy: (D,) of every decision. lengths: (D,) T of its sentence. A rollout has T - 1 decisions.
    """
    return (step_entropy / lengths.square()).sum() / (1 / (lengths - 1)).sum()


class OrderLoss(nn.Module):
    """The loss of a batch of rollouts."""

    def __init__(self, networks: ActorCritic, rl: RLConfig):
        super().__init__()
        self.networks = networks
        self.rl = rl

    def forward(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """The loss to minimize, and (5,) values to report: reward, edge share, entropy, loss, value loss."""
        rl, decisions = self.rl, rollouts.decisions
        log_probs = self.networks.log_probs(decisions)
        chosen = log_probs.gather(1, decisions.chosen[:, None]).squeeze(1)
        finite = log_probs.masked_fill(log_probs == -torch.inf, 0.0)
        step_entropy = -(log_probs.exp() * finite).sum(1)
        entropy = step_entropy.mean()
        advantages, value_loss = rollouts.advantages, torch.zeros_like(entropy)
        if rl.has_value:
            value_loss = (self.networks.values(decisions) - rollouts.returns).square().mean()
        if rollouts.old_log_probs is None:
            gain = advantages * chosen
        else:
            ratio = (chosen - rollouts.old_log_probs).exp()
            gain = torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - rl.clip_range, 1 + rl.clip_range))
        bonus = entropy if rl.entropy_scale == "mean" else printed_entropy(step_entropy, decisions.target_lengths)
        loss = -gain.mean() + rl.value_coef * value_loss - rl.entropy_coef * bonus
        if decisions.reference is not None:
            log_ratio = finite - decisions.reference.masked_fill(decisions.reference == -torch.inf, 0.0)
            loss = loss + rl.kl_coef * (log_probs.exp() * log_ratio).sum(1).mean()
        report = torch.stack([entropy.detach(), loss.detach(), value_loss.detach()])
        return loss, torch.cat([rollouts.report, report])

"""RLConfig the generation order by reinforcement learning (paper, section 3.3).

A frozen model fills a sentence of T masks in T steps. At step i a policy network chooses the position to fill; the
finished sentence earns a reward R. With returns G_i = gamma^(T-i) R and a baseline b_i the loss is

    - mean (G_i - b_i) log pi(a_i)   + value * mean (v_i - G_i)^2   - entropy * mean H(pi)

over all steps at which there is a choice: the last one is forced, its log-probability and entropy are nought. (The
paper prints the entropy with a plus; its text and code mean it as a bonus.) The algorithms differ in the baseline and
in how often they use a rollout:

    a2c   b_i is the value network's guess v_i                                             (Jiang & Bansal 2021)
    ppo   the same, several epochs on the same rollouts with clipped probability ratios    (Mansimov et al. 2019)
    rloo  several rollouts of each sentence, b_i is the mean return of the others          (Kool et al. 2019)

Where a2c or ppo make several rollouts of a sentence, the two baselines add up: what the value network misjudged in the
others, it most likely misjudged in this one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.analysis.order_metrics import edge_share
from anyorder.data.packing import pack
from anyorder.data.store import Split, Store, join
from anyorder.decoding.engine import DecodeBatch
from anyorder.errors import InputError, check_number, unknown
from anyorder.models.attention import to_device
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order, make_order, split_orders
from anyorder.orders.learned import LearnedOrder, PolicyConfig, PolicyNetwork, look, save_order
from anyorder.training.batches import BatchRows, Cursor, draw, random_for, shuffled, weights_by_corpus
from anyorder.training.rewards import Outcome, Reward, make_reward
from anyorder.training.rollout import ActorCritic, Decisions, SamplingOrder, edges, roll_out
from anyorder.training.task import Task
from anyorder.training.validation import Dev
from anyorder.translator import direction_languages


@dataclass(frozen=True)
class RLConfig:
    """What the order learns from."""

    algorithm: Literal["a2c", "ppo", "rloo"] = "rloo"
    """a2c: a value network as baseline (the paper). ppo: the same, clipped, several epochs (Mansimov et al. 2019).
    rloo: several rollouts of a sentence, each judged by the others."""
    reward: Literal["bleu", "corpus-bleu", "chrf", "edit-distance", "likelihood"] = "bleu"
    """What a finished sentence earns: smoothed sentence BLEU on subwords (the paper), what it does for the corpus BLEU
    of its batch in words, sentence chrF, minus the edit distance to the reference, or the mean likelihood of its
    tokens."""
    each_step: Literal["auto", "yes", "no"] = "auto"
    """Reward every step by what it changes, not only the finished sentence; auto does so for edit-distance."""
    sentences: int = 256
    """Sentences in a batch."""
    rollouts: int = 0
    """Orders drawn for each of them; 0 is 8 for rloo and 1 for the others (the paper). With several, each is also
    judged by the others."""
    gamma: float = 0.999
    """Discount of rewards that come later."""
    entropy: float = 0.001
    """Weight of the entropy bonus (the paper's lambda): how much drawing different orders is worth."""
    value: float = 1.0
    """Weight of the value network's squared error (a2c, ppo)."""
    clip: float = 0.2
    """How far a probability may move away from the rollout's (ppo)."""
    epochs: int = 4
    """How often the same rollouts are gone through (ppo)."""
    updates: int = 1
    """Steps of the optimizer on the way, each on its share of the batch's sentences."""
    kl: float = 0.0
    """Weight of the divergence from a reference order; 0 leaves it out."""
    reference: str = "margin"
    """That order; its distribution is the softmax of its scores times --policy.init_scale."""
    split: str = "auto"
    """The store's split to learn on, or several, separated by commas; auto is 'order' where there is one (text that the
    model was not trained on), else 'train'."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often a corpus's pairs come in an epoch, by name; 1 where nothing is said."""
    min_length: int = 5
    """Only pairs with at least so many subwords on both sides."""
    max_length: int = 30
    """Only pairs with at most so many subwords on both sides."""
    validation_sentences: int = 3000
    """Sentences of the dev split that validation translates, in each direction."""
    validation_length: int = 30
    """Only those with at most so many subwords on both sides; 0 takes any."""
    validation_orders: str = "left-to-right,easy-first,margin"
    """Orders whose BLEU is shown beside the learned one's."""

    def check(self) -> None:
        for name in ("sentences", "epochs", "updates", "validation_sentences"):
            check_number(f"--learning.{name}", getattr(self, name), at_least=1)
        check_number("--learning.updates", self.updates, at_most=self.sentences)
        for name in ("rollouts", "entropy", "value", "kl", "validation_length"):
            check_number(f"--learning.{name}", getattr(self, name), at_least=0)
        check_number("--learning.gamma", self.gamma, above=0, at_most=1)
        check_number("--learning.clip", self.clip, above=0, below=1)
        check_number("--learning.min_length", self.min_length, at_least=2)  # one position leaves no choice
        check_number("--learning.max_length", self.max_length, at_least=self.min_length)
        if self.reward == "corpus-bleu" and self.each_step == "yes":
            raise InputError("--learning.reward corpus-bleu is for whole sentences, not for --learning.each-step")
        if self.algorithm == "rloo" and self.copies < 2:
            raise InputError("--learning.algorithm rloo needs at least 2 rollouts")

    @property
    def copies(self) -> int:
        return self.rollouts or (8 if self.algorithm == "rloo" else 1)

    @property
    def has_value(self) -> bool:
        return self.algorithm != "rloo"

    @property
    def rewards_steps(self) -> bool:
        return self.each_step == "yes" or (self.each_step == "auto" and self.reward == "edit-distance")


def returns_of(rewards: Tensor, gamma: float) -> Tensor:
    """(N, T) rewards of steps to (N, T) discounted sums from each step on."""
    discount = gamma ** torch.arange(rewards.shape[1], device=rewards.device, dtype=torch.float64)
    return ((rewards * discount).flip(1).cumsum(1).flip(1) / discount).float()


def step_rewards(reward: Reward, outcome: Outcome, each_step: bool) -> Tensor:
    """(N, T): what every step earns; all of it at the end, or at each step what it changed."""
    if each_step:
        return reward.each_step(outcome)
    rewards = torch.zeros(outcome.ids.shape, device=outcome.ids.device)
    return rewards.scatter(1, outcome.lengths[:, None] - 1, reward.final(outcome)[:, None])


def leave_one_out(returns: Tensor, rollouts: int) -> Tensor:
    """Each return less the mean of the sentence's other rollouts at the same step: (N, T) to (N, T)."""
    grouped = returns.unflatten(0, (-1, rollouts))
    others = (grouped.sum(1, keepdim=True) - grouped) / (rollouts - 1)
    return (grouped - others).flatten(0, 1)


@dataclass(frozen=True)
class Rollouts:
    """Decisions and what became of them."""

    made: Decisions
    returns: Tensor
    """(D,)"""
    advantages: Tensor
    """(D,) returns less the baseline at the time."""
    old: Tensor | None
    """(D,) log-probabilities of what was chosen when it was chosen, for ppo."""
    report: Tensor
    """Mean reward and edge share."""

    def shares(self, count: int, copies: int) -> list["Rollouts"]:
        """Dealt out like cards, sentence by sentence: sorted by length, they come out alike."""
        if count == 1:
            return [self]
        dealt = self.made.owners // copies % count
        return [self._only(np.flatnonzero(dealt == number)) for number in range(count)]

    def _only(self, which: np.ndarray) -> "Rollouts":
        at = to_device(which, self.returns.device)
        old = None if self.old is None else self.old[at]
        return Rollouts(self.made.only(which), self.returns[at], self.advantages[at], old, self.report)


def compute_advantages(
    made: Decisions, outcome: Outcome, policy: ActorCritic, reward: Reward, how: RLConfig
) -> Rollouts:
    """What the decisions were worth, and all that the loss needs to know of it."""
    with torch.no_grad():
        rewards = step_rewards(reward, outcome, how.rewards_steps)
        returns = returns_of(rewards, how.gamma)
        at = made.rollout, made.step
        advantages = returns
        if how.has_value:
            advantages = advantages.index_put(at, policy.values(made).neg(), accumulate=True)
        if how.copies > 1:
            advantages = leave_one_out(advantages, how.copies)
        old = None
        if how.algorithm == "ppo":
            old = policy.log_probs(made).gather(1, made.chosen[:, None]).squeeze(1)
        at_edge = edges(outcome.steps, outcome.lengths).sum() / outcome.lengths.sum()
        report = torch.stack([rewards.sum(1).mean(), at_edge])
    return Rollouts(made, returns[at], advantages[at], old, report)


class OrderLoss(nn.Module):
    """The loss of a batch of rollouts."""

    def __init__(self, policy: ActorCritic, learning: RLConfig):
        super().__init__()
        self.policy = policy
        self.learning = learning

    def forward(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """What to descend, and what to report."""
        how, made = self.learning, rollouts.made
        log_probs = self.policy.log_probs(made)
        chosen = log_probs.gather(1, made.chosen[:, None]).squeeze(1)
        possible = log_probs.masked_fill(log_probs == -torch.inf, 0.0)
        entropy = -(log_probs.exp() * possible).sum(1).mean()
        advantages, value_loss = rollouts.advantages, torch.zeros_like(entropy)
        if how.has_value:
            value_loss = (self.policy.values(made) - rollouts.returns).square().mean()
        if rollouts.old is None:
            gain = advantages * chosen
        else:
            ratio = (chosen - rollouts.old).exp()
            gain = torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - how.clip, 1 + how.clip))
        loss = -gain.mean() + how.value * value_loss - how.entropy * entropy
        if made.reference is not None:
            away = possible - made.reference.masked_fill(made.reference == -torch.inf, 0.0)
            loss = loss + how.kl * (log_probs.exp() * away).sum(1).mean()
        own = torch.stack([entropy.detach(), loss.detach(), value_loss.detach()])
        return loss, torch.cat([rollouts.report, own])


@dataclass(frozen=True)
class OrderBatch:
    """Sentences to roll out, on the host."""

    work: DecodeBatch
    references: np.ndarray
    """(sentences, R) ids, padded."""
    reference_lengths: np.ndarray


class OrderTask(Task[OrderBatch]):
    """Learn an order for a frozen model."""

    reports = ("reward", "edge share", "entropy", "loss", "value loss")
    shown = ("reward", "entropy", "edge share")
    unit = "rollouts"
    compiles = False
    learner: ActorCritic

    def __init__(
        self,
        store: Store,
        model: TranslationModel,
        directions: Sequence[str],
        shape: PolicyConfig,
        learning: RLConfig,
        seed: int,
        compile: bool = False,
    ):
        learning.check()
        shape.check()
        if model.vocabulary.fingerprint != store.vocabulary.fingerprint:
            raise InputError(f"wrong vocabulary: {store.path} was not prepared with this model's tokenizer.json")
        room = model.config.transformer.max_positions - 2
        if learning.max_length > room:
            raise InputError(f"--learning.max-length {learning.max_length}: the model has room for {room} subwords")
        self.model = model.eval().requires_grad_(False)
        self.learning = learning
        self.epochs = learning.epochs if learning.algorithm == "ppo" else 1
        torch.manual_seed(seed)
        self.learner = ActorCritic(PolicyNetwork(shape, model.config.transformer.hidden_size), learning.has_value)
        self.module = OrderLoss(self.learner, learning)
        self._directions = list(dict.fromkeys(directions))
        self._seed = seed
        self._reward = make_reward(learning.reward, model.vocabulary)
        self._reference = self._one_for_all(learning.reference) if learning.kl else None
        self._look = torch.compile(look, dynamic=True) if compile else look
        name = learning.split if learning.split != "auto" else "order" if "order" in store else "train"
        self._split = join([store.split(part.strip()) for part in name.split(",")])
        names = learning.validation_orders
        self._heuristics = [make_order(one) for one in split_orders(names)] if names.strip() else []
        self._told = False
        """The heuristics' scores are known."""
        self._pairs = self._eligible(self._split)
        if len(self._pairs) == 0:
            window = f"{learning.min_length} to {learning.max_length}"
            raise InputError(f"{store.path}: no pair of the split '{name}' has {window} subwords on both sides")
        store.check_ids(self._split, len(model.vocabulary))
        assert self._split.corpus is not None
        own = self._split.corpus[self._pairs[:, 1]]
        self._weights = weights_by_corpus(self._split.corpora, own, learning.weights)
        surely = len(self._pairs) if self._weights is None else int(np.floor(self._weights).sum())
        if surely < learning.updates > 1:
            few = f"an epoch of the split '{name}' may have no more than {surely} pairs"
            raise InputError(f"--learning.updates {learning.updates}: {few} to share")
        self._dev = None
        if "dev" in store:
            self._dev = Dev(store, learning.validation_sentences, learning.validation_length, room)
            for direction in self._directions:
                self._dev.check(*direction_languages(model, direction), "--learning.validation-length")

    def _one_for_all(self, name: str) -> Order:
        """That order, which must be the same in all directions."""
        bound = [make_order(name).bind(self.model, direction) for direction in self._directions]
        if len({order.identity for order in bound}) > 1:
            raise InputError(f"--learning.reference {name}: is not one order for {', '.join(self._directions)}")
        return bound[0]

    def _eligible(self, split: Split) -> np.ndarray:
        """(pairs, 2): number of the direction and of the sentence, within the length window."""
        how = self.learning
        found = []
        for number, direction in enumerate(self._directions):
            source, target = (split.sides[language] for language in self._languages_of(split, direction))
            shorter = np.minimum(source.lengths, target.lengths)
            longer = np.maximum(source.lengths, target.lengths)
            rows = np.flatnonzero((shorter >= how.min_length) & (longer <= how.max_length))
            found.append(np.stack([np.full_like(rows, number), rows], 1))
        return np.concatenate(found)

    def _languages_of(self, split: Split, direction: str) -> tuple[str, str]:
        languages = direction_languages(self.model, direction)
        for language in languages:
            if language not in split.sides:
                raise unknown("language of the store", language, list(split.sides))
        return languages

    def batches(self, cursor: Cursor, first: int, rank: int, world: int) -> Iterator[tuple[OrderBatch, Cursor]]:
        size = min(self.learning.sentences, len(self._pairs))

        def epoch_rows(epoch: int) -> np.ndarray:
            rows = shuffled(np.arange(len(self._pairs)), self._weights, random_for(self._seed, "epoch", epoch))
            # A batch of a few left over sentences would make a step as large as a full one's, and far noisier.
            return rows[: max(size, len(rows) // size * size)]

        for one, behind in draw(cursor, epoch_rows, np.ones_like, (size, size), self._seed, first, rank, world):
            yield self._build(one), behind

    def _build(self, drawn: BatchRows) -> OrderBatch:
        number, row = self._pairs[drawn.rows].T
        languages = np.array([self.model.config.direction(direction) for direction in self._directions])
        used = np.unique(languages)  # a model may know more languages than the store holds
        sides = [self._split.sides[self.model.config.languages[language]] for language in used]
        target_lengths = np.zeros(len(row), np.int64)
        for language, side in zip(used, sides, strict=True):
            own = languages[number, 1] == language
            target_lengths[own] = side.lengths[row[own]]
        by_length = np.argsort(-target_lengths, kind="stable")
        number, row, target_lengths = number[by_length], row[by_length], target_lengths[by_length]
        source, target = languages[number].T
        eos = self.model.vocabulary.eos
        references = pack(sides, np.searchsorted(used, target), row, target, eos)
        padded = np.full((len(row), int(target_lengths.max())), eos, np.int64)
        padded[np.arange(padded.shape[1]) < target_lengths[:, None]] = references.tokens[references.inner]
        keys = drawn.random.integers(-(1 << 63), (1 << 63) - 1, len(row) * self.learning.copies)
        sources = pack(sides, np.searchsorted(used, source), row, source, eos)
        work = DecodeBatch(sources, target_lengths, target, keys, self.learning.copies)
        return OrderBatch(work, padded, target_lengths)

    def gather(self, batch: OrderBatch, device: torch.device) -> list[dict[str, Any]]:
        how, policy = self.learning, self.learner
        order = LearnedOrder(policy.scorer, looking=self._look)
        sampler = SamplingOrder(order, how.has_value, self._reference, policy.scorer.shape.init_scale)
        made, outcome = roll_out(self._frozen(device), batch.work, sampler, batch.references, batch.reference_lengths)
        judged = compute_advantages(made, outcome, policy, self._reward, how)
        return [{"rollouts": share} for share in judged.shares(how.updates, how.copies)]

    def _frozen(self, device: torch.device) -> TranslationModel:
        if self.model.device != device:
            self.model.to(device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
            if isinstance(self._reference, LearnedOrder):
                self._reference.scorer.to(device)
        return self.model

    def cost(self, batch: OrderBatch) -> tuple[int, float]:
        lengths = batch.work.lengths.astype(np.float64)
        copies = batch.work.copies
        run = copies * float((lengths * (lengths + 2)).sum()) + len(batch.work.sources.tokens)
        masked = copies * float((lengths * (lengths + 1)).sum()) / 2
        predicted = copies * float(lengths.sum()) if self.learner.scorer.shape.needs == "hidden" else masked
        return len(lengths) * copies, 2 * self.model.forward_flops(run, masked, predicted)

    def validate(self, average: nn.Module) -> dict[str, float]:
        """BLEU and edge share of the learned order, positions chosen greedily; and once the heuristics' BLEU."""
        if self._dev is None:
            return {}
        assert isinstance(average, ActorCritic)
        model = self._frozen(next(average.parameters()).device)
        scores: dict[str, float] = {}
        for direction in self._directions:
            languages = direction_languages(model, direction)
            bleu, filled = self._dev.translate(model, LearnedOrder(average.scorer), *languages)
            scores |= {f"bleu {direction}": bleu, f"edge share {direction}": edge_share([one.steps for one in filled])}
            if not self._told:
                for order in self._heuristics:
                    scores[f"{order.name} {direction}"] = self._dev.translate(model, order, *languages)[0]
        self._told = True
        return scores

    def selection_metric(self, scores: dict[str, float]) -> float:
        own = [score for name, score in scores.items() if name.startswith("bleu ")]
        return sum(own) / len(own)

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, ActorCritic)
        about = {"learning": asdict(self.learning), "seed": self._seed}
        save_order(average.scorer, out / "order", self.model, self._directions, **about)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "order",
            "vocabulary": self.model.vocabulary.fingerprint,
            "pairs": len(self._pairs),
            "directions": self._directions,
            "policy": asdict(self.learner.scorer.shape),
            "learning": asdict(self.learning),
        }

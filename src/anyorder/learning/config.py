"""What an order is learned from, and by which algorithm; `algorithm.py` has the formulas that use these numbers."""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from anyorder.decoding.config import make_length
from anyorder.errors import InputError, check_number
from anyorder.learning.rewards import check_reward
from anyorder.training.config import TrainConfig, choose_by_device

FEWEST = 4
"""Where time is short, a batch has at least so many sentences, of each so many rollouts, and a validation twice as
many sentences."""
STEP_SHARE, VALIDATION_SHARE = 1 / 20, 1 / 10
"""Steps and validations on the CPU should take no more of a run's time than this."""
LEARN_ORDER_RUN = TrainConfig(
    learning_rate=1e-3, warmup=20, weight_decay=0.0, ema=0.98, log_every=10, validate_every=100, save_every=100
)
"""How long and how fast to learn an order by default, suited to a small network; it does not say for how long."""


@dataclass(frozen=True)
class RLConfig:
    """What the order learns from."""

    algorithm: Literal["a2c", "ppo", "rloo"] = "rloo"
    """a2c: a value network as the baseline (the paper). ppo: the same, with several epochs (Mansimov et al. 2019).
    rloo: several rollouts per sentence, each compared with the others."""
    reward: str = "auto"
    """Reward of a finished sentence, by name. auto: bleu for translation, accuracy for tasks with one right answer.
    bleu: sentence BLEU on subwords (the paper), smoothed as in sacreBLEU. bleu-paper: the same as in the paper's code:
    lower-cased, every count plus one, 0 without a common subword. bleu-add-one: every count plus one, nothing else.
    corpus-bleu: the sentence's contribution to the corpus BLEU of its batch, on words. chrf: sentence chrF.
    edit-distance: minus the edit distance to the reference. likelihood: the geometric mean of its tokens'
    probabilities. accuracy: the fraction of correct positions. exact-match: 1 if all are correct, else 0. Or the name
    of a registered reward."""
    each_step: Literal["auto", "yes", "no"] = "auto"
    """Reward every step by how much it changes the reward, not only the finished sentence; auto does so for
    edit-distance and accuracy."""
    sentences: int | None = None
    """Sentences per batch; by default 256 on CUDA and 8 on the CPU (512 and 32 puzzles or texts), or fewer on the CPU
    if a step would take too large a share of the minutes."""
    rollouts: int = 0
    """Orders sampled per sentence; 0 means 8 for rloo (4 on the CPU if time is short) and 1 for the others (the paper).
    With several, each is also compared with the others."""
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
    min_length: int | None = None
    """Learn only from pairs with at least this many subwords per side, by default 5; from texts with at least this many
    tokens, by default 2."""
    max_length: int | None = None
    """Learn only from pairs with at most this many subwords per side, by default 30; from texts with at most this many
    tokens, by default as many as the model has room for."""
    passes_exponent: float = 4.0
    """If the policy's count is bernoulli: the reward is multiplied by the share of forward passes saved, raised to this
    exponent times the speed, which is drawn anew for every sentence. The larger, the fewer passes."""
    length: str = "gold"
    """Target lengths to learn with. gold: those of the references. table:N: one of the N most frequent for the length
    of the source, drawn at random each time that a pair is used."""
    validation_sentences: int | None = None
    """Validation sentences per direction; by default 3,000 on CUDA and 50 on the CPU (1,000 and 200 puzzles or texts),
    or fewer on the CPU if time is short."""
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
        for name in ("entropy_coef", "value_coef", "kl_coef", "passes_exponent"):
            check_number(name, getattr(self, name), at_least=0, at_most=1e6, config=RLConfig)
        check_number("validation_length", self.validation_length, at_least=0, config=RLConfig)
        check_number("gamma", self.gamma, above=0, at_most=1, config=RLConfig)
        check_number("clip_range", self.clip_range, above=0, below=1, config=RLConfig)
        check_number("min_length", self.min_length, at_least=2, config=RLConfig)  # one position leaves no choice
        check_number("max_length", self.max_length, at_least=self.min_length or 2, config=RLConfig)
        if self.length.partition(":")[0] not in ("gold", "table"):
            raise InputError(f"{self.length}: expected gold or table:N", "length", RLConfig)
        make_length(self.length)
        if self.reward != "auto":
            check_reward(self.reward)
        if self.reward == "corpus-bleu" and self.each_step == "yes":
            found = "corpus-bleu: rewards whole sentences only, so each_step cannot be yes"
            raise InputError(found, "reward", RLConfig)
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
        return replace(self, reward=reward) if self.reward == "auto" else self

    def with_sizes(
        self, device: torch.device, sentences: tuple[int, int] = (256, 8), validation: tuple[int, int] = (3000, 50)
    ) -> "RLConfig":
        """The same config with sizes where none were set: the first one on CUDA, the second on the CPU."""
        batch = choose_by_device(self.sentences, device, *sentences)
        validated = choose_by_device(self.validation_sentences, device, *validation)
        return replace(self, sentences=max(self.num_minibatches, batch), validation_sentences=validated)

    def with_lengths(self, shortest: int, longest: int) -> "RLConfig":
        """The same config with limits of the length where none were set."""
        return replace(
            self,
            min_length=shortest if self.min_length is None else self.min_length,
            max_length=longest if self.max_length is None else self.max_length,
        )

    def for_time(self, chosen: "RLConfig", seconds: float, run_seconds: float) -> "RLConfig":
        """The same config with smaller sizes, where none were chosen, if steps or validations would take too long.

        chosen: the user's config. seconds: to fill one sentence. run_seconds: those of the whole run.
        """
        assert self.sentences is not None
        assert self.validation_sentences is not None
        sentences, rollouts, validated = self.sentences, self.rollouts_per_sentence, self.validation_sentences
        step, validation = STEP_SHARE * run_seconds, VALIDATION_SHARE * run_seconds
        if chosen.sentences is None:
            sentences = _halved(sentences, max(FEWEST, self.num_minibatches), step / (rollouts * seconds))
        if not chosen.rollouts:
            rollouts = _halved(rollouts, FEWEST, step / (sentences * seconds))
        if chosen.validation_sentences is None:
            validated = _halved(validated, 2 * FEWEST, validation / seconds)
        shrunk = rollouts < self.rollouts_per_sentence
        return replace(
            self,
            sentences=sentences,
            rollouts=rollouts if shrunk else self.rollouts,
            validation_sentences=validated,
        )


def _halved(size: int, least: int, most: float) -> int:
    """The size, halved until it is at most so much, but never below the least."""
    while size // 2 >= least and size > most:
        size //= 2
    return size

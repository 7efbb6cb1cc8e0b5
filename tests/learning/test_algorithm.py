"""Learning an order: the gradient against all orders of a short sentence, the algorithms by hand, one right order."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.analysis.order_metrics import edge_share
from anyorder.data.packing import pack_sentences
from anyorder.data.store import Store
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.state import DecodeBatch
from anyorder.learning.algorithm import (
    ActorCritic,
    OrderLoss,
    Rollouts,
    discounted_returns,
    leave_one_out,
    printed_entropy,
    sample_rollouts,
    step_rewards,
)
from anyorder.learning.config import RLConfig
from anyorder.learning.rewards import Outcome, Reward, make_reward
from anyorder.learning.rollout import OrderBatch, SamplingOrder, edge_fills, roll_out
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import make_order
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyConfig, PolicyInputs, PolicyNetwork
from anyorder.training.run_folder import Cursor
from tests.conftest import tiny
from tests.learning.objectives import translation_order_objective

SOURCE = np.array([20, 31, 42, 17])
LENGTH = 3


def networks_for(
    model: TranslationModel, kind: str = "hidden", with_value: bool = False, **config: object
) -> ActorCritic:
    torch.manual_seed(11)
    policy = PolicyNetwork(PolicyConfig(kind, **config), model.config.transformer.hidden_size)  # type: ignore[arg-type]
    networks = ActorCritic(policy, with_value)
    torch.nn.init.normal_(policy.linear if kind == "linear" else policy.out, std=0.3)
    return networks


def sentences(model: TranslationModel, count: int, copies: int, seed: int = 0) -> DecodeBatch:
    keys = np.random.default_rng(seed).integers(-(1 << 62), 1 << 62, count * copies)
    sources = pack_sentences([SOURCE] * count, np.zeros(count, np.int64), 1)
    return DecodeBatch(model.pack_targets(sources, np.full(count, LENGTH), np.ones(count, np.int64)), keys, copies)


REFERENCE = np.array([[33, 8, 57]])


class Distinct(Reward):
    """Every order of the short sentence earns something else."""

    def final(self, outcome: Outcome) -> Tensor:
        return ((outcome.steps[:, :LENGTH].float() * torch.tensor([0.1, 0.7, 0.3])) ** 2).sum(1)


def exact_gradient(
    model: TranslationModel, networks: ActorCritic, reward: Reward, gamma: float
) -> tuple[list[Tensor], float]:
    """Of the expected loss, by walking through all six orders; and the expected reward. Nothing of the engine is used."""
    vocabulary = model.vocabulary
    start = sentences(model, 1, 1).canvases

    def look(tokens: list[int]) -> tuple[list[int], Tensor]:
        masked = [i for i in range(LENGTH) if tokens[i] == vocabulary.mask]
        row = torch.tensor([vocabulary.eos, *tokens, vocabulary.eos])
        at = QueryPositions(torch.tensor(masked) + 1, Segments.of(np.array([len(masked)])))
        with torch.no_grad():
            return masked, model.context(start).hidden(row, at)

    loss, expected = torch.zeros(()), 0.0
    for order in itertools.permutations(range(LENGTH)):
        tokens = [vocabulary.mask] * LENGTH
        chances = []
        for position in order:
            masked, hidden = look(tokens)
            scores = networks.policy(PolicyInputs(hidden, None), Segments.of(np.array([len(masked)]))).order
            chances.append(scores.log_softmax(0)[masked.index(position)])
            logits = model.logits(hidden[masked.index(position)][None])[0]
            tokens[position] = int(logits[vocabulary.first_word :].argmax()) + vocabulary.first_word
        steps = torch.tensor([[order.index(i) + 1 for i in range(LENGTH)]])
        outcome = Outcome(
            torch.tensor([tokens]), torch.tensor([LENGTH]), torch.tensor(REFERENCE), torch.tensor([LENGTH]), steps,
            torch.zeros(1, LENGTH), torch.ones(1, dtype=torch.int64),
        )  # fmt: skip
        earned = float(reward.final(outcome))
        chance = torch.stack(chances).sum().exp().detach()
        expected += float(chance) * earned
        for i, log_chance in enumerate(chances[:-1], 1):  # the last step is forced
            loss = loss - chance * gamma ** (LENGTH - i) * earned * log_chance / (LENGTH - 1)
    return list(torch.autograd.grad(loss, list(networks.policy.parameters()))), expected


@pytest.mark.parametrize(("algorithm", "copies"), [("a2c", 1), ("a2c", 5), ("ppo", 1), ("rloo", 5)])
def test_the_estimated_gradient_is_the_exact_one(vocabulary: Vocabulary, algorithm: str, copies: int) -> None:
    model = tiny(vocabulary, hidden_size=64, num_layers=2)
    batches, size = 40, 250
    rl = RLConfig(algorithm=algorithm, rollouts=copies, gamma=0.9, entropy_coef=0.0, value_coef=0.0)  # type: ignore[arg-type]
    networks = networks_for(model, with_value=rl.has_value)
    exact, expected = exact_gradient(model, networks, Distinct(), rl.gamma)
    loss = OrderLoss(networks, rl)
    parameters = list(networks.policy.parameters())
    estimates, earned = [], []
    for number in range(batches):
        sampler = SamplingOrder(LearnedOrder(networks.policy), rl.has_value)
        count = size // copies
        references = np.repeat(REFERENCE, count, 0)
        batch = OrderBatch(sentences(model, count, copies, number), references, np.full(count, LENGTH))
        rollouts = sample_rollouts(model, batch, sampler, networks, Distinct(), rl)
        estimates.append([g.flatten() for g in torch.autograd.grad(loss(rollouts)[0], parameters)])
        earned.append(float(rollouts.report[0]))
    assert abs(np.mean(earned) - expected) < 4 * np.std(earned) / batches**0.5
    estimated = torch.stack([torch.cat(one) for one in estimates])
    true = torch.cat([g.flatten() for g in exact])
    error = estimated.std(0) / batches**0.5
    assert true.norm() > 5 * error.norm()  # the estimate is good enough for the comparison to mean something
    # Where a unit is on (or off) at all positions alike, its bias has no say: nothing but rounding to compare.
    matters = error > 0.01 * error.max()
    z = ((estimated.mean(0) - true) / error)[matters]
    assert z.square().mean() < 2.5  # about 1 if they agree; gradients of one network go up and down together
    assert z.abs().max() < 6
    wrong_sign = ((estimated.mean(0) + true) / error)[matters]
    assert wrong_sign.square().mean() > 25


def one_batch(
    model: TranslationModel, networks: ActorCritic, rl: RLConfig, count: int = 3
) -> tuple[OrderLoss, Rollouts]:
    sampler = SamplingOrder(
        LearnedOrder(networks.policy), rl.has_value, make_order(rl.reference_order) if rl.kl_coef else None
    )
    references = np.repeat(REFERENCE, count, 0)
    batch = OrderBatch(sentences(model, count, rl.rollouts_per_sentence), references, np.full(count, LENGTH))
    return OrderLoss(networks, rl), sample_rollouts(model, batch, sampler, networks, Distinct(), rl)


def test_the_entropy_term_raises_entropy(model: TranslationModel) -> None:
    rl = RLConfig(algorithm="rloo", rollouts=4, entropy_coef=1.0)
    networks = networks_for(model)
    loss, rollouts = one_batch(model, networks, rl)
    rollouts.advantages.zero_()
    optimizer = torch.optim.SGD(networks.parameters(), 0.05)
    entropies = []
    for _ in range(5):
        value, report = loss(rollouts)
        entropies.append(float(report[3]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert entropies == sorted(entropies)
    assert entropies[-1] > entropies[0] + 1e-4


def test_the_entropy_term_as_printed() -> None:
    """Two rollouts of 3 and 2 positions: step entropies .8, .6 and a forced step; .4 and a forced step."""
    step_entropy, lengths = torch.tensor([0.8, 0.4, 0.6]), torch.tensor([3, 2, 3])
    expected = ((0.8 + 0.6) / 3**2 + 0.4 / 2**2) / 2
    assert float(printed_entropy(step_entropy, lengths)) == pytest.approx(expected)


def test_the_entropy_term_is_a_choice(vocabulary: Vocabulary) -> None:
    """All sentences have three positions, so the printed term is the mean over the decisions times 2 / 9."""
    model = tiny(vocabulary)
    networks, terms = networks_for(model), {}
    for coef, scale in ((0.0, "mean"), (1.0, "mean"), (1.0, "printed")):
        rl = RLConfig(rollouts=4, entropy_coef=coef, entropy_scale=scale)  # type: ignore[arg-type]
        loss, rollouts = one_batch(model, networks, rl)
        assert rollouts.decisions.target_lengths.tolist() == [LENGTH] * 24
        terms[coef, scale], report = (value.detach() for value in loss(rollouts))
    mean, printed = (float(terms[0.0, "mean"] - terms[1.0, scale]) for scale in ("mean", "printed"))
    assert mean == pytest.approx(float(report[3]), abs=1e-6)  # what is reported stays the mean entropy of a step
    assert printed == pytest.approx(mean * 2 / LENGTH**2, abs=1e-6)


def test_returns_and_advantages_by_hand(model: TranslationModel) -> None:
    rewards = torch.tensor([[0.0, 0.0, 0.8], [0.0, 0.4, 0.0]])  # of 3 and 2 steps
    returns = discounted_returns(rewards, 0.5)
    assert torch.allclose(returns, torch.tensor([[0.2, 0.4, 0.8], [0.2, 0.4, 0.0]]))
    assert torch.allclose(discounted_returns(torch.tensor([[1.0, -1.0, 2.0]]), 0.5), torch.tensor([[1.0, 0.0, 2.0]]))
    four = torch.tensor([[1.0], [2.0], [6.0], [5.0], [5.0], [2.0]])
    assert torch.allclose(leave_one_out(four, 3), torch.tensor([[-3.0], [-1.5], [4.5], [1.5], [1.5], [-3.0]]))

    rl = RLConfig(algorithm="a2c", gamma=0.5, entropy_coef=0.0, value_coef=1.0)
    networks = networks_for(model, with_value=True)
    loss, rollouts = one_batch(model, networks, rl, count=4)
    decisions = rollouts.decisions
    assert decisions.step.tolist() == [0] * 4 + [1] * 4  # two decisions a rollout: the third is forced
    assert decisions.rollout.tolist() == [0, 1, 2, 3] * 2
    assert decisions.segments.lengths.tolist() == [3] * 4 + [2] * 4
    earned = rollouts.returns[4:] / 0.5
    assert torch.allclose(rollouts.returns[:4], earned * 0.25)
    values, log_probs = networks.values(decisions), networks.log_probs(decisions).order
    chosen = log_probs[torch.arange(8), decisions.chosen]
    by_hand = -((rollouts.returns - values.detach()) * chosen).mean() + (values - rollouts.returns).square().mean()
    assert torch.allclose(loss(rollouts)[0], by_hand)

    # With two rollouts a sentence, what the value network misjudged in one is taken off the other.
    _, pairs = one_batch(model, networks, replace(rl, rollouts=2), count=2)
    missed = pairs.returns - networks.values(pairs.decisions)
    assert torch.allclose(pairs.advantages, missed - missed.view(2, 2, 2).flip(2).flatten(), atol=1e-7)


def test_ppo_begins_like_a2c_and_stops_at_the_clip(model: TranslationModel) -> None:
    networks = networks_for(model, with_value=True)
    grads = []
    for algorithm in ("a2c", "ppo"):
        loss, rollouts = one_batch(model, networks, RLConfig(algorithm=algorithm, rollouts=4, entropy_coef=0.01))  # type: ignore[arg-type]
        grads.append(torch.autograd.grad(loss(rollouts)[0], list(networks.policy.parameters())))
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-7)
    loss, rollouts = one_batch(model, networks, RLConfig(algorithm="ppo", rollouts=4, entropy_coef=0.0, value_coef=0.0))
    # Every probability has already moved beyond the clip in the direction that its advantage wants.
    better = rollouts.advantages > 0
    rollouts.old_log_probs.add_(torch.where(better, -0.5, 0.5))
    still = torch.autograd.grad(loss(rollouts)[0], list(networks.policy.parameters()))
    assert all((g == 0).all() for g in still)


def surrogate(networks: ActorCritic, rollouts: Rollouts, clip: float) -> list[Tensor]:
    """The policy's gradient, decision by decision: none beyond the clip, else advantage times ratio times d log pi."""
    chosen = networks.log_probs(rollouts.decisions).of_chosen(rollouts.decisions)
    assert rollouts.old_log_probs is not None
    total = torch.zeros(())
    for now, before, advantage in zip(chosen, rollouts.old_log_probs, rollouts.advantages, strict=True):
        ratio = (now - before).exp().item()
        if (ratio <= 1 + clip) if advantage > 0 else (ratio >= 1 - clip):
            total = total - advantage * ratio * now / len(chosen)
    return list(torch.autograd.grad(total, list(networks.policy.parameters())))


@pytest.mark.parametrize("algorithm", ["a2c", "rloo", "ppo"])
def test_reused_rollouts_have_clipped_ratios(model: TranslationModel, algorithm: str) -> None:
    """Two minibatches: the second meets a policy that the first one has moved away from the rollouts'."""
    rl = RLConfig(algorithm=algorithm, rollouts=4, num_minibatches=2, entropy_coef=0.0, value_coef=0.0, sentences=4)  # type: ignore[arg-type]
    networks = networks_for(model, with_value=rl.has_value)
    parameters = list(networks.policy.parameters())
    loss, rollouts = one_batch(model, networks, rl, count=6)
    first, second = rollouts.minibatches(2, 4)
    log_probs = networks.log_probs(first.decisions).of_chosen(first.decisions)
    plain = torch.autograd.grad(-(first.advantages * log_probs).mean(), parameters)
    for found, expected in zip(torch.autograd.grad(loss(first)[0], parameters), plain, strict=True):
        assert torch.allclose(found, expected, atol=1e-6)  # the ratio is 1: the gradient of the policy itself
    norm = torch.cat([gradient.flatten() for gradient in plain]).norm()
    with torch.no_grad():
        for parameter, gradient in zip(parameters, plain, strict=True):
            parameter -= 0.6 * gradient / norm
    now = networks.log_probs(second.decisions).of_chosen(second.decisions)
    beyond = ((now - second.old_log_probs).exp() - 1).abs() > rl.clip_range
    assert 0 < beyond.sum() < len(beyond)
    found, exact, without_ratio = (
        torch.cat([gradient.flatten() for gradient in gradients])
        for gradients in (
            torch.autograd.grad(loss(second)[0], parameters),
            surrogate(networks, second, rl.clip_range),
            torch.autograd.grad(-(second.advantages * now).mean(), parameters),
        )
    )
    assert torch.allclose(found, exact, atol=1e-6)
    assert (found - without_ratio).norm() > 0.1 * without_ratio.norm()


@pytest.mark.parametrize("algorithm", ["a2c", "rloo"])
def test_one_update_a_batch_has_no_ratio(model: TranslationModel, algorithm: str) -> None:
    """Bit by bit the plain policy gradient, whatever the clip."""
    rl = RLConfig(algorithm=algorithm, rollouts=4, entropy_coef=0.01, clip_range=0.01)  # type: ignore[arg-type]
    networks = networks_for(model, with_value=rl.has_value)
    loss, rollouts = one_batch(model, networks, rl)
    assert rollouts.old_log_probs is None
    log_probs = networks.log_probs(rollouts.decisions).order
    chosen = log_probs.gather(1, rollouts.decisions.chosen[:, None]).squeeze(1)
    entropy = -(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(1).mean()
    value_loss = torch.zeros(())
    if rl.has_value:
        value_loss = (networks.values(rollouts.decisions) - rollouts.returns).square().mean()
    by_hand = -(rollouts.advantages * chosen).mean() + value_loss - 0.01 * entropy
    parameters = list(networks.parameters())
    for a, b in zip(*(torch.autograd.grad(value, parameters) for value in (loss(rollouts)[0], by_hand)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["hidden", "features", "confidence"])
def test_dropout_is_only_in_the_loss(model: TranslationModel, kind: str) -> None:
    """Rollouts, advantages and decoding run without it; in the loss it depends on the seed alone."""
    rl = RLConfig(algorithm="ppo", entropy_coef=0.01)
    plain, dropping = networks_for(model, kind, True), networks_for(model, kind, True, dropout=0.5)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), dropping.parameters(), strict=True))
    (exact, expected), (loss, rollouts) = (one_batch(model, networks, rl) for networks in (plain, dropping))
    for name in ("returns", "advantages", "old_log_probs"):
        assert torch.equal(getattr(rollouts, name), getattr(expected, name))

    def gradient(loss: OrderLoss, seed: int) -> Tensor:
        torch.manual_seed(seed)
        parameters = list(loss.networks.policy.parameters())
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss(rollouts)[0], parameters)])

    assert torch.equal(gradient(loss, 1), gradient(loss, 1))
    assert not torch.equal(gradient(loss, 1), gradient(loss, 2))
    assert torch.equal(gradient(loss.eval(), 1), gradient(exact, 2))


def test_dropout_keeps_the_expected_scores(model: TranslationModel) -> None:
    """What is left is scaled up: the mean score over many masks is that without dropout."""
    networks = networks_for(model, "features", dropout=0.4)
    decisions = one_batch(model, networks, RLConfig())[1].decisions
    torch.manual_seed(0)
    with torch.no_grad():
        plain = networks.policy(decisions.inputs, decisions.segments).order
        dropped = torch.stack(
            [networks.policy(decisions.inputs, decisions.segments, with_dropout=True).order for _ in range(2000)]
        )
    error = dropped.std(0) / 2000**0.5
    assert ((dropped.mean(0) - plain).abs() < 5 * error).all()
    assert (error > 0).all()


def test_divergence_from_the_reference_order(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    same = ActorCritic(PolicyNetwork(PolicyConfig("features", start="margin", init_scale=1.0), 64), with_value=False)
    terms = []
    for networks in (same, networks_for(model, "features", start="margin", init_scale=1.0)):
        for kl in (1.0, 0.0):
            rl = RLConfig(rollouts=4, entropy_coef=0.0, kl_coef=kl, reference_order="margin")
            loss, rollouts = one_batch(model, networks, rl)
            terms.append(float(loss(rollouts)[0].detach()))
    assert terms[0] == pytest.approx(terms[1], abs=1e-6)  # the start is the reference
    assert terms[2] > terms[3] + 1e-3


@pytest.mark.parametrize("kind", ["hidden", "features", "confidence", "linear"])
def test_copies_of_a_sentence_are_rollouts_of_their_own(model: TranslationModel, kind: str) -> None:
    """The first step is shared by the copies, sources are computed once; each copy is what it would be alone."""
    networks = networks_for(model, kind, with_value=True)
    random = np.random.default_rng(1)
    sources = [random.integers(10, 100, n) for n in (4, 9, 2)]
    lengths, languages = np.array([9, 5, 2]), np.array([1, 0, 1])
    keys = random.integers(-(1 << 62), 1 << 62, 12)
    packed = pack_sentences(sources, 1 - languages, model.vocabulary.eos)
    references, zeros = np.zeros((3, 9), np.int64), np.array([9, 5, 2])
    sampler = SamplingOrder(LearnedOrder(networks.policy), with_opening=True)
    batch = DecodeBatch(model.pack_targets(packed, lengths, languages), keys, 4)
    decisions, together = roll_out(model, OrderBatch(batch, references, zeros), sampler)
    assert len({tuple(row) for row in together.steps[:4].tolist()}) > 1
    count = 0
    for i in range(3):
        for k in range(4):
            source = pack_sentences([sources[i]], 1 - languages[[i]], model.vocabulary.eos)
            alone_batch = DecodeBatch(model.pack_targets(source, lengths[[i]], languages[[i]]), keys[[i * 4 + k]])
            alone_sampler = SamplingOrder(LearnedOrder(networks.policy), with_opening=True)
            alone_decisions, alone = roll_out(model, OrderBatch(alone_batch, references[:1], zeros[[i]]), alone_sampler)
            n = lengths[i]
            assert (together.steps[i * 4 + k, :n] == alone.steps[0]).all()
            assert (together.ids[i * 4 + k, :n] == alone.ids[0]).all()
            assert (together.logprobs[i * 4 + k, :n] == alone.logprobs[0]).all()
            its_own = decisions.rollout == i * 4 + k
            assert (decisions.chosen[its_own] == alone_decisions.chosen).all()
            assert (decisions.opening[its_own] == alone_decisions.opening).all()  # type: ignore[index]
            chances = networks.log_probs(decisions).order[its_own].gather(1, decisions.chosen[its_own][:, None])
            assert torch.allclose(
                chances, networks.log_probs(alone_decisions).order.gather(1, alone_decisions.chosen[:, None]), atol=1e-5
            )
            count += n - 1
    assert len(decisions.chosen) == count


def test_positions_are_drawn_from_the_policy(model: TranslationModel) -> None:
    networks = networks_for(model)
    sampler = SamplingOrder(LearnedOrder(networks.policy), with_opening=False)
    decisions, _ = roll_out(model, OrderBatch(sentences(model, 1, 4000), REFERENCE, np.array([LENGTH])), sampler)
    first = decisions.step == 0
    expected = networks.log_probs(decisions).order[first][0].exp()
    seen = torch.bincount(decisions.chosen[first], minlength=LENGTH) / 4000
    assert (seen - expected).abs().max() < 4 * (0.25 / 4000) ** 0.5
    assert expected.max() < 0.9


def filled_at(steps: Tensor, lengths: Tensor) -> Outcome:
    """An outcome of which only the steps matter."""
    ids = torch.zeros_like(steps)
    return Outcome(ids, lengths, ids, lengths, steps, ids.float(), torch.zeros_like(lengths))


def test_edge_fills() -> None:
    steps = torch.tensor([[1, 3, 5, 4, 2], [2, 1, 3, 0, 0], [3, 1, 2, 4, 5]])
    lengths = torch.tensor([5, 3, 5])
    marked = edge_fills(filled_at(steps, lengths))
    assert marked.tolist() == [
        [True] * 5,
        [True, False, True, False, False],
        [True, False, False, True, True],
    ]
    shares = [edge_share([row[:n].numpy()]) for row, n in zip(steps, lengths.tolist(), strict=True)]
    assert shares == pytest.approx([1.0, 2 / 3, 3 / 5])
    for order in itertools.permutations(range(1, 7)):
        brute = 0
        for step in range(1, 7):
            left = [i for i in range(6) if order[i] >= step]
            brute += order.index(step) in (left[0], left[-1])
        assert edge_share([np.array(order)]) == pytest.approx(brute / 6)


def test_positions_that_were_given_have_no_edge() -> None:
    given = filled_at(torch.tensor([[0, 2, 1, 3, 0], [1, 0, 0, 2, 0]]), torch.tensor([5, 4]))
    assert edge_fills(given).tolist() == [[False, True, False, True, False], [True, False, False, True, False]]


def test_the_reward_comes_at_the_last_step_of_a_canvas(vocabulary: Vocabulary) -> None:
    """Not as many steps later as there are given positions: returns would be discounted too much."""
    steps, lengths = torch.tensor([[0, 2, 0, 1, 0, 0], [1, 2, 3, 0, 0, 0]]), torch.tensor([6, 3])
    outcome = filled_at(steps, lengths)
    rewards = step_rewards(make_reward("exact-match", vocabulary), outcome, False)
    assert rewards.tolist() == [[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]
    assert discounted_returns(rewards, 0.5)[:, 0].tolist() == [0.5, 0.25]


def test_a_small_gamma_gives_finite_returns() -> None:
    rewards = torch.zeros(1, 400)
    rewards[0, -1] = 1
    returns = discounted_returns(rewards, 0.01)
    assert returns[0, -3:].tolist() == pytest.approx([1e-4, 1e-2, 1])
    assert returns.isfinite().all()


def test_rewards_at_the_end_or_at_each_step(vocabulary: Vocabulary) -> None:
    outcome = Outcome(
        torch.tensor([[7, 8, 9], [7, 9, 0]]), torch.tensor([3, 2]), torch.tensor([[7, 8, 8], [7, 8, 0]]),
        torch.tensor([3, 2]), torch.tensor([[2, 3, 1], [1, 2, 0]]), torch.zeros(2, 3), torch.tensor([1, 1]),
    )  # fmt: skip
    distance = make_reward("edit-distance", vocabulary)
    assert step_rewards(distance, outcome, True).tolist() == [[0, 1, 1], [1, 0, 0]]
    assert step_rewards(distance, outcome, False).tolist() == [[0, 0, -1], [0, -1, 0]]
    assert RLConfig(reward="edit-distance").rewards_steps
    assert not RLConfig().rewards_steps


class RightToLeft(Reward):
    """The share of pairs of positions of which the right one came first: only one order earns everything."""

    def final(self, outcome: Outcome) -> Tensor:
        places = torch.arange(outcome.steps.shape[1])
        pairs = (places[:, None] < places) & (places < outcome.lengths[:, None, None])
        right_first = (outcome.steps[:, None, :] < outcome.steps[:, :, None]) & pairs
        return right_first.sum((1, 2)) / pairs.sum((1, 2))


@pytest.mark.parametrize(
    ("algorithm", "kind"), [("rloo", "features"), ("rloo", "linear"), ("a2c", "hidden"), ("ppo", "features")]
)
def test_it_finds_the_one_right_order(store: Store, algorithm: str, kind: str) -> None:
    """Within 100 batches, from nothing: greedily followed, the order is the right one in three sentences of four."""
    model = tiny(store.vocabulary, hidden_size=64, num_layers=2)
    with torch.no_grad():
        model.transformer.positions.weight.mul_(8)  # hidden states that tell where they are
    rl = RLConfig(algorithm=algorithm, sentences=32, rollouts=4, num_minibatches=2, entropy_coef=0.003, max_length=12)  # type: ignore[arg-type]
    objective = translation_order_objective(store, model, ["de-en"], PolicyConfig(kind, start="none"), rl, seed=1)  # type: ignore[arg-type]
    objective.reward = RightToLeft()
    optimizer = torch.optim.AdamW(objective.learner.parameters(), 1e-2)
    batches = objective.batches(Cursor(), 0, 0, 1)
    dev = store.split("dev").sides
    rows = [i for i in range(60) if dev["en"].lengths[i] <= 12]
    canvases = [
        model.blank_canvas(np.asarray(dev["de"][i], np.int64), int(dev["en"].lengths[i]), "de-en") for i in rows
    ]
    share, taken = 0.0, 0
    while share < 0.75:
        assert taken < 100, share
        taken += 10
        for _ in range(10):
            minibatches = objective.minibatches(next(batches)[0], torch.device("cpu"))
            for inputs in minibatches * objective.epochs:
                loss, _ = objective.module(**inputs)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        hypotheses = decode(model, canvases, LearnedOrder(objective.learner.policy), make_schedule("one"))
        share = float(np.mean([(np.diff(hypothesis.steps) < 0).all() for hypothesis in hypotheses]))


@pytest.mark.parametrize("kind", ["hidden", "features", "confidence", "linear"])
def test_minibatches_are_the_decisions_of_a_batch_split_up(store: Store, kind: str) -> None:
    model = tiny(store.vocabulary, hidden_size=64, num_layers=2)
    reference = "learned:de-en/confidence" if kind == "linear" else "margin"
    rl = RLConfig(
        algorithm="ppo",
        sentences=7,
        rollouts=2,
        num_minibatches=3,
        kl_coef=0.1,
        reference_order=reference,
        max_length=12,
    )
    objective = translation_order_objective(store, model, ["de-en"], PolicyConfig(kind), rl, seed=1)  # type: ignore[arg-type]
    batch, _ = next(objective.batches(Cursor(), 0, 0, 1))
    minibatches = [inputs["rollouts"] for inputs in objective.minibatches(batch, torch.device("cpu"))]
    objective.rl = replace(rl, num_minibatches=1)
    (whole,) = (inputs["rollouts"] for inputs in objective.minibatches(batch, torch.device("cpu")))
    networks = objective.learner

    def by_decision(rollouts: Rollouts) -> dict[tuple[int, int], Tensor]:
        decisions, old_log_probs = rollouts.decisions, rollouts.old_log_probs
        assert decisions.reference is not None
        assert old_log_probs is not None
        values = networks.values(decisions)
        columns = (rollouts.returns, rollouts.advantages, old_log_probs, values, decisions.chosen)
        rows = torch.cat(
            [torch.stack(columns, 1), networks.log_probs(decisions).order, decisions.reference], 1
        ).detach()
        return dict(zip(zip(decisions.rollout.tolist(), decisions.step.tolist(), strict=True), rows, strict=True))

    expected, parts = by_decision(whole), [by_decision(minibatch) for minibatch in minibatches]
    assert sum(map(len, parts)) == len(expected)
    for number, part in enumerate(parts):
        assert {rollout // 2 % 3 for rollout, _ in part} == {number}  # both rollouts of a sentence stay together
        for key, row in part.items():
            assert torch.allclose(row, expected[key], atol=1e-6)

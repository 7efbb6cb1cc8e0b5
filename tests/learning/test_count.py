"""A policy that decides how many positions a step fills: probabilities, gradient, threshold at the start, whole runs."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.cli import main
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import Learned, make_schedule
from anyorder.errors import InputError
from anyorder.learning.algorithm import ActorCritic, OrderLoss, sample_rollouts, share_of_passes_saved
from anyorder.learning.config import LEARN_ORDER_RUN, RLConfig
from anyorder.learning.learn_order import SPEEDS, learn_order
from anyorder.learning.rewards import Outcome
from anyorder.learning.rollout import LogProbs, OrderBatch, SamplingOrder
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel, load_transformers
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import State
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import MOST_CERTAIN, PolicyConfig, PolicyNetwork, log_odds
from tests.conftest import tiny
from tests.decoding.test_engine import MIXED, canvases_of
from tests.learning.test_algorithm import LENGTH, REFERENCE, Distinct, sentences

COUNT = PolicyConfig("confidence", size=64, count="bernoulli")
RUN = replace(LEARN_ORDER_RUN, device="cpu", warmup=1)


@pytest.fixture(scope="module")
def sudoku() -> TransformersModel:
    return load_transformers("sudoku-4x4")


def network(model: TranslationModel, config: PolicyConfig = COUNT, shuffle: float = 0.0) -> PolicyNetwork:
    torch.manual_seed(7)
    policy = PolicyNetwork(config, model.config.transformer.hidden_size).eval()
    if shuffle:
        torch.nn.init.normal_(policy.out, std=shuffle)
        torch.nn.init.normal_(policy.accept_out, std=shuffle)
    return policy


def subsets(positions: list[int]) -> list[tuple[int, ...]]:
    return [some for size in range(1, len(positions) + 1) for some in itertools.combinations(positions, size)]


def chance(filled: tuple[int, ...], order: Tensor, accept: Tensor) -> Tensor:
    """P of filling exactly these, by walking through what may be accepted; (T,) probabilities of the masked positions."""
    total = torch.zeros(())
    for accepted in itertools.product([False, True], repeat=len(accept)):
        chances = torch.where(torch.tensor(accepted), accept, 1 - accept).prod()
        chosen = tuple(i for i, yes in enumerate(accepted) if yes)
        if chosen == filled:
            total = total + chances
        elif not chosen and len(filled) == 1:
            total = total + chances * order[filled[0]]
    return total


def test_the_probabilities_of_all_sets_add_up_to_one() -> None:
    torch.manual_seed(3)
    order, odds = torch.randn(4).log_softmax(0), torch.randn(4) * 2
    found = []
    for filled in subsets([0, 1, 2, 3]):
        log_probs = LogProbs(order[None], odds[None])
        is_filled = torch.tensor([i in filled for i in range(4)])
        one = type("", (), {"chosen": torch.tensor([filled[0]]), "filled": is_filled, "positions": torch.arange(4)})
        found.append(log_probs.of_chosen(one).exp())  # type: ignore[arg-type]
        assert torch.allclose(found[-1], chance(filled, order.exp(), odds.sigmoid()), atol=1e-6)
    assert float(sum(found)) == pytest.approx(1, abs=1e-5)


def test_the_entropy_is_that_of_what_is_sampled() -> None:
    """All subsets that may be accepted, and the position to fill if none is."""
    torch.manual_seed(4)
    order, odds = torch.randn(3).log_softmax(0), torch.randn(3)
    chances = []
    for accepted in itertools.product([False, True], repeat=3):
        one = torch.where(torch.tensor(accepted), odds.sigmoid(), (-odds).sigmoid()).prod()
        chances += [one] if any(accepted) else [one * p for p in order.exp()]
    p = torch.stack(chances)
    found = LogProbs(
        torch.cat([order, torch.tensor([-torch.inf])])[None], torch.cat([odds, torch.tensor([-torch.inf])])[None]
    )
    assert float(found.entropies()) == pytest.approx(float(-(p * p.log()).sum()), abs=1e-5)


def test_log_odds() -> None:
    p = torch.tensor([0.001, 0.3, 0.5, 0.999])
    assert torch.allclose(log_odds(p.log()), torch.logit(p), atol=1e-4)
    assert log_odds(torch.tensor([0.0, -1e-9])).tolist() == [15, 15]


@pytest.mark.parametrize("speed", [0.0, 0.3, 0.5, 0.8])
def test_it_starts_as_a_threshold(vocabulary: Vocabulary, speed: float) -> None:
    """Bit by bit: before anything is learned, `learned:SPEED` is `threshold:P`."""
    model = tiny(vocabulary)
    canvases = canvases_of(MIXED[:12], vocabulary)
    order, schedule = make_schedule(f"learned:{speed}").bind(LearnedOrder(network(model), "learned:mine"))
    threshold = 1 / (1 + np.exp(-MOST_CERTAIN * (1 - 2 * speed)))
    ours = decode(model, canvases, order, schedule)
    theirs = decode(model, canvases, order, make_schedule(f"threshold:{threshold}"))
    for a, b in zip(ours, theirs, strict=True):
        assert a.steps.tolist() == b.steps.tolist()
        assert a.ids.tolist() == b.ids.tolist()
        assert a.logprobs.tolist() == b.logprobs.tolist()


def test_a_result_does_not_depend_on_its_batch(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    canvases = canvases_of(MIXED[:12], vocabulary)
    order, schedule = make_schedule("learned:0.6").bind(LearnedOrder(network(model, shuffle=3.0), "learned:mine"))
    together = decode(model, canvases, order, schedule)
    assert any(0 < one.forwards < len(one.ids) for one in together)  # several at a time, but not all
    for canvas, expected in zip(canvases, together, strict=True):
        [alone] = decode(model, [canvas], order, schedule)
        assert alone.steps.tolist() == expected.steps.tolist()
        assert alone.logprobs.tolist() == expected.logprobs.tolist()


class Earned(Distinct):
    """Differs between any two ways to fill the short sentence."""


def exact_gradient(
    model: TranslationModel, policy: PolicyNetwork, speed: float, rl: RLConfig
) -> tuple[list[Tensor], float]:
    """Of the expected loss, by walking through all ways to fill three positions in sets; and the expected reward."""
    order = LearnedOrder(policy).at_speed(speed)
    start = sentences(model, 1, 1)
    vocabulary = model.vocabulary
    loss, expected = torch.zeros(()), 0.0

    def walk(tokens: list[int], steps: list[int], chances: list[tuple[Tensor, bool]]) -> None:
        nonlocal loss, expected
        masked = [i for i in range(LENGTH) if tokens[i] == vocabulary.mask]
        if not masked:
            outcome = Outcome(
                torch.tensor([tokens]), torch.tensor([LENGTH]), torch.tensor(REFERENCE), torch.tensor([LENGTH]),
                torch.tensor([steps]), torch.zeros(1, LENGTH), torch.ones(1, dtype=torch.int64),
            )  # fmt: skip
            taken = max(steps)
            saved = ((LENGTH - taken + 1) / LENGTH) ** (rl.passes_exponent * speed)
            earned = float(Earned().final(outcome)) * saved
            whole = torch.stack([each for each, _ in chances]).prod().detach()
            expected += float(whole) * earned
            for i, (each, is_choice) in enumerate(chances, 1):
                if is_choice:
                    loss = loss - whole * rl.gamma ** (taken - i) * earned * each.log()
            return
        state, logits = look(tokens)
        said = order.network(order.inputs(state), state.segments)  # type: ignore[arg-type]
        assert said.accept is not None
        probabilities, accept = said.order.softmax(0), said.accept.sigmoid()
        for some in subsets(list(range(len(masked)))):
            now, when = list(tokens), list(steps)
            for i in some:
                now[masked[i]] = int(logits[i, vocabulary.first_word :].argmax()) + vocabulary.first_word
                when[masked[i]] = max(steps) + 1
            p = chance(some, probabilities, accept) if len(masked) > 1 else torch.ones(())
            walk(now, when, [*chances, (p, len(masked) > 1)])

    def look(tokens: list[int]) -> tuple[State, Tensor]:
        """The state as an order sees it, from the engine's own first step on a canvas with these tokens."""
        seen: list[State] = []

        class Spy(LearnedOrder):
            def scores(self, state: State) -> Tensor:
                seen.append(replace(state, masked=state.masked.clone()))  # the engine's own changes
                return super().scores(state)

        source = np.array(start.canvases.sources.tokens[1:-1]) if start.canvases.sources is not None else None
        canvas = Canvas(np.array(tokens), source, "de-en", 0)
        with torch.no_grad():
            decode(model, [canvas], Spy(policy), make_schedule("one"))
        assert seen[0].logits is not None
        return seen[0], seen[0].logits

    walk([vocabulary.mask] * LENGTH, [0] * LENGTH, [])
    return list(torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)), expected


def test_the_estimated_gradient_is_the_exact_one(vocabulary: Vocabulary) -> None:
    model, speed = tiny(vocabulary, hidden_size=64, num_layers=2), 0.8
    rl = RLConfig(algorithm="rloo", rollouts=5, gamma=0.9, entropy_coef=0.0, passes_exponent=2.0)
    networks = ActorCritic(network(model, shuffle=0.5), with_value=False)
    torch.nn.init.zeros_(networks.policy.accept_linear)  # a threshold far from this model's probabilities decides alone
    exact, expected = exact_gradient(model, networks.policy, speed, rl)
    parameters = list(networks.policy.parameters())
    loss, estimates, earned, batches = OrderLoss(networks, rl), [], [], 30
    for number in range(batches):
        count = 60
        batch = OrderBatch(
            sentences(model, count, 5, number), np.repeat(REFERENCE, count, 0), np.full(count, LENGTH),
            np.full(count, speed),
        )  # fmt: skip
        sampler = SamplingOrder(LearnedOrder(networks.policy), with_opening=False)
        rollouts = sample_rollouts(model, batch, sampler, networks, Earned(), rl)
        # The loss is a mean over decisions; the exact one a sum over a sentence's.
        scale = len(rollouts.returns) / (count * 5)
        grads = torch.autograd.grad(loss(rollouts)[0] * scale, parameters)
        estimates.append(torch.cat([grad.flatten() for grad in grads]))
        earned.append(float(rollouts.report[0]))
    assert abs(np.mean(earned) - expected) < 4 * np.std(earned) / batches**0.5
    true = torch.cat([
        (torch.zeros_like(each) if grad is None else grad).flatten()
        for grad, each in zip(exact, parameters, strict=True)
    ])  # fmt: skip
    estimated = torch.stack(estimates)
    error = estimated.std(0) / batches**0.5
    assert true.norm() > 5 * error.norm()
    matters = error > 0.01 * error.max()
    z = ((estimated.mean(0) - true) / error)[matters]
    assert z.square().mean() < 2.5
    wrong_sign = ((estimated.mean(0) + true) / error)[matters]
    assert wrong_sign.square().mean() > 25


def test_the_share_of_passes_saved() -> None:
    steps = torch.tensor([[1, 1, 1, 1], [1, 2, 3, 4], [0, 1, 2, 2]])
    ones = torch.ones(3, 4, dtype=torch.int64)
    outcome = Outcome(ones, torch.full((3,), 4), ones, torch.full((3,), 4), steps, ones.float(), ones[:, 0])
    assert torch.allclose(share_of_passes_saved(outcome), torch.tensor([1.0, 0.25, 2 / 3]))


def test_a_whole_run(sudoku: TransformersModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Learned, found by its name, decoded at several speeds, calibrated in passes; killed runs resume elsewhere."""
    rl = RLConfig(sentences=32, rollouts=8, validation_sentences=100, validation_orders="", reward="exact-match")
    run = replace(RUN, steps=12, learning_rate=3e-3, ema=0.9)
    result = learn_order(sudoku, "sudoku-4x4", tmp_path / "run", policy=COUNT, rl=rl, run=run)
    passes = [result.scores[f"passes sudoku-4x4 at speed {speed:g}"] for speed in SPEEDS]
    assert passes[0] > passes[2] + 0.5 > passes[4] + 1
    order = f"learned:{result.order}"
    task = Decoder(sudoku, "sudoku-4x4")
    lines = Path("src/anyorder/bundled/sudoku-4x4/sample.puzzles.txt").read_text().split()
    mean = {}
    for schedule in ("learned:0", "learned:1", f"learned:passes={np.mean(passes[:2])}"):
        found = task.run(lines, order, schedule=schedule)
        mean[schedule] = np.mean([one.forwards for one in found])
        assert f"schedule:{schedule}" in found[0].signature
    assert mean["learned:0"] > list(mean.values())[2] > mean["learned:1"]

    out = tmp_path / "out.json"
    arguments = [
        "evaluate",
        "--model",
        "sudoku-4x4",
        "--orders",
        order,
        "--schedule",
        "learned:0.5",
        "--json",
        str(out),
    ]
    assert main([*arguments, "--limit", "20"]) == 0
    [row] = json.loads(out.read_text())["rows"]
    assert row["schedule"] == "learned:0.5"
    assert row["forwards"] < 11


def test_it_starts_from_an_order_that_does_not_decide(sudoku: TransformersModel, tmp_path: Path) -> None:
    """The order of that policy, the threshold of a new one."""
    rl = RLConfig(sentences=4, rollouts=2, validation_sentences=20, validation_orders="", reward="exact-match")
    run = replace(RUN, steps=1, learning_rate=1e-9)
    policy = PolicyConfig(count="bernoulli")
    result = learn_order(
        sudoku, "sudoku-4x4", tmp_path / "run", policy=policy, rl=rl, run=run, init="learned:de-en/confidence"
    )
    task = Decoder(sudoku, "sudoku-4x4")
    lines = Path("src/anyorder/bundled/sudoku-4x4/sample.puzzles.txt").read_text().split()[:20]
    threshold = 1 / (1 + np.exp(-MOST_CERTAIN * 0.5))
    ours = task.run(lines, f"learned:{result.order}", schedule="learned:0.25")
    theirs = task.run(lines, "learned:de-en/confidence", schedule=f"threshold:{threshold}")
    assert [one.steps for one in ours] == [one.steps for one in theirs]
    with pytest.raises(InputError, match="gives the policy its kind and size"):
        learn_order(
            sudoku, "sudoku-4x4", tmp_path / "x", policy=replace(policy, size=64), rl=rl, run=run,
            init="learned:de-en/confidence",
        )  # fmt: skip


def test_the_command_to_evaluate_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "learn-order --model sudoku-4x4 --task sudoku-4x4 --policy.kind linear --policy.count bernoulli"
    sizes = "--rl.sentences 4 --rl.rollouts 2 --rl.validation-sentences 5 --run.steps 1 --run.device cpu"
    assert main([*command.split(), *sizes.split(), "--out", str(tmp_path / "run")]) == 0
    assert f"--orders learned:{tmp_path}/run/order --schedule one,learned:0," in capsys.readouterr().out


def test_the_bundled_order(tmp_path: Path) -> None:
    """The front of the bundled model's README, on a quarter of the sample."""
    out = tmp_path / "out.json"
    schedules = "one,threshold:0.9,learned:0.5,learned:0.7,learned:1"
    arguments = ["--model", "sudoku-4x4", "--orders", "learned", "--limit", "50", "--json", str(out), "--device", "cpu"]
    assert main(["evaluate", *arguments, "--schedule", schedules]) == 0
    found = {row["schedule"]: (row["accuracy"], row["forwards"]) for row in json.loads(out.read_text())["rows"]}
    assert found["one"][0] >= 94
    assert found["learned:0.5"][0] >= 94
    assert found["learned:0.5"][1] < found["one"][1] / 2
    assert found["learned:0.7"][0] >= 86
    assert found["learned:0.7"][1] < found["threshold:0.9"][1]
    assert found["learned:1"][1] < found["learned:0.7"][1] - 1


def test_what_it_refuses(sudoku: TransformersModel, tmp_path: Path) -> None:
    for schedule, order, message in (
        ("learned:0.5", "margin", "the order 'margin' does not decide how many positions to fill"),
        ("learned:2", "margin", "schedule 'learned:2': speed 2"),
        ("learned:x", "margin", "expected a speed from 0 to 1, or passes=N"),
        ("learned:speed=1", "margin", "expected a speed from 0 to 1, or passes=N"),
        ("blocks:4+learned:0.5", "margin", "does not decide how many positions to fill"),
        ("learned:passes=0", "margin", "passes 0"),
    ):
        with pytest.raises(InputError, match=message):
            DecodingConfig(order=order, schedule=schedule).bind(sudoku, "infill")
    order = LearnedOrder(PolicyNetwork(COUNT, 48), "learned:mine")
    with pytest.raises(InputError, match="was never validated, so a speed must be given"):
        Learned(passes=3).bind(order)
    order.passes = {"a": [(0.0, 9.0), (1.0, 1.0)], "b": [(0.0, 5.0), (1.0, 3.0)]}
    assert order.speed_for(7) == 0
    assert order.speed_for(4.5) == pytest.approx(0.5)
    with pytest.raises(InputError, match=r"took 2\.0 to 7\.0 passes in validation, not 8"):
        Learned(passes=8).bind(order)
    with pytest.raises(InputError, match="does not see the confidence"):
        PolicyConfig("hidden", count="bernoulli")
    for policy, rl, message in (
        (COUNT, RLConfig(each_step="yes"), "is rewarded for the finished sentence"),
        (PolicyConfig(), RLConfig(passes_exponent=2.0), "passes_exponent 2: is for a policy that decides"),
    ):
        with pytest.raises(InputError, match=message):
            learn_order(sudoku, "sudoku-4x4", tmp_path / "x", policy=policy, rl=rl, run=replace(RUN, steps=1))

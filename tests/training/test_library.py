"""The library's functions: a model and an order from Python, a user's reward, and sizes that fit the device."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyorder
from anyorder.data.store import Store
from anyorder.errors import InputError
from anyorder.learning.algorithm import OrderLoss, Rollouts
from anyorder.learning.config import LEARN_ORDER_RUN, RLConfig
from anyorder.learning.learn_order import learn_order
from anyorder.learning.rewards import REWARDS, make_reward, register_reward
from anyorder.models.native.storage import BUNDLED
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders.learned import load_order
from anyorder.orders.policy import PolicyConfig
from anyorder.training.config import TextTrainConfig, TrainConfig
from anyorder.training.loop import begin_run
from anyorder.training.mlm_objective import MLMConfig
from anyorder.training.train import default_batch_tokens, pretrain_model, train_model
from anyorder.training.translation_objective import MaskingConfig
from tests.conftest import tiny
from tests.learning.test_rewards import SMALL, by_hand

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SIZE = TransformerConfig(hidden_size=32, num_layers=2, num_heads=2, max_positions=64)
RUN = TextTrainConfig(steps=2, batch_tokens=600, device="cpu", validate_every=0)


@pytest.fixture
def reward_names():
    """What a test registers is gone afterwards."""
    before = dict(REWARDS)
    yield
    REWARDS.clear()
    REWARDS.update(before)


def test_a_pretrained_and_then_trained_model(store: Store, tmp_path: Path) -> None:
    pretrained = pretrain_model(store.path, tmp_path / "pretrained", SIZE, run=RUN)
    assert (pretrained.model, pretrained.scores) == (tmp_path / "pretrained" / "model", {})
    masking = MaskingConfig(validation_sentences=3)
    result = train_model(store, str(tmp_path / "run"), masking=masking, run=RUN, init=pretrained.model)
    assert (result.steps, result.finished) == (2, True)
    assert set(result.scores) == {"bleu de-en", "bleu en-de"}
    assert len(anyorder.load(result.model, device="cpu").translate(["Der Hund sieht ein Haus."], "de-en")) == 1


def test_one_direction_is_trained_and_resumed(store: Store, tmp_path: Path) -> None:
    masking = MaskingConfig(validation_sentences=3)
    result = train_model(store, tmp_path / "run", SIZE, masking, RUN, directions="de-en")
    assert set(result.scores) == {"bleu de-en"}
    model = TranslationModel.from_pretrained(result.model)
    assert (model.config.directions, list(model.length_table.seen)) == (["de-en"], ["de-en"])  # type: ignore[union-attr]
    longer = replace(RUN, steps=3)
    with pytest.raises(InputError, match=r"cannot resume: directions was \['de-en'\], now it is \['de-en', 'en-de'\]"):
        train_model(store, tmp_path / "run", SIZE, masking, longer, resume=True)
    assert train_model(store, tmp_path / "run", SIZE, masking, longer, resume=True, directions=["de-en"]).steps == 3


def test_an_order_from_a_loaded_model_and_a_plain_function(
    store: Store, tmp_path: Path, reward_names: None, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, str]] = []

    def same_length(hypotheses: list[str], references: list[str]) -> list[float]:
        seen.extend(zip(hypotheses, references, strict=True))
        return [-abs(len(a) - len(b)) for a, b in zip(hypotheses, references, strict=True)]

    rl = RLConfig(sentences=4, rollouts=2, max_length=12, validation_sentences=3, validation_orders="")
    run = replace(LEARN_ORDER_RUN, steps=2, device="cpu", log_every=1)
    model = tiny(store.vocabulary)
    result = learn_order(model, ["de-en"], tmp_path / "run", store, rl=rl, run=run, reward=same_length)
    assert result.order == tmp_path / "run" / "order"
    assert set(result.scores) == {"bleu de-en", "edge share de-en"}
    assert json.loads((result.order / "order.json").read_text())["rl"]["reward"] == "same_length"
    assert len(seen) == 2 * 4 * 2
    references = {line.strip() for line in (store.path.parent / "train.en").read_text().splitlines()}
    assert {reference for _, reference in seen} <= references
    assert "first step: " in capsys.readouterr().err


def test_an_order_that_starts_from_a_learned_one(store: Store, tmp_path: Path) -> None:
    """Also from one of a model of another size."""
    bundled = BUNDLED / "de-en" / "learned" / "confidence"
    rl = RLConfig("a2c", sentences=4, max_length=12, validation_sentences=2, validation_orders="")
    run = replace(LEARN_ORDER_RUN, steps=1, learning_rate=0.0, device="cpu")
    model = tiny(store.vocabulary)

    def learn(folder: str, init: str, policy: PolicyConfig = PolicyConfig(), **options: Any) -> Path:  # noqa: B008
        return learn_order(
            model, "de-en", tmp_path / folder, store, policy=policy, rl=rl, run=run, init=init, **options
        ).order

    order = learn("first", "learned:de-en/confidence")
    weights = load_order(order)[0].state_dict()
    assert weights.keys() == load_order(bundled)[0].state_dict().keys()
    for name, expected in load_order(bundled)[0].state_dict().items():
        assert torch.equal(weights[name], expected)
    its_own = load_order(bundled)[0].config  # they may be named, and dropout is not a matter of kind and size
    second = learn("second", f"learned:{order}", replace(its_own, dropout=0.1))
    assert load_order(second)[0].config == replace(its_own, dropout=0.1)
    with pytest.raises(InputError, match="init gives the policy its kind and size: leave the policy's options out"):
        learn("third", f"learned:{order}", PolicyConfig("confidence", size=64))
    with pytest.raises(InputError, match="init margin: is not a learned order"):
        learn("third", "margin")
    learn("first", f"learned:{order}", resume=True)  # the same weights in another place
    with pytest.raises(InputError, match="cannot resume: init was 6eedf1ab, now it is "):
        learn("first", "learned:multi/confidence", resume=True)
    with pytest.raises(InputError, match="order 'learned:de-en/hidden': was learned for another model"):
        learn("third", "learned:de-en/hidden")
    assert not (tmp_path / "third").exists()


def test_a_loss_that_is_not_a_number_ends_learning(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reward, which is reported first, is finite all the while."""
    right = OrderLoss.forward

    def wrong(self: OrderLoss, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        loss, report = right(self, rollouts)
        return loss * math.nan, report.index_fill(0, torch.tensor([4]), math.nan)

    monkeypatch.setattr(OrderLoss, "forward", wrong)
    rl = RLConfig(sentences=4, rollouts=2, max_length=12, validation_split="none", validation_orders="")
    run = replace(LEARN_ORDER_RUN, steps=4, device="cpu", log_every=1)
    with pytest.raises(InputError, match="learning_rate 0.001: the loss is nan at step 1; use a lower one"):
        learn_order(tiny(store.vocabulary), "de-en", tmp_path / "run", store, rl=rl, run=run)
    assert not (tmp_path / "run" / "order").exists()


def test_a_users_reward_by_name(reward_names: None) -> None:
    @register_reward("letters")
    def letters(hypotheses: list[str], references: list[str]) -> list[float]:
        return [float(len(set(a) & set(b))) for a, b in zip(hypotheses, references, strict=True)]

    assert RLConfig(reward="letters").reward == "letters"
    reward = make_reward("letters", SMALL, ["en"])
    texts = [(SMALL.words([6, 7, 8]), SMALL.words([6, 7, 9, 9])), (SMALL.words([7]), SMALL.words([7]))]
    expected = [len(set(" ".join(a)) & set(" ".join(b))) for a, b in texts]
    assert reward.final(by_hand()).tolist() == expected
    steps = reward.each_step(by_hand())
    assert steps.sum(1).tolist() == expected  # a sentence of holes is empty
    assert steps[:, 2:].count_nonzero() == 0


@pytest.mark.parametrize("page", ["training.md", "learning-an-order.md"])
def test_the_documentation_trains(page: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `py` blocks, with one step instead of minutes and a small model."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "store").symlink_to(store.path)
    if page != "training.md":
        tiny(store.vocabulary).save_pretrained(tmp_path / "runs" / "mine" / "model")
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    for block in blocks:
        short = re.sub(r"minutes=\d+", 'steps=1, device="cpu"', block)
        assert short != block
        short = short.replace("run=TextTrainConfig", "transformer=SIZE, run=TextTrainConfig")
        exec(compile(short, page, "exec"), {"SIZE": SIZE})


def test_names_of_rewards(reward_names: None) -> None:
    with pytest.raises(InputError, match="unknown reward 'blue': did you mean 'bleu'"):
        RLConfig(reward="blue")
    with pytest.raises(InputError, match="there is already a reward 'bleu'"):
        register_reward("bleu")(lambda hypotheses, references: [0.0])
    for _ in range(2):  # a cell of a notebook may run twice
        exec("def mine(hypotheses, references): return [0.0]", {"__name__": "notebook"}, namespace := {})
        register_reward("mine")(namespace["mine"])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0], "gave 1 scores for 2"),
        ([1.0, float("nan")], "gave nan for"),
        (None, "returned None, expected a list with a number for each text"),
        (5, "returned 5, expected a list"),
        (["good", "bad"], r"returned \['good', 'bad'\], expected a list"),
        ([[1.0]] * 100, r"returned \[\[1.0\], .*\.\.\., expected a list"),
    ],
)
def test_a_reward_that_goes_wrong(reward_names: None, scores: list[float], message: str) -> None:
    register_reward("wrong")(lambda hypotheses, references: scores)
    with pytest.raises(InputError, match=f"reward 'wrong': {message}"):
        make_reward("wrong", SMALL, ["en"]).final(by_hand())


def test_a_reward_that_takes_no_references(reward_names: None) -> None:
    register_reward("alone")(lambda hypotheses: [1.0] * len(hypotheses))  # type: ignore[arg-type, misc]
    with pytest.raises(InputError, match="reward 'alone': cannot be called with hypotheses and references"):
        make_reward("alone", SMALL, ["en"]).final(by_hand())


def test_sizes_fit_the_device(store: Store) -> None:
    """On CUDA they are those of the measurements; on the CPU a step takes seconds, not minutes."""
    split = store.split("train")
    assert [default_batch_tokens(split, device) for device in (CUDA, CPU)] == [32_768, 2_048]
    on_cuda, on_cpu = (RLConfig().with_sizes(device) for device in (CUDA, CPU))
    assert (on_cuda.sentences, on_cuda.validation_sentences) == (256, 3000)
    assert (on_cpu.sentences, on_cpu.validation_sentences) == (8, 50)
    assert RLConfig(num_minibatches=16).with_sizes(CPU).sentences == 16
    given = RLConfig(sentences=5, validation_sentences=7)
    assert given.with_sizes(CUDA) == given.with_sizes(CPU) == given


def test_the_cpu_batch_holds_the_longest_pair(store: Store) -> None:
    class Long:
        sides = {"de": type("Side", (), {"lengths": torch.tensor([3, 2045])}), "en": store.split("train").sides["en"]}

    assert default_batch_tokens(Long(), CPU) > 2_048  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (lambda: TrainConfig(log_every=0), "log_every"),
        (lambda: TextTrainConfig(batch_tokens=3), "batch_tokens"),
        (lambda: TrainConfig(steps=1, minutes=1), "minutes"),
        (lambda: begin_run(TrainConfig(), Path("run"), resume=False), "steps"),
        (lambda: RLConfig(gamma=0), "gamma"),
        (lambda: MaskingConfig(label_smoothing=1), "label_smoothing"),
        (lambda: MLMConfig(mask_replace_prob=0.8, random_replace_prob=0.3), "random_replace_prob"),
    ],
)
def test_configs_check_themselves(config, field: str) -> None:
    with pytest.raises(InputError) as error:
        config()
    assert error.value.field == field
    assert error.value.config.__name__.endswith("Config")
    assert str(error.value).startswith(field)
    assert "--" not in str(error.value)


def test_an_order_cannot_lie_beside_a_model_without_a_folder(store: Store, tmp_path: Path) -> None:
    model = TranslationModel(tiny(store.vocabulary).config, store.vocabulary)
    run = replace(LEARN_ORDER_RUN, steps=1, device="cpu")
    with pytest.raises(InputError, match="not loaded from a folder"):
        learn_order(model, "de-en", tmp_path / "run", store, run=run, name="default")

"""Orders of masked models without a source: what they are learned on, and that they can be learned from the reward."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from anyorder.decoder import Decoder
from anyorder.decoding.trajectory import INFILL
from anyorder.errors import InputError
from anyorder.learning.config import LEARN_ORDER_RUN, RLConfig
from anyorder.learning.data import MaskedData, puzzle_data, text_data
from anyorder.learning.learn_order import learn_order
from anyorder.learning.rewards import HOLE, REWARDS, Outcome, make_reward
from anyorder.models.hf.pretrained import TransformersModel, load_transformers
from anyorder.orders.learned import UnboundLearnedOrder
from anyorder.orders.policy import PolicyConfig
from anyorder.tasks import Examples as Puzzles
from anyorder.tasks import make_puzzle
from anyorder.tasks.masked import mask_positions

RANDOM = np.random.default_rng(1)
KEYS = np.arange(50)
RUN = replace(LEARN_ORDER_RUN, learning_rate=3e-3, warmup=5, ema=0.9, validate_every=0, save_every=0, device="cpu")
LINES = ["1234432121433412", "2143341212344321", "12", "3412123421434321"] * 10


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    return load_transformers("sudoku-4x4")


@pytest.fixture(scope="module")
def puzzles(model: TransformersModel) -> MaskedData:
    return puzzle_data(make_puzzle("sudoku-4x4"), model, puzzles=30, validation=10, seed=1)


def test_puzzles_to_learn_from(model: TransformersModel, puzzles: MaskedData) -> None:
    assert len(puzzles) == 30
    assert puzzles.tasks == list(puzzles.validations) == ["sudoku-4x4"]
    examples = puzzles.batch(np.arange(12), KEYS[:12], 1, RANDOM)
    tokens = examples.sentences.canvases.packed.tokens.reshape(12, 16)
    masked = tokens == model.mask_token
    assert (np.diff(masked.sum(1)) <= 0).all()  # the rollouts want the most masked first
    np.testing.assert_array_equal(tokens[~masked], examples.references[~masked])
    task = make_puzzle("sudoku-4x4")
    assert task.is_solved(np.zeros((12, 16), np.int64), examples.references - 2).all()


def test_more_puzzles_than_are_generated_come_from_symmetries(
    model: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyorder.learning.data.GENERATED", 10)
    data = puzzle_data(make_puzzle("sudoku-4x4"), model, puzzles=50, validation=0, seed=1)
    assert len(data) == 50
    assert data.validations == {}
    assert len(np.unique(data.batch(np.arange(50), KEYS, 1, RANDOM).references, axis=0)) > 30


def outcome(ids: list[list[int]], references: list[list[int]], steps: list[list[int]]) -> Outcome:
    count, width = len(ids), len(ids[0])
    lengths = torch.full((count,), width)
    return Outcome(
        torch.tensor(ids), lengths, torch.tensor(references), lengths, torch.tensor(steps),
        torch.zeros(count, width), torch.zeros(count, dtype=torch.int64),
    )  # fmt: skip


def test_rewards_by_hand(model: TransformersModel, puzzles: MaskedData) -> None:
    """Three of four positions are to fill; the second row has one of them wrong, filled at step 2."""
    made = outcome([[3, 4, 5, 6], [3, 4, 4, 6]], [[3, 4, 5, 6]] * 2, [[0, 1, 2, 3], [0, 3, 2, 1]])
    accuracy, exact = puzzles.reward("accuracy"), puzzles.reward("exact-match")
    assert accuracy.final(made).tolist() == pytest.approx([1, 2 / 3])
    assert accuracy.each_step(made)[:, :3].tolist() == [pytest.approx([1 / 3] * 3), pytest.approx([1 / 3, 0, 1 / 3])]
    assert exact.final(made).tolist() == [1, 0]
    unsure = replace(made, logprobs=torch.tensor([[0.0, -1, -2, -3], [0, -1, -1, -1]]))
    assert puzzles.reward("likelihood").final(unsure).tolist() == pytest.approx([math.exp(-2), math.exp(-1)])
    with pytest.raises(InputError, match="bleu: is for translations"):
        puzzles.reward("bleu")
    shorter = replace(made, references=made.references[:, :3], reference_lengths=torch.full((2,), 3))
    assert make_reward("accuracy", None).final(shorter).tolist() == pytest.approx([2 / 3, 1 / 3])  # type: ignore[arg-type]
    assert exact.final(shorter).tolist() == [0, 0]


def test_what_a_users_reward_sees(puzzles: MaskedData) -> None:
    ids = torch.full((1, 16), 3)
    ids[0, 1:4] = torch.tensor([6, HOLE, 4])
    assert puzzles.spell(ids[0].numpy()) == "1402111111111111"


def test_text_with_masks(model: TransformersModel) -> None:
    data = text_data(LINES, model, 0.25, (3, 16), validation=4, seed=1)
    assert len(data) == 26
    assert data.tasks == [INFILL]
    tokens = data.batch(np.arange(5), KEYS[:5], 1, RANDOM).sentences.canvases.packed.tokens.reshape(5, 16)
    assert ((tokens == model.mask_token).sum(1) == 4).all()
    same = text_data(LINES, model, 0.25, (3, 16), validation=4, seed=1)
    again = same.batch(np.arange(5), KEYS[:5], 1, RANDOM).sentences
    np.testing.assert_array_equal(tokens, again.canvases.packed.tokens.reshape(5, 16))
    held_out = data.validations[INFILL]._test_set.examples
    fitting = [number for number, line in enumerate(LINES) if 3 <= len(line) <= 16]
    for number, example in zip(fitting[26:], held_out, strict=True):  # masked by their numbers in the file
        masked = example.tokens == model.mask_token  # type: ignore[attr-defined]
        np.testing.assert_array_equal(masked, mask_positions(16, 0.25, 1, number))


@pytest.mark.parametrize(
    ("count", "lengths", "message"),
    [
        (30, (17, 30), "min_length 17: no line of the text has 17 to 16 tokens; they have 16 to 16"),
        (30, (2, 9), "max_length 9: no line of the text has 2 to 9 tokens; they have 16 to 16"),
        (0, (2, 9), "text is empty"),
    ],
)
def test_no_line_of_the_text_fits(model: TransformersModel, count: int, lengths: tuple[int, int], message: str) -> None:
    lines = ["1402111111111111"] * count
    with pytest.raises(InputError, match=message):
        text_data(lines, model, 0.25, lengths, validation=4, seed=1)


def test_an_order_learned_from_the_reward_alone(model: TransformersModel, tmp_path: Path) -> None:
    """The policy sees hidden states and no confidence; random orders solve a quarter of the puzzles."""
    rl = RLConfig(sentences=32, rollouts=8, validation_sentences=200, validation_orders="uniform")
    policy = PolicyConfig(kind="hidden", size=64)
    result = learn_order(model, "sudoku-4x4", tmp_path, policy=policy, rl=rl, run=replace(RUN, steps=25))
    assert result.scores["uniform sudoku-4x4"] < 40
    assert result.scores["accuracy sudoku-4x4"] >= 90
    order = UnboundLearnedOrder(str(result.order))
    order.name = "learned:mine"
    [filled] = Decoder(model).fill("[MASK]2" + "[MASK]" * 6 + "[MASK]42[MASK][MASK]1[MASK]3", order=order)
    assert filled.order == "learned:mine"
    assert filled.length == 11


@pytest.mark.parametrize("kind", ["confidence", "features"])
def test_other_policies_and_a_reward_of_ones_own(
    model: TransformersModel, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def solved(hypotheses: list[str], references: list[str]) -> list[float]:
        seen.extend(zip(hypotheses, references, strict=True))
        return [float(a == b) for a, b in zip(hypotheses, references, strict=True)]

    monkeypatch.setitem(REWARDS, "solved", solved)  # forgotten afterwards
    rl = RLConfig(sentences=4, rollouts=4, validation_sentences=100, validation_orders="")
    result = learn_order(
        model, "sudoku-4x4", tmp_path, policy=PolicyConfig(kind=kind), rl=rl, run=replace(RUN, steps=2), reward=solved
    )
    assert result.scores["accuracy sudoku-4x4"] >= 90  # it starts from margin
    assert len(seen) == 32
    assert all(len(text) == 16 and set(text) <= set("1234") for pair in seen for text in pair)


def test_learning_on_text(model: TransformersModel, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    rl = RLConfig(sentences=4, rollouts=2, validation_sentences=4, validation_orders="margin")
    run = replace(RUN, steps=2)
    result = learn_order(model, "infill", tmp_path / "run", text=tmp_path / "lines.txt", rl=rl, run=run)
    assert set(result.scores) == {"accuracy infill", "edge share infill", "margin infill"}


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("infill", {}, "text is missing: what to learn texts with masks from"),
        ("infill", {"text": LINES, "mask_share": 0}, "mask_share 0: expected a number of more than 0"),
        ("infill", {"text": LINES, "data": "data/store"}, "data is not for texts with masks"),
        ("sudoku-4x4", {"text": LINES}, "text is not for puzzles"),
        ("sudoku-4x4", {"data": "data/store"}, "data is not for puzzles"),
        ("sudoku", {}, "unknown task 'sudoku': did you mean 'sudoku-4x4'"),
        ("de-en", {}, "data is missing: what to learn translation from"),
        ("generate", {}, "generate: an order is learned for one or several directions, for infill or for a puzzle"),
        ("de-en,infill", {}, "task de-en, infill: an order is learned for"),
        ("de-en", {"data": "data/store", "text": LINES}, "text is not for translation"),
        ("de-en", {"data": "data/store"}, "model sudoku-4x4: is not a model for translation"),
    ],
)
def test_what_a_task_needs(
    model: TransformersModel, tmp_path: Path, task: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        learn_order(model, task, tmp_path / "run", run=replace(RUN, steps=1), **options)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_without_validation_all_lines_are_learned_from(model: TransformersModel, tmp_path: Path) -> None:
    rl = RLConfig(sentences=4, rollouts=2, validation_split="none", validation_orders="", min_length=3)
    result = learn_order(model, "infill", tmp_path / "run", text=LINES, rl=rl, run=replace(RUN, steps=1))
    assert result.scores == {}
    state = json.loads(next((tmp_path / "run").glob("checkpoint-*/state.json")).read_text())
    assert state["fingerprint"]["lines"] == 30


@pytest.mark.parametrize(
    ("rl", "mask_share", "message"),
    [
        ({"split": "dev"}, None, "split is not for puzzles"),
        ({"weights": {"news": 2.0}}, None, "weights is not for puzzles"),
        ({"max_length": 40}, None, "max_length is not for puzzles"),
        ({"validation_split": "dev"}, None, "validation_split dev: there are no splits, so only auto or none"),
        ({}, 0.3, "mask_share is not for puzzles"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    model: TransformersModel, tmp_path: Path, rl: dict[str, object], mask_share: float | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        learn_order(
            model, "sudoku-4x4", tmp_path / "run", mask_share=mask_share, rl=RLConfig(**rl), run=replace(RUN, steps=1)
        )  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


class OneCell(type(make_puzzle("sudoku-4x4"))):  # type: ignore[misc]
    """Puzzles of which the first `missing` cells are empty."""

    name, missing = "one-cell", (1, 1)

    def generate(self, count: int, seed: int) -> Puzzles:
        solutions = super().generate(count, seed).solutions
        puzzles = solutions.copy()
        for i, row in enumerate(puzzles):
            row[: self.missing[i % 2]] = 0
        return Puzzles(puzzles, solutions)


def test_puzzles_without_a_choice_teach_nothing(model: TransformersModel) -> None:
    with pytest.raises(InputError, match="task makes puzzles with a single empty cell"):
        puzzle_data(OneCell(), model, puzzles=4, validation=0, seed=1)
    task = OneCell()
    task.missing = (1, 3)
    data = puzzle_data(task, model, puzzles=10, validation=0, seed=1)
    assert len(data) == 5

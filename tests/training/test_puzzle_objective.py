"""Training on puzzles: clues are always given, the loss sees masked cells alone, and a run resumes to the same weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from anyorder.errors import InputError
from anyorder.models.hf.pretrained import load_transformers
from anyorder.orders.learned import save_order
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from anyorder.tasks import make_puzzle
from anyorder.tasks.puzzles import MASK_ID, EncoderConfig, new_encoder
from anyorder.training.config import PuzzleTrainConfig
from anyorder.training.objective import IGNORED
from anyorder.training.puzzle_objective import FillConfig, FillLoss, FillObjective, sample_masked_cells
from anyorder.training.run_folder import Cursor
from anyorder.training.train import train_task

TINY = EncoderConfig(16, 1, 2)
FILL = FillConfig(puzzles=50, validation_puzzles=20)
RUN = PuzzleTrainConfig(
    steps=4, batch_size=8, warmup=2, log_every=2, save_every=2, validate_every=0, ema=0.5, decay_from=1.0, device="cpu"
)


def fill_objective(seed: int = 1) -> FillObjective:
    task = make_puzzle("sudoku-4x4")
    return FillObjective(task, new_encoder(task, TINY, seed), FILL, batch_size=32, seed=seed)


def test_batches_give_the_clues_and_predict_masked_cells_alone() -> None:
    batch, cursor = next(fill_objective().batches(Cursor(), 0, 0, 1))
    tokens, labels = batch["tokens"], batch["labels"]
    masked = labels != IGNORED
    assert cursor.batch == 1
    assert tokens.shape == (32, 16)
    np.testing.assert_array_equal(masked, tokens == MASK_ID)
    assert (masked.sum(1) >= 1).all()
    assert (masked.sum(1) <= 12).all()  # at least 4 clues
    finished = np.where(masked, labels, tokens) - 2
    assert make_puzzle("sudoku-4x4").is_solved(np.zeros_like(finished), finished).all()


def test_the_number_of_masked_cells_is_uniform() -> None:
    empty = np.zeros((20_000, 16), bool)
    empty[:, 3:13] = True
    masked = sample_masked_cells(empty, np.random.default_rng(1))
    assert not (masked & ~empty).any()
    share = np.bincount(masked.sum(1), minlength=11) / len(masked)
    np.testing.assert_allclose(share, [0, *[0.1] * 10], atol=0.01)
    np.testing.assert_allclose(masked[:, 3:13].mean(0), 0.55, atol=0.02)


def test_batches_depend_on_their_number_alone() -> None:
    """Not on the process that makes them, nor on where a run was resumed."""
    wanted = [batch["tokens"] for batch, _ in _first(fill_objective().batches(Cursor(), 0, 0, 1), 4)]
    for rank in (0, 1):
        got = _first(fill_objective().batches(Cursor(), 0, rank, 2), 2)
        for (batch, cursor), number in zip(got, (rank, rank + 2), strict=True):
            np.testing.assert_array_equal(batch["tokens"], wanted[number])
            assert cursor.batch == number + 1
    resumed, _ = next(fill_objective().batches(Cursor(batch=3), 3, 0, 1))
    np.testing.assert_array_equal(resumed["tokens"], wanted[3])


def _first(batches: object, count: int) -> list:
    return [next(batches) for _ in range(count)]  # type: ignore[call-overload]


def test_loss_by_hand() -> None:
    torch.manual_seed(0)
    task = make_puzzle("sudoku-4x4")
    module = FillLoss(new_encoder(task, TINY, seed=1).eval())
    tokens = torch.randint(3, 7, (2, 16))
    labels = torch.full((2, 16), IGNORED)
    for row, cell, label in ((0, 3, 5), (1, 7, 4), (1, 8, 6)):
        tokens[row, cell], labels[row, cell] = MASK_ID, label
    loss, report = module(tokens, labels)
    logits = module.model(input_ids=tokens).logits
    chosen = torch.stack([logits[0, 3], logits[1, 7], logits[1, 8]])
    expected = F.cross_entropy(chosen, torch.tensor([5, 4, 6]))
    torch.testing.assert_close(loss, expected)
    assert report[0] == pytest.approx(loss.item())
    assert report[1] == pytest.approx((chosen.argmax(1) == torch.tensor([5, 4, 6])).float().mean().item())


def test_a_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    whole = train_task("sudoku-4x4", tmp_path / "whole", TINY, FILL, RUN)
    assert whole.finished
    assert set(whole.scores) == {"uniform", "margin"}
    assert (whole.model / "config.json").exists()
    train_task("sudoku-4x4", tmp_path / "parts", TINY, FILL, replace(RUN, steps=2))
    with pytest.raises(InputError, match="batch_size"):
        train_task("sudoku-4x4", tmp_path / "parts", TINY, FILL, replace(RUN, batch_size=4), resume=True)
    train_task("sudoku-4x4", tmp_path / "parts", TINY, FILL, RUN, resume=True)
    weights = [load_file(tmp_path / name / "checkpoint-00000004" / "model.safetensors") for name in ("whole", "parts")]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


def test_wrong_settings() -> None:
    with pytest.raises(InputError, match="unknown task 'chess'"):
        train_task("chess", "out", TINY, FILL, RUN)
    with pytest.raises(InputError, match="batch_size 0: expected a number of at least 1"):
        PuzzleTrainConfig(steps=1, batch_size=0)
    with pytest.raises(InputError, match="puzzles 0: expected"):
        FillConfig(puzzles=0)
    for orders, message in ((" ", "validation_orders is empty"), ("learned:sudoku-4x4/hidden", "for another model")):
        with pytest.raises(InputError, match=message):
            train_task("sudoku-4x4", "out", TINY, replace(FILL, validation_orders=orders), RUN)
    assert not Path("out").exists()


def test_learned_orders_validate(tmp_path: Path) -> None:
    save_order(
        PolicyNetwork(PolicyConfig(kind="confidence"), 1), tmp_path / "order", load_transformers("sudoku-4x4"), []
    )
    name = f"learned:{tmp_path}/order"
    result = train_task("sudoku-4x4", tmp_path / "run", TINY, replace(FILL, validation_orders=f"margin,{name}"), RUN)
    assert result.scores[name] == result.scores["margin"]  # it starts from margin


def test_no_orders_without_validation(tmp_path: Path) -> None:
    fill = replace(FILL, validation_orders="", validation_puzzles=0)
    assert train_task("sudoku-4x4", tmp_path / "run", TINY, fill, replace(RUN, steps=1)).scores == {}

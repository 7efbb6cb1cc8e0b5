"""Learn an order for a masked language model, from puzzles or from text. Knows nothing about flags."""

from collections.abc import Sequence
from pathlib import Path

from anyorder.data.corpus import read_lines
from anyorder.device import join_processes
from anyorder.errors import InputError, check_number
from anyorder.models.adapter import TransformersModel
from anyorder.models.pretrained import load_transformers
from anyorder.orders.policy import PolicyConfig
from anyorder.tasks import PuzzleTask, make_task
from anyorder.training.config import TrainConfig
from anyorder.training.fill_data import FillData, PuzzleData, TextData
from anyorder.training.learn_order import (
    LEARN_ORDER_RUN,
    LearnOrderResult,
    compiles_features,
    named_folder,
    run_order_objective,
    with_reward,
)
from anyorder.training.order_loss import RLConfig
from anyorder.training.order_objective import OrderObjective, with_sizes
from anyorder.training.rewards import TextReward
from anyorder.training.run_folder import check_run_folder

MASK_SHARE = 0.5
"""Default fraction of a text's tokens to mask."""
PUZZLES = 20_000
"""Number of different puzzles to learn from."""
SENTENCES, VALIDATION_SENTENCES = (512, 32), (1000, 200)
"""Default number of canvases per step and per validation, on CUDA and on the CPU; canvases are short."""


def learn_fill_order(
    model: str | Path | TransformersModel,
    out: str | Path,
    task: str | PuzzleTask | None = None,
    text: str | Path | Sequence[str] | None = None,
    mask_share: float | None = None,
    policy: PolicyConfig = PolicyConfig(),  # noqa: B008 - frozen
    rl: RLConfig = RLConfig(),  # noqa: B008
    run: TrainConfig = LEARN_ORDER_RUN,
    reward: str | TextReward | None = None,
    name: str | None = None,
    resume: bool = False,
    init: str | None = None,
) -> LearnOrderResult:
    """Learn the order in which a frozen masked model fills puzzles or text, by reinforcement learning.

    Args:
        model: A Transformers masked language model: a bundled name, a folder, a hub id, or a loaded model.
        out: The output folder: order/ (the best checkpoint in validation), `checkpoint-*/` (to resume from), log.jsonl.
        task: The puzzles to learn from, such as `sudoku-4x4`; they are generated.
        text: Texts to learn from, instead of a task: a file with one per line, or a list. Some tokens are masked.
        mask_share: Fraction of each text's tokens to mask; by default half.
        policy: Policy network.
        rl: Reinforcement learning: algorithm and reward. The reward `auto` is `accuracy`.
        run: Training schedule and optimizer.
        reward: Overrides the reward in `rl`: a name, or a function of filled texts and correct texts that returns a
            score for each. The text of a puzzle is its line of characters.
        name: Also save the result in the model's folder under this name, for the order `learned:NAME`; `default` makes
            it the model's default order.
        resume: Continue the run in `out` from its last checkpoint, if there is one.
        init: A learned order to start from, such as `learned:de-en/confidence`; the policy then has its kind and size.
    """
    out = Path(out)
    run.check_length()
    device = run.resolve_device()
    check_number("mask_share", mask_share, above=0, at_most=1)
    if (task is None) == (text is None):
        raise InputError("give either a task or texts to learn on")
    _check_options(rl, mask_share, for_puzzles=task is not None)
    check_run_folder(out, resume)
    puzzles = make_task(task) if isinstance(task, str) else task
    rl = with_sizes(with_reward(rl, reward).with_reward("accuracy"), device, SENTENCES, VALIDATION_SENTENCES)
    loaded = model if isinstance(model, TransformersModel) else load_transformers(model)
    destination = named_folder(loaded, name)
    join_processes(device)
    held_out = 0 if rl.validation_split == "none" else rl.validation_sentences or 0
    if puzzles is not None:
        data: FillData = PuzzleData(puzzles, loaded, PUZZLES, held_out, run.seed)
    else:
        assert text is not None
        lines = list(read_lines(Path(text), "replace")) if isinstance(text, str | Path) else text
        share = MASK_SHARE if mask_share is None else mask_share
        data = TextData(lines, loaded, share, (rl.min_length, rl.max_length), held_out, run.seed)
    objective = OrderObjective(data, policy, rl, run.seed, compiles_features(run), init)
    return run_order_objective(objective, run, out, destination, resume)


def _check_options(rl: RLConfig, mask_share: float | None, for_puzzles: bool) -> None:
    """Raise an `InputError` for an option that would be ignored."""
    usual = RLConfig()
    of_stores = ("split", "weights", "length", "validation_length")
    for name in (*of_stores, "min_length", "max_length") if for_puzzles else of_stores:
        if getattr(rl, name) != getattr(usual, name):
            raise InputError(f"is not for {'puzzles' if for_puzzles else 'texts with masks'}", name, RLConfig)
    if rl.validation_split not in (usual.validation_split, "none"):
        raise InputError(
            f"{rl.validation_split}: there are no splits, so only auto or none", "validation_split", RLConfig
        )
    if for_puzzles and mask_share is not None:
        raise InputError("is for texts: the empty cells of a puzzle are masked", "mask_share")

"""`anyorder learn-order`: a generation order, learned by reinforcement."""

from pathlib import Path

from anyorder.decoding.trajectory import INFILL
from anyorder.errors import InputError
from anyorder.learning import learn_order as library
from anyorder.learning.config import LEARN_ORDER_RUN, RLConfig
from anyorder.orders.policy import PolicyConfig
from anyorder.progress import is_main_process
from anyorder.training.config import TrainConfig


def learn_order(
    model: str,
    out: Path,
    data: list[str] | None = None,
    direction: str | None = None,
    task: str | None = None,
    text: Path | None = None,
    mask_share: float | None = None,
    init: str | None = None,
    policy: PolicyConfig = PolicyConfig(),  # noqa: B008 - frozen
    rl: RLConfig = RLConfig(),  # noqa: B008
    run: TrainConfig = LEARN_ORDER_RUN,
    name: str | None = None,
    resume: bool = False,
) -> None:
    """Learn the generation order of a trained model.

    It learns from translation pairs (--data, --direction), from generated puzzles (--task), or from lines of text in
    which some tokens are masked (--text). The model is frozen; a small policy network learns which position to fill
    next. Use the result like any other order: 'anyorder evaluate --orders margin,learned:OUT/order'. The same command
    runs on a CPU, on a GPU, or on many under 'accelerate launch' or 'torchrun'. Ctrl-C saves a checkpoint and stops.

    Args:
        model: The trained model: a bundled name (de-en, sudoku-4x4), a folder, or a hub id; hf:NAME is a Transformers
            masked language model.
        out: The output folder: order/ (the best checkpoint in validation), checkpoint-*/ (to resume from), log.jsonl.
        data: A store made by 'anyorder prepare' with this model's tokenizer, or several.
        direction: The translation direction, such as de-en. Several, separated by commas, share one order; 'all' is
            every direction that both the data and the model support.
        task: Puzzles to learn from, such as sudoku-4x4, for a Transformers masked language model.
        text: A file to learn from, one text per line, for a Transformers masked language model.
        mask_share: Fraction of each text's tokens to mask; by default half.
        init: A learned order to start from, such as learned:de-en/confidence; the policy then has its kind and size. By
            default, the policy starts from the heuristic order --policy.start.
        policy: Policy network.
        rl: Reinforcement learning: algorithm, reward and data.
        run: Training schedule and optimizer.
        name: Also save the result in the model's folder under this name, for --order learned:NAME; 'default' makes it
            the model's default order.
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    if task is not None or text is not None:
        if data is not None or direction is not None:
            raise InputError("--data and --direction are for translation: leave them out with --task and --text")
        task = task or INFILL
    elif data is None or direction is None:
        raise InputError("give --data and --direction (translation), --task (puzzles) or --text to learn on")
    result = library.learn_order(
        model,
        task or direction or "",
        out,
        data,
        text,
        mask_share,
        policy=policy,
        rl=rl,
        run=run,
        name=name,
        resume=resume,
        init=init,
    )
    if not is_main_process():
        return
    if result.order.exists():
        print(f"order: {result.order}")
    if not result.finished:
        print(f"stopped at step {result.steps}; continue with --resume")

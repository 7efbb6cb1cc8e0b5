"""`anyorder learn-order`: a generation order, learned by reinforcement."""

from pathlib import Path

from anyorder.orders.policy import PolicyConfig
from anyorder.progress import is_main_process
from anyorder.training import learn_order as library
from anyorder.training.config import TrainConfig
from anyorder.training.learn_order import LEARN_ORDER_RUN
from anyorder.training.order_loss import RLConfig


def learn_order(
    model: str,
    data: Path,
    out: Path,
    direction: str,
    policy: PolicyConfig = PolicyConfig(),  # noqa: B008 - frozen
    rl: RLConfig = RLConfig(),  # noqa: B008
    run: TrainConfig = LEARN_ORDER_RUN,
    name: str | None = None,
    resume: bool = False,
) -> None:
    """Learn the generation order of a trained model.

    The model stays as it is; a small network learns which position to fill next. Use the result wherever an order is
    used: 'anyorder evaluate --orders margin,learned:OUT/order'. The same command runs on one CPU, one GPU, or under
    'accelerate launch' / 'torchrun' on many. Ctrl-C stops it with a checkpoint.

    Args:
        model: The trained model: a bundled one (de-en), a folder, or a hub id.
        data: A store made by 'anyorder prepare' with this model's tokenizer.
        out: The folder of the run: order/ (the best in validation), checkpoint-*/ (to resume from), log.jsonl.
        direction: The direction to learn for, such as de-en; several, separated by commas, share one order.
        policy: The network.
        rl: Algorithm, reward and data.
        run: How long and how fast to learn.
        name: Also put the result beside the model under this name, for --order learned:NAME; 'default' makes it the
            model's own order.
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    result = library.learn_order(model, data, out, direction, policy, rl, run, name=name, resume=resume)
    if not is_main_process():
        return
    if result.order.exists():
        print(f"order: {result.order}")
    if not result.finished:
        print(f"stopped at step {result.steps}; continue with --resume")

"""`anyorder learn-order`: where to fill next, learned by reinforcement."""

import os
import shutil
from pathlib import Path

from anyorder.cli.common import check_folder, check_run_folder, limit_threads
from anyorder.data.store import Store
from anyorder.errors import InputError
from anyorder.files import replace_folder
from anyorder.models.translation import TranslationModel
from anyorder.orders.learned import FOLDER, PolicyConfig
from anyorder.progress import is_main_process
from anyorder.training.loop import train
from anyorder.training.order_task import OrderTask, RLConfig
from anyorder.training.task import Run, on_cuda

RUN = Run(learning_rate=1e-3, warmup=20, clip=1.0, weight_decay=0.0, ema=0.98, log_every=10, validate_every=100,
          save_every=100)  # fmt: skip


def learn_order(
    model: str,
    data: Path,
    out: Path,
    direction: str,
    policy: PolicyConfig = PolicyConfig(),  # noqa: B008 - frozen
    learning: RLConfig = RLConfig(),  # noqa: B008
    run: Run = RUN,
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
        out: The folder of the run: order/ (the best on the dev split), checkpoint-*/ (to resume from), log.jsonl.
        direction: The direction to learn for, such as de-en; several, separated by commas, share one order.
        policy: The network.
        learning: Algorithm, reward and data.
        run: How long and how fast to learn.
        name: Also put the result beside the model under this name, for --order learned:NAME; 'default' makes it the
            model's own order.
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    limit_threads()
    run.check()
    check_run_folder(out, resume)
    directions = [part.strip() for part in direction.split(",")]
    loaded = TranslationModel.from_pretrained(model)
    for one in directions:
        loaded.config.direction(one)
    if name is not None and (not name or Path(name).name != name):
        raise InputError(f"--name '{name}' is not a plain name")
    place = loaded.path / FOLDER / name if name and loaded.path else None
    if place:
        check_folder(place)
    compile = on_cuda(run) and run.compile != "no"
    task = OrderTask(Store(data), loaded, directions, policy, learning, run.seed, compile)
    train(task, run, out, resume)
    if place and is_main_process() and (out / "order").exists():  # stopped early there may be none yet
        partial = place.with_name(f"{name}.partial-{os.getpid()}")
        shutil.copytree(out / "order", partial)
        replace_folder(partial, place)

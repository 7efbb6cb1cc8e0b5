"""Learn a generation order: the library's function behind `anyorder learn-order`. Knows nothing about flags."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from anyorder.data.stores import Data, open_stores
from anyorder.device import join_processes
from anyorder.errors import InputError
from anyorder.files import atomic_folder, check_plain_name, check_writable
from anyorder.models.base import SavedModel
from anyorder.models.translation import TranslationModel
from anyorder.orders.policy import PolicyConfig
from anyorder.orders.storage import CONFIG, WEIGHTS
from anyorder.orders.storage import FOLDER as LEARNED_FOLDER
from anyorder.progress import is_main_process
from anyorder.training.config import TrainConfig, split_directions
from anyorder.training.loop import run_training
from anyorder.training.order_data import StoreOrderData
from anyorder.training.order_loss import RLConfig
from anyorder.training.order_objective import FOLDER, OrderObjective, with_sizes
from anyorder.training.rewards import TextReward, register_reward
from anyorder.training.run_folder import check_run_folder

LEARN_ORDER_RUN = TrainConfig(
    learning_rate=1e-3, warmup=20, weight_decay=0.0, ema=0.98, log_every=10, validate_every=100, save_every=100
)
"""The default config, suited to a small network."""


@dataclass(frozen=True)
class LearnOrderResult:
    """A learned order."""

    order: Path
    """The folder of the order that did best in validation; its name as an order is learned:PATH."""
    scores: dict[str, float]
    """Scores of the last validation, by name; empty if the store has no split for it."""
    steps: int
    """Number of training steps."""
    finished: bool
    """False if a signal stopped the run. It can be resumed, and there may be no order yet."""


def learn_order(
    model: str | Path | TranslationModel,
    data: Data,
    out: str | Path,
    direction: str | Sequence[str],
    policy: PolicyConfig = PolicyConfig(),  # noqa: B008 - frozen
    rl: RLConfig = RLConfig(),  # noqa: B008
    run: TrainConfig = LEARN_ORDER_RUN,
    reward: str | TextReward | None = None,
    name: str | None = None,
    resume: bool = False,
    init: str | None = None,
) -> LearnOrderResult:
    """Learn the generation order of a trained, frozen model by reinforcement learning.

    Args:
        model: The trained model: a bundled name, a folder, a hub id, or a loaded model.
        data: A store prepared with this model's tokenizer, or several.
        out: The output folder: order/ (the best checkpoint in validation), `checkpoint-*/` (to resume from), log.jsonl.
        direction: The translation direction, such as `de-en`. Several, separated by commas or as a list, share one
            order; `all` is every direction that both the data and the model support.
        policy: Policy network.
        rl: Reinforcement learning: algorithm, reward and data.
        run: Training schedule and optimizer.
        reward: Overrides the reward in `rl`: a name, or a function of hypotheses and references, as texts, that returns
            a score for each.
        name: Also save the result in the model's folder under this name, for the order `learned:NAME`; `default` makes
            it the model's default order.
        resume: Continue the run in `out` from its last checkpoint, if there is one.
        init: A learned order to start from, such as `learned:de-en/confidence`; the policy then has its kind and size.
    """
    out = Path(out)
    run.check_length()
    device = run.resolve_device()
    check_run_folder(out, resume)
    loaded = model if isinstance(model, TranslationModel) else TranslationModel.from_pretrained(model)
    stores = open_stores(data)
    directions = split_directions(direction)
    if directions == ["all"]:
        directions = [one for one in stores.directions if one in loaded.config.directions]
    if not directions:
        raise InputError(f"'{direction}': the data has no direction that the model translates", "direction")
    for each in directions:
        loaded.config.direction(each)
    destination = named_folder(loaded, name)
    rl = with_reward(rl, reward)
    join_processes(device)
    objective = translation_order_objective(
        stores, loaded, directions, policy, rl, run.seed, compile=compiles_features(run), device=device, init=init
    )
    return run_order_objective(objective, run, out, destination, resume)


def run_order_objective(
    objective: OrderObjective, run: TrainConfig, out: Path, destination: Path | None, resume: bool
) -> LearnOrderResult:
    """Learn an order and save it in the run folder. destination: where else to save it, such as with its model."""
    result = run_training(objective, run, out, resume)
    order = out / FOLDER
    if destination and is_main_process() and order.exists():  # a run that was stopped early may have none
        with atomic_folder(destination) as partial:
            for file in (CONFIG, WEIGHTS):
                shutil.copyfile(order / file, partial / file)
    return LearnOrderResult(order, result.scores, result.step, result.finished)


def translation_order_objective(
    data: Data,
    model: TranslationModel,
    directions: Sequence[str],
    policy: PolicyConfig,
    rl: RLConfig,
    seed: int,
    compile: bool = False,
    device: torch.device | None = None,
    init: str | None = None,
) -> OrderObjective:
    """The objective of learning an order for translation; see `StoreOrderData` and `OrderObjective`.

    Sizes not set in `rl` depend on the training device, which is the model's if not given.
    """
    pairs = StoreOrderData(data, model, directions, with_sizes(rl, device or model.device))
    return OrderObjective(pairs, policy, pairs.rl, seed, compile, init)


def named_folder(model: SavedModel, name: str | None) -> Path | None:
    """Where an order of that name is saved with the model."""
    if name is None:
        return None
    check_plain_name(name)
    if model.path is None:
        raise InputError(
            f"'{name}': this model was not loaded from a folder, so the order cannot be saved there", "name"
        )
    folder = model.path / LEARNED_FOLDER / name
    check_writable(folder)
    return folder


def with_reward(rl: RLConfig, reward: str | TextReward | None) -> RLConfig:
    """The config with this reward, by name or as a function, if one is given."""
    if reward is None:
        return rl
    if not isinstance(reward, str):
        function, reward = reward, getattr(reward, "__name__", type(reward).__name__)
        register_reward(reward)(function)
    return replace(rl, reward=reward)


def compiles_features(run: TrainConfig) -> bool:
    """Whether to compile the computation of the features."""
    return run.resolve_device().type == "cuda" and run.compile != "no"

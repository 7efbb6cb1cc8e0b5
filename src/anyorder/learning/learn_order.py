"""Learn a generation order: the library's function behind `anyorder learn-order`, and its training objective.

The algorithm is in `algorithm.py`; canvases, rewards and validation come from `data.py`. Knows nothing about flags.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from anyorder import progress
from anyorder.analysis.order_metrics import edge_share
from anyorder.data.corpus import read_lines
from anyorder.data.random_streams import random_for
from anyorder.data.store import Data, Stores, open_stores
from anyorder.decoder import Decoder
from anyorder.decoding.trajectory import INFILL, Trajectory
from anyorder.device import describe_device, inference_dtype, process_count
from anyorder.errors import InputError, check_number
from anyorder.files import atomic_folder, check_plain_name, check_writable
from anyorder.learning.algorithm import ActorCritic, OrderLoss, sample_rollouts
from anyorder.learning.config import LEARN_ORDER_RUN, STEP_SHARE, RLConfig
from anyorder.learning.data import LearningData, TranslationData, puzzle_data, text_data
from anyorder.learning.rewards import TextReward, register_reward
from anyorder.learning.rollout import OrderBatch, SamplingOrder
from anyorder.learning.verdict import LEARNED, verdict
from anyorder.memory import Halving
from anyorder.models.base import SavedModel
from anyorder.models.hf.pretrained import TransformersModel, load_transformers
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import Order, make_order, split_orders
from anyorder.orders.learned import CONFIG, WEIGHTS, LearnedOrder, save_order
from anyorder.orders.learned import FOLDER as LEARNED_FOLDER
from anyorder.orders.policy import PolicyConfig, PolicyNetwork, prediction_stats
from anyorder.progress import is_main_process
from anyorder.tasks import PuzzleTask, Task, Translation, make_task
from anyorder.tasks.masked import FEWEST, MASK_SHARE
from anyorder.training.config import TrainConfig, split_directions
from anyorder.training.loop import begin_run, run_training
from anyorder.training.objective import Objective, shuffled
from anyorder.training.run_folder import saved_settings

FOLDER = "order"
"""The subfolder of the run folder for the learned order."""
ALL = "all"
"""Every direction that both the data and the model support."""
PUZZLES = 20_000
"""Number of different puzzles to learn from."""
SHORT_SENTENCES, SHORT_VALIDATION = (512, 32), (1000, 200)
"""Default number of puzzles or texts per step and per validation, on CUDA and on the CPU: these canvases are short."""
SPEEDS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""At which a policy that decides how many positions to fill is validated."""
SELECTED = "score and passes"
"""By which its checkpoint is selected: the mean over the speeds of what is rewarded."""
Kind = Literal["translation", "texts with masks", "puzzles"]
_NEEDED: dict[Kind, str] = {"translation": "data", "texts with masks": "text"}
"""What a kind of task cannot be learned without."""
_SIZES = ("sentences", "rollouts", "validation_sentences")
_OF_STORES = ("split", "weights", "length", "validation_length")
_REFUSED: dict[Kind, tuple[str, ...]] = {
    "translation": ("text", "mask_share"),
    "texts with masks": ("data", *_OF_STORES),
    "puzzles": ("data", "text", "mask_share", *_OF_STORES, "min_length", "max_length"),
}
"""Arguments and settings of `RLConfig` that a kind of task has no use for."""


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
    verdict: str = ""
    """Whether the order is better than the heuristic orders of the validation, in words."""


def learn_order(
    model: str | Path | Decoder | TranslationModel | TransformersModel,
    task: str | Sequence[str] | Task,
    out: str | Path,
    data: Data | None = None,
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
    """Learn the generation order of a trained, frozen model by reinforcement learning.

    Args:
        model: The trained model: a bundled name, a folder, a hub id, or a loaded model or decoder. Only a Transformers
            masked language model solves puzzles and fills texts.
        task: What to learn it for: a direction such as `de-en` (several, separated by commas or as a list, share one
            order; `all` is every direction that both the data and the model support), `infill`, or a puzzle such as
            `sudoku-4x4`, by name or as an object.
        out: The output folder: order/ (the best checkpoint in validation), `checkpoint-*/` (to resume from), log.jsonl.
        data: For directions: a store prepared with this model's tokenizer, or several. Puzzles are generated.
        text: For `infill`: texts in which some tokens are masked, a file with one per line or a list.
        mask_share: For `infill`: the fraction of each text's tokens to mask; by default half.
        policy: Policy network.
        rl: Reinforcement learning: algorithm, reward and data.
        run: Training schedule and optimizer.
        reward: Overrides the reward in `rl`: a name, or a function of hypotheses and references, as texts, that returns
            a score for each. The text of a puzzle is its line of characters.
        name: Also save the result in the model's folder under this name, for the order `learned:NAME`; `default` makes
            it the model's default order.
        resume: Continue the run in `out` from its last checkpoint, if there is one.
        init: A learned order to start from, such as `learned:de-en/confidence`; the policy then has its kind and size.
    """
    out, began = Path(out), time.monotonic()
    kind, tasks = _read_task(task)
    check_number("mask_share", mask_share, above=0, at_most=1)
    _check_options(kind, rl, data=data, text=text, mask_share=mask_share)
    device = begin_run(run, out, resume)
    if not isinstance(reward, str | None):
        function, reward = reward, getattr(reward, "__name__", type(reward).__name__)
        register_reward(reward)(function)
    if reward is not None:
        rl = replace(rl, reward=reward)
    lines = list(read_lines(Path(text), "replace")) if isinstance(text, str | Path) else text or []
    called = model if isinstance(model, str | Path) else getattr(model, "name", "") or type(model).__name__
    what = f"{len(lines):,} lines of text" if kind == "texts with masks" else ", ".join(one.name for one in tasks)
    limit = f"{run.steps:,} steps" if run.steps is not None else f"{run.minutes:g} minutes"
    progress.say(f"learning an order for {called} on {what}, on {describe_device(device)}, for {limit}")
    # A run that is resumed keeps the sizes that were chosen for it.
    kept = saved_settings(out, "rl") if resume else {}
    sizes = {name: kept[name] for name in _SIZES if not getattr(rl, name) and isinstance(kept.get(name), int)}
    chosen, rl = rl, replace(rl, **sizes)
    frozen = _load(model, kind)
    destination = _named_folder(frozen, name)
    learning: LearningData
    if kind == "translation":
        stores = open_stores(data or ())
        learning = TranslationData(stores, frozen, _directions(tasks, stores, frozen), rl.with_sizes(device))
        rl = learning.rl
    else:
        short = SHORT_SENTENCES, SHORT_VALIDATION
        rl = rl.with_reward("accuracy").with_sizes(device, *short)
        # As many as at first, also if a run that is resumed validates on fewer of them.
        held_out = 0 if rl.validation_split == "none" else chosen.with_sizes(device, *short).validation_sentences or 0
        if kind == "puzzles":
            [puzzle] = tasks
            assert isinstance(puzzle, PuzzleTask)
            learning = puzzle_data(puzzle, frozen, PUZZLES, held_out, run.seed)
        else:
            share, lengths = mask_share or MASK_SHARE, (rl.min_length or FEWEST, rl.max_length)
            learning = text_data(lines, frozen, share, lengths, held_out, run.seed)
            rl = rl.with_lengths(FEWEST, frozen.max_length)
    if device.type != "cuda" and run.minutes is not None and not sizes and process_count() == 1:
        rl = _fit(rl, chosen, learning, run.minutes * 60)
    for validation in learning.validations.values():
        validation.keep_first(rl.validation_sentences or len(validation))
    compiles = device.type == "cuda" and run.compile != "no"
    objective = OrderObjective(learning, policy, rl, run.seed, compiles, init)
    _describe(learning, rl)
    result = run_training(objective, run, out, resume, began)
    order = out / FOLDER
    if destination and is_main_process() and order.exists():  # a run that was stopped early may have none
        with atomic_folder(destination) as partial:
            for file in (CONFIG, WEIGHTS):
                shutil.copyfile(order / file, partial / file)
    found = "" if not is_main_process() else objective.verdict(out, result.steps)
    return LearnOrderResult(order, result.scores, result.steps, result.finished, found)


def _fit(rl: RLConfig, chosen: RLConfig, data: LearningData, run_seconds: float) -> RLConfig:
    """Smaller sizes, where none were chosen, if a step or a validation would take too much of a run's time."""
    seconds = data.seconds_to_fill()
    fitted = rl.for_time(chosen, seconds, run_seconds)
    assert fitted.sentences is not None
    step = min(fitted.sentences, len(data)) * fitted.rollouts_per_sentence * seconds
    if step > STEP_SHARE * run_seconds:
        count = f"only about {max(1, round(run_seconds / step))} fit into the time, and hundreds are usual"
        progress.say(f"a step takes about {step:.0f} s: {count}")
    return fitted


def _describe(data: LearningData, rl: RLConfig) -> None:
    """Say what is learned from and validated on."""
    sizes = [f"{len(validation):,}" for validation in data.validations.values()]
    if len(sizes) > 1:
        sizes = [f"{size} for {name}" for size, name in zip(sizes, data.validations, strict=True)]
    validates = f"validates on {data.validated.format(', '.join(sizes))}" if sizes else "has nothing to validate on"
    orders = "1 order" if rl.rollouts_per_sentence == 1 else f"{rl.rollouts_per_sentence} orders"
    size = f"{min(rl.sentences or 0, len(data))} of them with {orders} each per step"
    progress.say(f"learns from {len(data):,} {data.unit}, {size}; {validates}")
    if data.note:
        progress.say(data.note)


def _read_task(task: str | Sequence[str] | Task) -> tuple[Kind, list[Task]]:
    """What is to be learned, and for which tasks."""
    names = [task] if isinstance(task, Task) else split_directions(task)
    tasks = [Translation(ALL) if name == ALL else make_task(name) for name in names]
    if all(isinstance(each, Translation) for each in tasks):
        return "translation", tasks
    if len(tasks) == 1 and isinstance(tasks[0], PuzzleTask):
        return "puzzles", tasks
    if len(tasks) == 1 and tasks[0].mode == INFILL:
        return "texts with masks", tasks
    named = ", ".join(each.name for each in tasks)
    raise InputError(f"{named}: an order is learned for one or several directions, for infill or for a puzzle", "task")


def _check_options(kind: Kind, rl: RLConfig, **arguments: object) -> None:
    """Raise an `InputError` for an argument or a setting that is missing or would be ignored."""
    if kind in _NEEDED and arguments[_NEEDED[kind]] is None:
        raise InputError(f"is missing: what to learn {kind} from", _NEEDED[kind])
    for name in _REFUSED[kind]:
        if name in arguments and arguments[name] is not None:
            raise InputError(f"is not for {kind}", name)
        if name not in arguments and getattr(rl, name) != getattr(RLConfig(), name):
            raise InputError(f"is not for {kind}", name, RLConfig)
    if kind != "translation" and rl.validation_split not in ("auto", "none"):
        found = f"{rl.validation_split}: there are no splits, so only auto or none"
        raise InputError(found, "validation_split", RLConfig)


def _load(model: Any, kind: Kind) -> Any:
    """The model, which must be one for this kind of task."""
    translates = kind == "translation"
    if isinstance(model, str | Path):
        return TranslationModel.from_pretrained(model) if translates else load_transformers(model)
    model = model.model if isinstance(model, Decoder) else model
    if not isinstance(model, TranslationModel if translates else TransformersModel):
        raise InputError(f"{getattr(model, 'name', model)}: is not a model for {kind}", "model")
    return model


def _directions(tasks: Sequence[Task], stores: Stores, model: TranslationModel) -> list[str]:
    """The directions to learn for."""
    directions = [task.name for task in tasks]
    if directions == [ALL]:
        directions = [one for one in stores.directions if one in model.config.directions]
    if not directions:
        raise InputError("the data has no direction that the model translates")
    return directions


def _named_folder(model: SavedModel, name: str | None) -> Path | None:
    """Where an order of that name is saved with the model."""
    if name is None:
        return None
    check_plain_name(name)
    if model.path is None:
        why = "this model was not loaded from a folder, so the order cannot be saved there"
        raise InputError(f"'{name}': {why}", "name")
    folder = model.path / LEARNED_FOLDER / name
    check_writable(folder)
    return folder


class OrderObjective(Objective[OrderBatch]):
    """Learn an order for a frozen model.

    rl: all sizes must be set. compile: whether to compile the computation of the features. init: a learned order to
    start from, whose kind and size the policy then has; if not given, it starts from a heuristic order or at random.
    """

    reports = ("reward", "edge share", "passes saved", "entropy", "loss", "value loss")
    shown = ("reward", "entropy", "edge share")
    unit = "rollouts"
    folder = FOLDER
    compiles = False
    learner: ActorCritic

    def __init__(
        self,
        data: LearningData,
        policy: PolicyConfig,
        rl: RLConfig,
        seed: int,
        compile: bool = False,
        init: str | None = None,
    ):
        self.rl = rl
        self.epochs = rl.epochs if rl.algorithm == "ppo" else 1
        self._data = data
        self.seed = seed
        self.validations = data.validations
        start = None if init is None else self._order_to_start_from(init, policy)
        self._init = "none" if start is None else start.fingerprint  # its weights, not its place
        torch.manual_seed(seed)
        config = policy if start is None else _as_asked(start.network.config, policy)
        self._decides_count = config.decides_count
        if config.decides_count and rl.rewards_steps:
            if rl.each_step == "yes":
                found = "yes: a policy that decides how many positions to fill is rewarded for the finished sentence"
                raise InputError(found, "each_step", RLConfig)
            self.rl = rl = replace(rl, each_step="no")
        if not config.decides_count and rl.passes_exponent != RLConfig().passes_exponent:
            found = f"{rl.passes_exponent:g}: is for a policy that decides how many positions to fill"
            raise InputError(found, "passes_exponent", RLConfig)
        self._passes: dict[str, list[tuple[float, float]]] = {}
        """Of the last validation; see `OrderRecord`."""
        network = PolicyNetwork(config, data.model.hidden_size)
        if start is not None:
            # An order that does not decide how many positions to fill learns that, too: it begins with the threshold.
            network.load_state_dict(network.state_dict() | start.network.state_dict())
        self.learner = ActorCritic(network, rl.has_value)
        self.module = OrderLoss(self.learner, rl)
        self.reward = data.reward(rl.reward)
        self._reference = None
        if rl.kl_coef:
            self._reference = self._one_order(make_order(rl.reference_order), "reference_order", RLConfig)
        self._stats_function = torch.compile(prediction_stats, dynamic=True) if compile else prediction_stats
        heuristics = rl.validation_orders.strip()
        self._heuristics = [make_order(name) for name in split_orders(heuristics)] if heuristics else []
        self.comparisons = len(self._heuristics)
        self._halving = Halving()
        self._counts: dict[str, dict[str, np.ndarray]] = {task: {} for task in self.validations}
        """Per task and order, what its score is computed from: of the heuristics, and of the last validation."""
        self._saved_counts: dict[str, dict[str, np.ndarray]] = {}
        """The same for the order that was saved."""
        smallest_epoch = len(data) if data.weights is None else int(np.floor(data.weights).sum())
        if smallest_epoch < rl.num_minibatches > 1:
            found = f"{rl.num_minibatches}: an epoch may have no more than {smallest_epoch} {data.unit}"
            raise InputError(found, "num_minibatches", RLConfig)

    def _one_order(self, order: Order, field: str, config: type | None = None) -> Order:
        """The order, bound to the model. It must be the same for all tasks of the data."""
        bound = [order.bind(self._data.model, task) for task in self._data.model_tasks]
        if len({each.identity for each in bound}) > 1:
            tasks = ", ".join(self._data.tasks)
            raise InputError(f"{order.name}: is not one order for {tasks}", field, config)
        return bound[0]

    def _order_to_start_from(self, name: str, policy: PolicyConfig) -> LearnedOrder:
        order = self._one_order(make_order(name), "init")
        if not isinstance(order, LearnedOrder):
            raise InputError(f"{name}: is not a learned order; policy.start takes heuristic ones", "init")
        if policy not in (_as_asked(same, policy) for same in (PolicyConfig(), order.network.config)):
            raise InputError("gives the policy its kind and size: leave the policy's options out", "init")
        return order

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        assert self.rl.sentences is not None
        data, size = self._data, min(self.rl.sentences, len(self._data))
        rows = shuffled(np.arange(len(data)), data.weights, random_for(self.seed, "epoch", epoch))
        # A batch of a few leftover sentences would make a step as large as that of a full batch, and far noisier.
        rows = rows[: max(size, len(rows) // size * size)]
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def build(self, rows: np.ndarray, random: np.random.Generator) -> OrderBatch:
        copies = self.rl.rollouts_per_sentence
        keys = random.integers(-(1 << 63), (1 << 63) - 1, len(rows) * copies)
        batch = self._data.batch(rows, keys, copies, random)
        return replace(batch, speeds=random.random(len(rows))) if self._decides_count else batch

    def minibatches(self, batch: OrderBatch, device: torch.device) -> list[dict[str, Any]]:
        """Roll out the sentences of a batch and compute the advantages."""
        rl, networks = self.rl, self.learner
        order = LearnedOrder(networks.policy, stats_function=self._stats_function)
        scale = networks.policy.config.init_scale
        sampler = SamplingOrder(order, rl.has_value, self._reference, scale, self._say_step)
        self._move(device)
        rollouts = sample_rollouts(self._data.model, batch, sampler, networks, self.reward, rl, self._halving)
        parts = rollouts.minibatches(rl.num_minibatches, rl.rollouts_per_sentence)
        return [{"rollouts": part} for part in parts]

    def _move(self, device: torch.device) -> None:
        """Everything to the device; the model in the precision for inference there."""
        if isinstance(self._reference, LearnedOrder):
            self._reference.network.to(device)
        if self._data.model.device != device:
            self._data.network.to(device=device, dtype=inference_dtype(device))

    def cost(self, batch: OrderBatch) -> tuple[int, float]:
        canvases, copies = batch.sentences.canvases, batch.sentences.copies
        lengths, sizes = canvases.lengths.astype(np.float64), canvases.packed.sizes
        sources = 0 if canvases.sources is None else len(canvases.sources.tokens)
        tokens = copies * float((lengths * sizes).sum()) + sources
        masked = copies * float((lengths * (lengths + 1)).sum()) / 2
        predicted = copies * float(lengths.sum()) if self.learner.policy.config.needs == "hidden" else masked
        return len(lengths) * copies, 2 * self._data.forward_flops(tokens, masked, predicted)

    def validate(self, average: nn.Module, quick: bool = False) -> dict[str, float]:
        """Score and edge share of the learned order, decoded greedily; the first time, also those of the heuristics."""
        scores: dict[str, float] = {}
        learned, model = self.validation_order(average)
        for task, validation in self.validations.items():
            if self._decides_count:
                self._validate_speeds(task, learned, model, scores)
            else:
                trajectories = self._decode(task, LEARNED, learned, model)
                scores[f"{self._data.metric} {task}"] = validation.score(trajectories)
                scores[f"edge share {task}"] = edge_share([np.array(one.steps) for one in trajectories])
            for order in () if quick else self._heuristics:
                scores[f"{order.name} {task}"] = validation.score(self._decode(task, order.name, order, model))
        return scores

    def _validate_speeds(self, task: str, learned: Order, model: SavedModel, scores: dict[str, float]) -> None:
        """Score and forward passes at several speeds, and the mean of what is rewarded: score times passes saved."""
        validation, metric = self.validations[task], self._data.metric
        products, passes = [], []
        for speed in SPEEDS:
            name = LEARNED if speed == 0 else f"{LEARNED} at speed {speed:g}"
            trajectories = self._decode(task, name, learned, model, f"learned:{speed:g}")
            score, forwards = validation.score(trajectories), [one.forwards for one in trajectories]
            saved = np.mean([(one.length - one.forwards + 1) / max(one.length, 1) for one in trajectories])
            products.append(score * saved ** (self.rl.passes_exponent * speed))
            scores[f"{metric} {task} at speed {speed:g}"] = score
            scores[f"passes {task} at speed {speed:g}"] = float(np.mean(forwards))
            passes.append((speed, float(np.mean(forwards))))
        self._passes[task] = passes  # an interrupted validation leaves none
        scores[f"{metric} {task}"] = scores[f"{metric} {task} at speed 0"]
        scores[f"{SELECTED} {task}"] = float(np.mean(products))

    def _decode(
        self, task: str, name: str, order: Order, model: SavedModel, schedule: str | int = "one"
    ) -> list[Trajectory]:
        validation, done = self.validations[task], 0

        def say(count: int) -> None:
            nonlocal done
            done += count
            self.on_progress(f"validating {name}: {done} of {len(validation)} {self._data.unit}")

        trajectories = validation.decode(order, model, schedule=schedule, on_progress=say)
        self._counts[task][name] = validation.counts(trajectories)
        return trajectories

    def _say_step(self, step: int, most: int) -> None:
        self.on_progress(f"rollouts: {step} of {most} positions filled")

    def verdict(self, out: Path, steps: int) -> str:
        """Whether the saved order is better than the heuristics it was compared with, in words."""
        data, names = self._data, [order.name for order in self._heuristics]
        return verdict(
            out, steps, data.metric, data.unit, self.validations, names, self._saved_counts, self._selected_by
        )

    def validation_order(self, average: nn.Module) -> tuple[Order, SavedModel]:
        assert isinstance(average, ActorCritic)
        self._move(next(average.parameters()).device)
        return LearnedOrder(average.policy), self._data.model

    @property
    def _selected_by(self) -> str:
        return SELECTED if self._decides_count else self._data.metric

    def selection_metric(self, scores: dict[str, float]) -> float:
        validated = [scores[f"{self._selected_by} {task}"] for task in self.validations]
        return sum(validated) / len(validated)

    def save(self, average: nn.Module, out: Path) -> None:
        assert isinstance(average, ActorCritic)
        data = self._data
        tasks = list(dict.fromkeys([*data.model_tasks, *data.tasks]))
        self._saved_counts = {task: dict(counts) for task, counts in self._counts.items()}
        passes = {"passes": self._passes} if self._passes else {}
        save_order(average.policy, out / self.folder, data.model, tasks, rl=asdict(self.rl), seed=self.seed, **passes)

    def fingerprint(self) -> dict[str, object]:
        return {
            "objective": "order",
            **self._data.fingerprint(),
            "policy": self.learner.policy.config,
            "init": self._init,
            "rl": self.rl,
        }


def _as_asked(config: PolicyConfig, policy: PolicyConfig) -> PolicyConfig:
    """A learned order's config with what a policy that starts from it may change: dropout, and a count to learn."""
    return replace(config, dropout=policy.dropout, count=policy.count if config.count == "one" else config.count)

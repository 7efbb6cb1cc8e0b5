"""The verbs that train: `anyorder pretrain`, `train`, `train-task` and `learn-order`."""

import shlex
from pathlib import Path

from anyorder.decoding.trajectory import INFILL
from anyorder.errors import InputError
from anyorder.learning import learn_order as learning
from anyorder.learning.config import LEARN_ORDER_RUN, RLConfig
from anyorder.models.native.storage import local_folder
from anyorder.models.native.transformer import TransformerConfig
from anyorder.orders.learned import load_order
from anyorder.orders.policy import PolicyConfig
from anyorder.progress import is_main_process
from anyorder.tasks.puzzles import EncoderConfig
from anyorder.training import train as training
from anyorder.training.config import PuzzleTrainConfig, TextTrainConfig, TrainConfig
from anyorder.training.mlm_objective import MLMConfig
from anyorder.training.puzzle_objective import FillConfig
from anyorder.training.translation_objective import MaskingConfig


def pretrain(
    data: list[str],
    out: Path,
    transformer: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
    mlm: MLMConfig = MLMConfig(),  # noqa: B008
    run: TextTrainConfig = TextTrainConfig(),  # noqa: B008
    init: str | None = None,
    resume: bool = False,
) -> None:
    """Train a masked language model.

    It trains on a store's monolingual text, or on both sides of its training pairs if it has none. Initialize a
    translation model from the result with 'anyorder train --init RUN/model'.

    Args:
        data: A store made by 'anyorder prepare', or several that share one vocabulary.
        out: The output folder: model/, checkpoint-*/ (to resume from), log.jsonl (training curves).
        transformer: Model size.
        mlm: Training objective.
        run: Training schedule and optimizer.
        init: A model to initialize from (a folder, a bundled name, a hub id).
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    _report(training.pretrain_model(data, out, transformer, mlm, run, init, resume))


def train(
    data: list[str],
    out: Path,
    transformer: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
    masking: MaskingConfig = MaskingConfig(),  # noqa: B008
    run: TextTrainConfig = TextTrainConfig(),  # noqa: B008
    directions: str = "",
    init: str | None = None,
    resume: bool = False,
) -> None:
    """Train an undirected translation model.

    The same command runs on a CPU, on a GPU, or on many under 'accelerate launch' or 'torchrun'. Ctrl-C saves a
    checkpoint and stops.

    Args:
        data: A store made by 'anyorder prepare', or several that share one vocabulary, each with two languages.
        out: The output folder: model/ (to translate with), checkpoint-*/ (to resume from), log.jsonl (training curves).
        transformer: Model size.
        masking: Training objective and data.
        run: Training schedule and optimizer.
        directions: Directions to train, such as de-en, separated by commas; by default both directions of every store.
        init: A model to initialize from, such as a pretrained one (a folder, a bundled name, a hub id).
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    _report(training.train_model(data, out, transformer, masking, run, init, resume, directions))


def train_task(
    task: str,
    out: Path,
    encoder: EncoderConfig = EncoderConfig(),  # noqa: B008 - frozen
    fill: FillConfig = FillConfig(),  # noqa: B008
    run: PuzzleTrainConfig = PuzzleTrainConfig(),  # noqa: B008
    resume: bool = False,
) -> None:
    """Train a masked model to solve puzzles.

    The puzzles are generated, so there is no data to prepare. The result is a Transformers model (BertForMaskedLM):
    pass its folder to 'evaluate', 'infill', 'learn-order' or 'explore'. The same command runs on a CPU, on a GPU, or on
    many under 'accelerate launch' or 'torchrun'. Ctrl-C saves a checkpoint and stops.

    Args:
        task: The kind of puzzle: sudoku-4x4, sudoku-9x9, or a task that a plugin registers.
        out: The output folder: model/, checkpoint-*/ (to resume from), log.jsonl (training curves).
        encoder: Model size.
        fill: Training and validation puzzles.
        run: Training schedule and optimizer.
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    _report(training.train_task(task, out, encoder, fill, run, resume))


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
        init: A learned order to start from, such as learned:de-en/confidence; the policy then has its kind and size,
            and may learn a count. By default, the policy starts from the heuristic order --policy.start.
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
    result = learning.learn_order(
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
    _report(result)
    if result.verdict and is_main_process():
        print(f"result: {result.verdict}")
        if result.steps and result.order.exists():
            print(f"to evaluate it: {_evaluation(model, direction, task, text, result.order)}")


def _evaluation(model: str, direction: str | None, task: str | None, text: Path | None, order: Path) -> str:
    """The command that scores a learned order on what was not used to learn it."""
    command, folder = ["anyorder", "evaluate", "--model", model], local_folder(model.removeprefix("hf:"))
    if text is not None:
        command += ["--text", "OTHER-LINES.txt"]
    elif task is None and direction is not None:
        one = direction.split(",")[0].strip()
        source, target = one.split("-") if "-" in one else ("SOURCE", "TARGET")
        command += ["--direction", one]
        if not (folder / f"sample.{source}").exists():
            command += ["--source", f"test.{source}", "--reference", f"test.{target}"]
    elif not (folder / "sample.puzzles.txt").exists():
        command += ["--source", "PUZZLES.txt"]
    orders = ["--orders", f"margin,learned:{order}"]
    if load_order(order)[1].policy.decides_count:
        orders = ["--orders", f"learned:{order}", "--schedule", "one,learned:0,learned:0.5,learned:1"]
    return shlex.join([*command, *orders])


def _report(result: training.TrainResult | learning.LearnOrderResult) -> None:
    """Say where the model or order is, or how to continue."""
    if not is_main_process():
        return
    kind, place = ("order", result.order) if isinstance(result, learning.LearnOrderResult) else ("model", result.model)
    if place.exists():
        print(f"{kind}: {place}")
    if not result.finished:
        print("continue with --resume")

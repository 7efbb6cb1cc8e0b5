"""Train a model: the library's functions behind `anyorder train`, `pretrain` and `train-task`. Knows no flags."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from anyorder.data.store import Data, Split, open_stores
from anyorder.errors import InputError
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import ModelConfig, TranslationModel
from anyorder.tasks import PuzzleTask, make_puzzle
from anyorder.tasks.puzzles import EncoderConfig, new_encoder
from anyorder.training.config import (
    DeepNorm,
    PuzzleTrainConfig,
    TextTrainConfig,
    choose_by_device,
    split_directions,
)
from anyorder.training.loop import TrainResult as TrainResult
from anyorder.training.loop import begin_run, run_training
from anyorder.training.mlm_objective import MLMConfig, MLMObjective, text_split
from anyorder.training.optimizer import scale_branches, use_deepnorm
from anyorder.training.puzzle_objective import FillConfig, FillObjective
from anyorder.training.translation_objective import MaskingConfig, TranslationObjective


def train_model(
    data: Data,
    out: str | Path,
    transformer: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
    masking: MaskingConfig = MaskingConfig(),  # noqa: B008
    run: TextTrainConfig = TextTrainConfig(),  # noqa: B008
    init: str | Path | None = None,
    resume: bool = False,
    directions: str | Sequence[str] = (),
) -> TrainResult:
    """Train an undirected translation model, all directions at once.

    Args:
        data: A prepared store, or several that share one vocabulary, each with two languages: the model then translates
            between the languages of each, and a batch mixes their pairs.
        out: The folder of the run: model/ (to translate with), `checkpoint-*/` (to resume from), log.jsonl (curves).
        transformer: Size of the model.
        masking: The objective and its data.
        run: How long and how fast to train.
        init: A model to start from (a folder, a bundled name, a hub id), such as a pretrained one.
        resume: Continue the run in `out` from its last checkpoint, if there is one.
        directions: The directions to learn, such as `de-en`; by default all directions of the stores.
    """
    device = begin_run(run, Path(out), resume)
    stores = open_stores(data)
    model = new_model(stores, transformer, init, run.seed, run.deepnorm)
    batch_tokens = run.batch_tokens or max(default_batch_tokens(store.split("train"), device) for store in stores)
    fixed, chosen = device.type == "cuda", split_directions(directions)
    objective = TranslationObjective(stores, model, masking, batch_tokens, run.seed, fixed, chosen, run.deepnorm)
    return run_training(objective, run, Path(out), resume)


def pretrain_model(
    data: Data,
    out: str | Path,
    transformer: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
    mlm: MLMConfig = MLMConfig(),  # noqa: B008
    run: TextTrainConfig = TextTrainConfig(),  # noqa: B008
    init: str | Path | None = None,
    resume: bool = False,
) -> TrainResult:
    """Train a masked language model, to initialize a translation model.

    It learns from a store's monolingual text, or from both sides of its training pairs if it has none.

    Args:
        data: A prepared store, or several that share one vocabulary.
        out: The folder of the run: model/, `checkpoint-*/` (to resume from), log.jsonl (curves).
        transformer: Size of the model.
        mlm: The objective.
        run: How long and how fast to train.
        init: A model to start from (a folder, a bundled name, a hub id).
        resume: Continue the run in `out` from its last checkpoint, if there is one.
    """
    device = begin_run(run, Path(out), resume)
    stores = open_stores(data)
    model = new_model(stores, transformer, init, run.seed, run.deepnorm)
    batch_tokens = run.batch_tokens or max(default_batch_tokens(text_split(store), device) for store in stores)
    objective = MLMObjective(stores, model, mlm, batch_tokens, run.seed, device.type == "cuda", run.deepnorm)
    return run_training(objective, run, Path(out), resume)


def train_task(
    task: str | PuzzleTask,
    out: str | Path,
    encoder: EncoderConfig = EncoderConfig(),  # noqa: B008 - frozen
    fill: FillConfig = FillConfig(),  # noqa: B008
    run: PuzzleTrainConfig = PuzzleTrainConfig(),  # noqa: B008
    resume: bool = False,
) -> TrainResult:
    """Train a masked model on generated puzzles of a task.

    Args:
        task: The kind of puzzle: `sudoku-4x4`, `sudoku-9x9`, or the name of a registered task.
        out: The output folder: model/ (a Transformers model), `checkpoint-*/` (to resume from), log.jsonl.
        encoder: Model size.
        fill: Training and validation puzzles.
        run: How long and how fast to train.
        resume: Continue the run in `out` from its last checkpoint, if there is one.
    """
    task = make_puzzle(task)
    device = begin_run(run, Path(out), resume)
    model = new_encoder(task, encoder, run.seed)
    batch_size = choose_by_device(run.batch_size, device, cuda=1024, cpu=128)
    return run_training(FillObjective(task, model, fill, batch_size, run.seed), run, Path(out), resume)


def new_model(
    data: Data, transformer: TransformerConfig, init: str | Path | None, seed: int, deepnorm: DeepNorm = "auto"
) -> TranslationModel:
    """A new model for the languages of one or several stores, or `init`, which has its own `TransformerConfig`.

    deepnorm: Whether to initialize a new model with DeepNorm; see `TextTrainConfig`.
    """
    stores = open_stores(data)
    where = ", ".join(str(store.path) for store in stores)
    if init is None:
        torch.manual_seed(seed)
        config = ModelConfig(transformer, len(stores.vocabulary), stores.languages, stores.text)
        model = TranslationModel(config, stores.vocabulary)
        if use_deepnorm(deepnorm, transformer.num_layers):
            scale_branches(model.transformer)
        return model
    model = TranslationModel.from_pretrained(init)
    if model.vocabulary.fingerprint != stores.vocabulary.fingerprint:
        raise InputError(
            f"wrong vocabulary: {where} has {stores.vocabulary.fingerprint}, "
            f"{init} was trained with {model.vocabulary.fingerprint}; prepare the data with the tokenizer of {init}"
        )
    if not set(stores.languages) <= set(model.config.languages):
        raise InputError(f"{init} knows {model.config.languages}, {where} holds {stores.languages}")
    if transformer not in (TransformerConfig(), model.config.transformer):
        raise InputError(f"cannot be set: {init} has its own, {model.config.transformer}", "transformer")
    model.config = replace(model.config, predicts_length=True)
    return model


def default_batch_tokens(split: Split, device: torch.device) -> int:
    """Tokens per batch that suit the device and fit the longest pair."""
    longest = sum(int(side.lengths.max()) + 2 for side in split.sides.values())
    return choose_by_device(None, device, cuda=32_768, cpu=max(2_048, longest))

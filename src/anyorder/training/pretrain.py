"""Train a masked language model: the library's function behind `anyorder pretrain`. Knows nothing about flags."""

from pathlib import Path

from anyorder.data.stores import Data, open_stores
from anyorder.device import join_processes
from anyorder.models.transformer import TransformerConfig
from anyorder.training.config import TextTrainConfig
from anyorder.training.loop import run_training
from anyorder.training.mlm_objective import MLMConfig, MLMObjective, text_split
from anyorder.training.run_folder import check_run_folder
from anyorder.training.train import TrainResult, default_batch_tokens
from anyorder.training.translation_objective import new_model


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
    out = Path(out)
    run.check_length()
    device = run.resolve_device()
    check_run_folder(out, resume)
    join_processes(device)
    stores = open_stores(data)
    model = new_model(stores, transformer, init, run.seed, run.deepnorm)
    batch_tokens = run.batch_tokens or max(default_batch_tokens(text_split(store), device) for store in stores)
    objective = MLMObjective(stores, model, mlm, batch_tokens, run.seed, device.type == "cuda", run.deepnorm)
    result = run_training(objective, run, out, resume)
    return TrainResult(out / "model", result.scores, result.step, result.finished)

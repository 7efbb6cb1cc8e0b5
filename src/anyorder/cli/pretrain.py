"""`anyorder pretrain`: a masked language model from a store's monolingual text."""

from pathlib import Path

from anyorder.cli.common import check_run_folder, limit_threads
from anyorder.data.store import Store
from anyorder.models.transformer import TransformerConfig
from anyorder.training.loop import train as run_training
from anyorder.training.pretrain import MLMConfig, PretrainTask
from anyorder.training.task import TextTrainConfig, on_cuda
from anyorder.training.translation import new_model


def pretrain(
    data: Path,
    out: Path,
    shape: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
    cloze: MLMConfig = MLMConfig(),  # noqa: B008
    run: TextTrainConfig = TextTrainConfig(),  # noqa: B008
    init: str | None = None,
    resume: bool = False,
) -> None:
    """Train a masked language model.

    It reads the store's monolingual text, or both sides of its training pairs where it has none. Start a translation
    model from the result with 'anyorder train --init RUN/model'.

    Args:
        data: A store made by 'anyorder prepare'.
        out: The folder of the run: model/, checkpoint-*/ (to resume from), log.jsonl (curves).
        shape: Size of the model.
        cloze: The objective.
        run: How long and how fast to train.
        init: A model to start from (a folder, a bundled name, a hub id).
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    limit_threads()
    run.check()
    check_run_folder(out, resume)
    store = Store(data)
    model = new_model(store, shape, init, run.seed)
    task = PretrainTask(store, model, cloze, run.batch_tokens, run.seed, fixed=on_cuda(run))
    run_training(task, run, out, resume)

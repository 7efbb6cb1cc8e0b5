"""`anyorder train`: an undirected translation model from a store."""

from pathlib import Path

from anyorder.cli.common import check_run_folder, limit_threads
from anyorder.data.store import Store
from anyorder.models.transformer import TransformerConfig
from anyorder.training.loop import train as run_training
from anyorder.training.task import TextTrainConfig, on_cuda
from anyorder.training.translation import MaskingConfig, TranslationTask, new_model


def train(
    data: Path,
    out: Path,
    shape: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
    masking: MaskingConfig = MaskingConfig(),  # noqa: B008
    run: TextTrainConfig = TextTrainConfig(),  # noqa: B008
    init: str | None = None,
    resume: bool = False,
) -> None:
    """Train an undirected translation model.

    The same command runs on one CPU, one GPU, or under 'accelerate launch' / 'torchrun' on many. Ctrl-C stops it with a
    checkpoint.

    Args:
        data: A store made by 'anyorder prepare'.
        out: The folder of the run: model/ (to translate with), checkpoint-*/ (to resume from), log.jsonl (curves).
        shape: Size of the model.
        masking: The objective and its data.
        run: How long and how fast to train.
        init: A model to start from (a folder, a bundled name, a hub id), such as a pretrained one.
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    limit_threads()
    run.check()
    check_run_folder(out, resume)
    store = Store(data)
    model = new_model(store, shape, init, run.seed)
    task = TranslationTask(store, model, masking, run.batch_tokens, run.seed, fixed=on_cuda(run))
    run_training(task, run, out, resume)

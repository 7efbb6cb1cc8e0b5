"""`anyorder train`: an undirected translation model from a store."""

from pathlib import Path

from anyorder.cli.common import several
from anyorder.models.transformer import TransformerConfig
from anyorder.progress import is_main_process
from anyorder.training.config import TextTrainConfig
from anyorder.training.train import TrainResult, train_model
from anyorder.training.translation_objective import MaskingConfig


def train(
    data: list[str] | str,
    out: Path,
    transformer: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
    masking: MaskingConfig = MaskingConfig(),  # noqa: B008
    run: TextTrainConfig = TextTrainConfig(),  # noqa: B008
    directions: str = "",
    init: str | None = None,
    resume: bool = False,
) -> None:
    """Train an undirected translation model.

    The same command runs on one CPU, one GPU, or under 'accelerate launch' / 'torchrun' on many. Ctrl-C stops it with a
    checkpoint.

    Args:
        data: A store made by 'anyorder prepare', or several that share one vocabulary, each with two languages.
        out: The folder of the run: model/ (to translate with), checkpoint-*/ (to resume from), log.jsonl (curves).
        transformer: Size of the model.
        masking: The objective and its data.
        run: How long and how fast to train.
        directions: The directions to learn, such as de-en, separated by commas; both of every store if not given.
        init: A model to start from (a folder, a bundled name, a hub id), such as a pretrained one.
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    show_result(train_model(several(data), out, transformer, masking, run, init, resume, directions))


train.positionals = {  # type: ignore[attr-defined]
    "--data": {
        "nargs": "+",
        "required": True,
        "metavar": "STORE",
        "help": "a store made by 'anyorder prepare', or several that share one vocabulary, each with two languages",
    }
}


def show_result(result: TrainResult) -> None:
    """Say where the model is, or how to continue."""
    if not is_main_process():
        return
    if result.model.exists():
        print(f"model: {result.model}")
    if not result.finished:
        print(f"stopped at step {result.steps}; continue with --resume")

"""`anyorder train`: an undirected translation model from a store."""

from pathlib import Path

from anyorder.models.native.transformer import TransformerConfig
from anyorder.progress import is_main_process
from anyorder.training.config import TextTrainConfig
from anyorder.training.train import TrainResult, train_model
from anyorder.training.translation_objective import MaskingConfig


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
    show_result(train_model(data, out, transformer, masking, run, init, resume, directions))


def show_result(result: TrainResult) -> None:
    """Say where the model is, or how to continue."""
    if not is_main_process():
        return
    if result.model.exists():
        print(f"model: {result.model}")
    if not result.finished:
        print(f"stopped at step {result.steps}; continue with --resume")

"""`anyorder pretrain`: a masked language model from a store's monolingual text."""

from pathlib import Path

from anyorder.cli.train import show_result
from anyorder.models.native.transformer import TransformerConfig
from anyorder.training.config import TextTrainConfig
from anyorder.training.mlm_objective import MLMConfig
from anyorder.training.train import pretrain_model


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
    show_result(pretrain_model(data, out, transformer, mlm, run, init, resume))

"""`anyorder train-task`: a masked model for puzzles, which are generated on the way."""

from pathlib import Path

from anyorder.cli.train import show_result
from anyorder.tasks.encoder import EncoderConfig
from anyorder.training import train_task as library
from anyorder.training.fill_objective import FillConfig
from anyorder.training.train_task import PuzzleTrainConfig


def train_task(
    task: str,
    out: Path,
    encoder: EncoderConfig = EncoderConfig(),  # noqa: B008 - frozen
    fill: FillConfig = FillConfig(),  # noqa: B008
    run: PuzzleTrainConfig = PuzzleTrainConfig(),  # noqa: B008
    resume: bool = False,
) -> None:
    """Train a masked model to solve puzzles.

    The puzzles are generated, so there is no data to prepare. The result is a Transformers model (BertForMaskedLM) that
    'evaluate', 'infill', 'learn-order' and 'explore' take by its folder. The same command runs on one CPU, one GPU, or
    under 'accelerate launch' / 'torchrun' on many. Ctrl-C stops it with a checkpoint.

    Args:
        task: The puzzles: sudoku-4x4, sudoku-9x9, or a task that a plugin registers.
        out: The folder of the run: model/, checkpoint-*/ (to resume from), log.jsonl (curves).
        encoder: Size of the model.
        fill: The objective's data.
        run: How long and how fast to train.
        resume: Continue the run in 'out' from its last checkpoint, if there is one.
    """
    show_result(library.train_task(task, out, encoder, fill, run, resume))

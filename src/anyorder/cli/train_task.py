"""`anyorder train-task`: train a masked model on generated puzzles."""

from pathlib import Path

from anyorder.cli.train import show_result
from anyorder.tasks.puzzles import EncoderConfig
from anyorder.training import train as library
from anyorder.training.config import PuzzleTrainConfig
from anyorder.training.puzzle_objective import FillConfig


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
    show_result(library.train_task(task, out, encoder, fill, run, resume))

"""Train a model for puzzles: the library's function behind `anyorder train-task`. Knows nothing about flags."""

from dataclasses import dataclass
from pathlib import Path

from anyorder.device import join_processes
from anyorder.errors import check_number
from anyorder.tasks import PuzzleTask, make_task
from anyorder.tasks.encoder import EncoderConfig, new_encoder
from anyorder.training.config import TrainConfig, choose_by_device
from anyorder.training.fill_objective import FillConfig, FillObjective
from anyorder.training.loop import run_training
from anyorder.training.run_folder import check_run_folder
from anyorder.training.train import TrainResult

CUDA_BATCH, CPU_BATCH = 1024, 128


@dataclass(frozen=True)
class PuzzleTrainConfig(TrainConfig):
    """How long and how fast to train, with batches measured in puzzles."""

    batch_size: int | None = None
    """Puzzles per batch; by default 1,024 on CUDA and 128 on the CPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("batch_size", self.batch_size, at_least=1, at_most=1 << 20, config=type(self))


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
    out = Path(out)
    run.check_length()
    device = run.resolve_device()
    task = make_task(task) if isinstance(task, str) else task
    check_run_folder(out, resume)
    join_processes(device)
    model = new_encoder(task, encoder, run.seed)
    batch_size = choose_by_device(run.batch_size, device, cuda=CUDA_BATCH, cpu=CPU_BATCH)
    objective = FillObjective(task, model, fill, batch_size, run.seed)
    result = run_training(objective, run, out, resume)
    return TrainResult(out / "model", result.scores, result.step, result.finished)

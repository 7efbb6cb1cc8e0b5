"""The part of `anyorder evaluate` that is for puzzles: answers are right or wrong, and there is no direction."""

from collections.abc import Sequence
from pathlib import Path

from anyorder import progress
from anyorder.data.corpus import read_parallel
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import check_systems
from anyorder.device import Device, join_processes, resolve_device
from anyorder.errors import InputError
from anyorder.evaluation.accuracy import AccuracyEvaluation, score_puzzles
from anyorder.evaluation.evaluate_puzzles import default_puzzle_orders, evaluate_puzzles, task_of
from anyorder.evaluation.significance import Test
from anyorder.evaluation.systems import Systems
from anyorder.filler import load_filler
from anyorder.orders import make_order, split_orders
from anyorder.tasks import PuzzleTask
from anyorder.tasks.puzzles import read_puzzles

SAMPLE = ("sample.puzzles.txt", "sample.solutions.txt")
"""The test set that a model may come with."""


def score_puzzle_orders(
    model: str,
    task: str | None,
    source: Path | None,
    references: Sequence[Path],
    orders: str | None,
    config: DecodingConfig,
    device: Device,
    limit: int | None,
    strict: bool,
    against: str | None,
    test: Test,
    samples: int,
    schedules: Sequence[str],
    revisions: Sequence[str],
) -> AccuracyEvaluation:
    """Solve puzzles in several orders. Solutions are optional: without them, the task's rules decide."""
    _check_solutions(references)
    if references and source is None:
        raise InputError("--reference needs --source")
    names = None if orders is None else split_orders(orders)
    for name in names or ():
        make_order(name)
    place = resolve_device(device)
    join_processes(place)
    filler = load_filler(model, place)
    rules = task_of(filler, task)
    files = [source, *references] if source else _sample(filler.model.path, model)
    lines = list(read_parallel(files, "strict" if strict else "replace"))[:limit]
    if not lines:
        raise InputError(f"{files[0]}: is empty")
    given, *solutions = (list(column) for column in zip(*lines, strict=True))
    puzzles = read_puzzles(rules, given, solutions[0] if solutions else None, [str(file) for file in files], strict)
    names = names or default_puzzle_orders(filler)
    baselines = [] if against is None else split_orders(against)
    with progress.bar("solving", len(puzzles) * len(names) * len(schedules) * len(revisions), "puzzles") as bar:
        return evaluate_puzzles(
            filler, rules, puzzles, names, config, baselines, test, samples, bar.advance, schedules, revisions
        )


def score_puzzle_files(
    systems: Systems,
    task: PuzzleTask,
    references: Sequence[Sequence[str]],
    against: Sequence[str],
    test: Test,
    samples: int,
) -> AccuracyEvaluation:
    """Score existing answers. The puzzles are the sources; solutions are optional. Other lines are left out."""
    _check_solutions(references)
    check_systems(systems)
    first, runs = next(iter(systems.items()))
    solutions = references[0] if references else None
    puzzles = read_puzzles(task, [run.source for run in runs], solutions, [first, "reference"])
    kept = {name: [own[line - 1] for line in puzzles.lines] for name, own in systems.items()}
    return score_puzzles(kept, task, puzzles, against, test, samples)


def _check_solutions(references: Sequence[object]) -> None:
    if len(references) > 1:
        raise InputError("must be one file: a puzzle has one solution", "reference")


def _sample(folder: Path | None, model: str) -> list[Path]:
    """The puzzles that come with a model."""
    files = [folder / name for name in SAMPLE] if folder else []
    if not files or not all(file.exists() for file in files):
        raise InputError(f"{model} comes without a sample: give --source")
    return files

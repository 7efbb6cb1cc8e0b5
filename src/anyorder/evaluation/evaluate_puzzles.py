"""Solve puzzles with a model in several orders, then score the answers."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import tee

import numpy as np

from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.revision import Revision
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.trajectory import INFILL, Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.accuracy import AccuracyEvaluation, score_puzzles, with_seconds
from anyorder.evaluation.evaluate import check_against, check_test
from anyorder.evaluation.regimes import name_regimes
from anyorder.evaluation.significance import SAMPLES, Test
from anyorder.filler import Filler
from anyorder.models.adapter import MASK
from anyorder.orders import Order
from anyorder.orders.storage import default_order
from anyorder.tasks import PuzzleTask, make_task
from anyorder.tasks.base import EMPTY
from anyorder.tasks.canvases import CellTokens
from anyorder.tasks.encoder import TASK_KEY
from anyorder.tasks.puzzles import PuzzleSet

PUZZLE_ORDERS = ("uniform", "left-to-right", "right-to-left", "entropy", "max-prob", "margin")
"""The default orders of an evaluation."""


def evaluate_puzzles(
    filler: Filler,
    task: PuzzleTask,
    puzzles: PuzzleSet,
    orders: Sequence[str | Order] | None = None,
    config: DecodingConfig | None = None,
    against: Sequence[str] = (),
    test: Test = "randomization",
    samples: int = SAMPLES,
    on_progress: Callable[[int], None] = lambda puzzles: None,
    schedules: Sequence[str | int | Schedule] | None = None,
    revisions: Sequence[str | Revision] | None = None,
) -> AccuracyEvaluation:
    """Solve puzzles in several orders and score how many are solved entirely.

    Args:
        filler: The model; see `anyorder.load`.
        task: The rules.
        puzzles: See `read_puzzles`.
        orders: The orders to compare; by default some heuristic orders and the model's learned order.
        config: Schedule, revision, beam and seed; its order and length rule are ignored.
        against: Baseline orders for the p-values; by default the first one.
        test: See `evaluate`.
        samples: See `evaluate`.
        on_progress: Called with the number of puzzles finished since the last call.
        schedules: Schedules to compare, each with every order; see `evaluate_orders`.
        revisions: Revisions to compare, likewise.
    """
    orders = default_puzzle_orders(filler) if orders is None else orders
    configs = name_regimes(config or DecodingConfig(), orders, schedules, revisions)
    check_against(against, list(configs))
    check_test(test, samples)
    CellTokens(filler.model, task)  # fail before decoding if the model is for something else
    for order_config in configs.values():
        order_config.bind(filler.model, INFILL)
    systems: dict[str, list[Trajectory]] = {}
    seconds: dict[str, float] = {}
    for name, order_config in configs.items():
        start = time.perf_counter()
        systems[name] = solve_puzzles(filler, task, puzzles, order_config, on_progress)
        seconds[name] = time.perf_counter() - start
    return with_seconds(score_puzzles(systems, task, puzzles, against, test, samples), seconds)


def default_puzzle_orders(filler: Filler) -> list[str]:
    """Some heuristic orders, and the model's learned order if it has one."""
    learned = ["learned"] if default_order(filler.model, INFILL) == "learned" else []
    return [*PUZZLE_ORDERS, *learned]


def solve_puzzles(
    filler: Filler,
    task: PuzzleTask,
    puzzles: PuzzleSet,
    config: DecodingConfig,
    on_progress: Callable[[int], None] = lambda puzzles: None,
) -> list[Trajectory]:
    """One trajectory per puzzle; its source is the puzzle as a line, and its text is the answer."""
    texts = (masked_text(task, row) for row in puzzles.puzzles)
    filled = filler.stream(texts, config, on_progress=on_progress)
    return [
        replace(trajectory, source=task.write(row), task=task.name)
        for trajectory, row in zip(filled, puzzles.puzzles, strict=True)
    ]


def stream_puzzles(
    filler: Filler,
    task: PuzzleTask,
    lines: Iterable[str],
    config: DecodingConfig,
    on_progress: Callable[[int], None] = lambda puzzles: None,
    source_name: str = "input",
    strict: bool = False,
) -> Iterator[Trajectory]:
    """Solve any number of puzzles, one per line, in bounded memory. Any other line is a text with masks.

    Args:
        filler: The model.
        task: The rules of the puzzles.
        lines: See `PuzzleTask.read`.
        config: How to decode.
        on_progress: Called with the number of finished lines.
        source_name: Name of the lines in messages, such as a file name.
        strict: Whether to raise an `InputError` for a line that cannot be filled; otherwise its trajectory has a note.
    """

    def read(line: str) -> tuple[str, str | None]:
        """The text to fill, and the puzzle if the line is one."""
        try:
            return masked_text(task, task.read(line)), line.strip()
        except InputError:
            return line, None

    to_fill, filling = tee(map(read, lines))
    texts = (text for text, _ in to_fill)
    filled = filler.stream(texts, config, on_progress=on_progress, source_name=source_name, strict=strict)
    for trajectory, (_, puzzle) in zip(filled, filling, strict=True):
        yield trajectory if puzzle is None else replace(trajectory, source=puzzle, task=task.name)


def masked_text(task: PuzzleTask, puzzle: np.ndarray) -> str:
    """A puzzle, (cells,), as a text with a mask for every empty cell."""
    return "".join(MASK if cell == EMPTY else task.symbols[cell - 1] for cell in puzzle)


def task_of(filler: Filler, name: str | None = None) -> PuzzleTask:
    """The task of that name, or else the one the model was trained on; an `InputError` if the model cannot solve it."""
    name = name or getattr(filler.model.network.config, TASK_KEY, None)
    if not name:
        model = filler.model.name
        raise InputError(f"is missing: {model} is evaluated on puzzles, and does not say which it solves", "task")
    task = make_task(name)
    CellTokens(filler.model, task)
    return task

"""What models can be asked to do, by name: a direction such as `de-en`, `infill`, `generate`, or a puzzle."""

import re

from anyorder.errors import unknown
from anyorder.tasks import sudoku as _sudoku  # registers its tasks
from anyorder.tasks.base import TASKS, Example, Task, register_task
from anyorder.tasks.masked import Generate, Infill
from anyorder.tasks.puzzles import Examples, PuzzleTask
from anyorder.tasks.translation import Translation

__all__ = [
    "TASKS",
    "Example",
    "Examples",
    "Generate",
    "Infill",
    "PuzzleTask",
    "Task",
    "Translation",
    "make_puzzle",
    "make_task",
    "register_task",
]
del _sudoku
_DIRECTION = re.compile(r"[a-z]{2,3}-[a-z]{2,3}")


def make_task(name: str | Task) -> Task:
    """The task of that name."""
    if isinstance(name, Task):
        return name
    if name in TASKS:
        task = TASKS[name]()
        task.name = name
        return task
    if name in (Infill.name, Generate.name):
        return Infill() if name == Infill.name else Generate()
    if _DIRECTION.fullmatch(name):
        return Translation(name)
    raise unknown("task", name, [*sorted(TASKS), Infill.name, Generate.name, "a direction such as de-en"])


def make_puzzle(name: str | PuzzleTask) -> PuzzleTask:
    """The puzzle of that name; an `InputError` for any other task."""
    task = make_task(name) if name in TASKS or isinstance(name, PuzzleTask) else None
    if not isinstance(task, PuzzleTask):
        raise unknown("task", str(name), sorted(name for name, kind in TASKS.items() if issubclass(kind, PuzzleTask)))
    return task

"""Tasks with one right answer, by name."""

from anyorder.tasks import sudoku as _sudoku  # registers its tasks
from anyorder.tasks.base import TASKS, Examples, PuzzleTask, make_task, register_task

__all__ = ["TASKS", "Examples", "PuzzleTask", "make_task", "register_task"]
del _sudoku

"""What a user sees while a command runs: progress bars on standard error if it is a terminal, nothing otherwise.

Knows nothing about the work whose progress it shows.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console
from rich.text import Text

console = Console(stderr=True)
WIDE = 160
"""Columns of an output that is not a terminal."""


class Screen(Console):
    """Standard output with rich's formatting. A closed pipe raises `BrokenPipeError`, where rich would exit with 1.

    Output to a file or a pipe is wide, so that nothing is cut off. Characters that the encoding lacks become question
    marks, because a table may be the result of hours. Rich itself draws boxes in ASCII if the encoding is not UTF-8.
    """

    def __init__(self) -> None:
        super().__init__()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = WIDE

    def print_text(self, text: str) -> None:
        """Print text as it is: without markup, and on one line however long it is."""
        self.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def is_main_process() -> bool:
    """Whether this process prints and writes: the first one of those that `accelerate launch` or `torchrun` started."""
    return os.environ.get("RANK", "0") == "0"


def rate(value: float) -> str:
    """A number per second.

    >>> rate(12345.6), rate(9.96), rate(0.0416)
    ('12,346', '10', '0.042')
    """
    return f"{value:,.0f}" if value >= 9.5 else f"{value:.2g}"


def say(line: str) -> None:
    """Print one line on standard error, in the main process."""
    if is_main_process():
        console.print(line, highlight=False, markup=False, soft_wrap=True)


class Bar:
    """One progress bar."""

    def __init__(self, display: progress.Progress, description: str, total: float | None):
        self._display = display
        self._task = display.add_task(description, total=total, note="")

    def advance(self, amount: float = 1) -> None:
        self._display.advance(self._task, amount)

    def set(self, completed: float, note: str = "") -> None:
        self._display.update(self._task, completed=completed, note=note)


@contextmanager
def bar(description: str, total: float | None = None, unit: str = "", is_shown: bool = True) -> Iterator[Bar]:
    """A bar for one stage of the work. With a `unit` it shows the rate per second."""
    columns = [
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        _Rate(unit),
        progress.TimeElapsedColumn(),
        progress.TextColumn("eta"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
    ]
    visible = is_shown and console.is_terminal and is_main_process()
    shares_terminal = sys.stdout is not None and sys.stdout.isatty()  # if not, a file must get what is printed
    with progress.Progress(
        *columns, console=console, disable=not visible, transient=True, redirect_stdout=shares_terminal
    ) as display:
        yield Bar(display, description, total)


class _Rate(progress.ProgressColumn):
    def __init__(self, unit: str):
        super().__init__()
        self._unit = unit

    def render(self, task: progress.Task) -> Text:
        speed = task.finished_speed or task.speed
        if not self._unit or speed is None:
            return Text("")
        return Text(f"{rate(speed)} {self._unit}/s", style="progress.data.speed")

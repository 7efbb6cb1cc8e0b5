"""`anyorder puzzles`: new puzzles and their solutions, as files."""

from pathlib import Path

from anyorder.cli.common import check_apart
from anyorder.errors import LARGEST, check_number
from anyorder.files import atomic_file
from anyorder.tasks import make_task


def puzzles(task: str, out: Path, solutions: Path, count: int = 1000, seed: int = 1) -> None:
    """Generate puzzles that have exactly one solution.

    One puzzle a line, as 'anyorder evaluate --source' reads them. 'anyorder train-task --run.seed N' trains on the
    puzzles of the seed 2N and validates on those of 2N + 1: choose another one for a test set.

    Args:
        task: sudoku-4x4, sudoku-9x9, or a task that a plugin registers.
        out: The file of the puzzles (plain, .gz, .xz), 0 where a cell is empty.
        solutions: The file of their solutions.
        count: How many.
        seed: The same seed gives the same puzzles.
    """
    check_number("count", count, at_least=1, at_most=10**7)
    check_number("seed", seed, at_least=0, at_most=LARGEST)
    check_apart({"--out": out, "--solutions": solutions})
    rules = make_task(task)
    with atomic_file(out) as puzzle_file, atomic_file(solutions) as solution_file:
        examples = rules.generate(count, seed)
        for file, grids in ((puzzle_file, examples.puzzles), (solution_file, examples.solutions)):
            file.writelines(f"{rules.write(cells)}\n" for cells in grids)
    if out.is_file() and solutions.is_file():  # otherwise standard output may be the puzzles
        print(f"wrote {out}\nwrote {solutions}")

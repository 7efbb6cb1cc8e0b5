"""`anyorder puzzles`: new puzzles and their solutions, as files."""

from pathlib import Path

from anyorder.cli.common import check_apart
from anyorder.errors import LARGEST, check_number
from anyorder.files import atomic_file
from anyorder.tasks import make_puzzle


def puzzles(task: str, out: Path, solutions: Path, count: int = 1000, seed: int = 1) -> None:
    """Generate puzzles that have exactly one solution.

    The files have one puzzle per line, as 'anyorder evaluate --source' expects. 'anyorder train-task --run.seed N'
    trains on the puzzles of seed 2N and validates on those of seed 2N + 1, so use a different seed for a test set.

    Args:
        task: The kind of puzzle: sudoku-4x4, sudoku-9x9, or a task that a plugin registers.
        out: Output file for the puzzles (plain, .gz, .xz); 0 marks an empty cell.
        solutions: Output file for the solutions.
        count: Number of puzzles.
        seed: Random seed; the same seed gives the same puzzles.
    """
    check_number("count", count, at_least=1, at_most=10**7)
    check_number("seed", seed, at_least=0, at_most=LARGEST)
    check_apart({"--out": out, "--solutions": solutions})
    rules = make_puzzle(task)
    with atomic_file(out) as puzzle_file, atomic_file(solutions) as solution_file:
        examples = rules.generate(count, seed)
        for file, grids in ((puzzle_file, examples.puzzles), (solution_file, examples.solutions)):
            file.writelines(f"{rules.write(cells)}\n" for cells in grids)
    if out.is_file() and solutions.is_file():  # otherwise standard output may be the puzzles
        print(f"wrote {out}\nwrote {solutions}")

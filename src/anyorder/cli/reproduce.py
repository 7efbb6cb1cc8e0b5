"""`anyorder reproduce`: a table of the paper, from the jobs that are missing to Markdown, LaTeX and JSON."""

from dataclasses import dataclass, replace
from pathlib import Path

from anyorder import progress
from anyorder.cli.common import connected, print_note, split_limits
from anyorder.cli.parser import SharedOptions
from anyorder.errors import InputError
from anyorder.orders import split_orders
from anyorder.registry import is_count
from anyorder.report.terminal import render_tables
from anyorder.reproduce.report import Report
from anyorder.reproduce.reproduce import Options, Request, list_jobs
from anyorder.reproduce.reproduce import reproduce as reproduce_tables
from anyorder.reproduce.tables import TABLES
from anyorder.training.config import split_directions

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(Options, SharedOptions):
    """How to reproduce a table."""


def reproduce(
    table: str,
    /,
    out: Path,
    options: ReproduceOptions,
    model: str = "",
    data: list[str] | None = None,
    direction: str = "",
    rows: str = "",
    lengths: str = "",
    max_length: str | None = None,
    part: str = "1/1",
    so_far: bool = False,
    dry_run: bool = False,
    cluster: str | None = None,
) -> None:
    """Reproduce a table of the paper (Jiang & Bansal 2021), or all of them.

    Writes TABLE.md, TABLE.tex and TABLE.json to --out, with the paper's numbers beside ours. Finished work is never
    repeated, and an interrupted run continues when you run the command again. TABLE is table1, table2, table3, table4,
    table5, causes, analysis or all.

    Args:
        table: The table to reproduce, or all.
        out: The output folder for all results.
        model: A bundled model, a folder or a hub id; separate several with commas. Each direction uses the first model
            that translates it.
        data: Prepared stores to learn from, and folders of text files (dev.de, dev.en, test.de, ...) to evaluate on.
            Without text files, a store's own splits are used.
        direction: Directions, such as de-en,en-de; by default those of the table that the models support.
        rows: Only these rows of the table, separated by commas; left-to-right is always included.
        lengths: How to choose the target length, separated by commas; by default table:4,gold,candidates:4, and
            table:4 alone for analysis.
        max_length: Only the columns with these length limits, such as 30,none; none is for whole sets.
        part: Do only part I of N of the jobs, such as 1/4; start the same command once for each part, such as one per
            GPU. The part that ends last writes the table.
        so_far: Do no work. Write the table from what is finished, while other processes may be working on the rest.
        dry_run: Only list the jobs, and which of them are done.
        cluster: Do the jobs on a Ray cluster: auto (the one this machine belongs to, or else all of its cores or GPUs),
            or HOST:PORT. See docs/cluster.md.
    """
    tables = list(TABLES) if table == ALL else [table]
    if table == ALL:
        for option, value in {"rows": rows, "max_length": max_length, "name": options.name}.items():
            if value:
                raise InputError("is for a single table", option)
    first = Request(
        tables[0],
        out,
        models=[one.strip() for one in model.split(",") if one.strip()],
        data=[Path(folder) for folder in data or ()],
        directions=split_directions(direction),
        rules=[rule.strip() for rule in lengths.split(",") if rule.strip()],
        rows=split_orders(rows) if rows.strip() else [],
        max_lengths=[] if max_length is None else split_limits(max_length),
        **vars(options),
    )
    requests = [replace(first, table=each) for each in tables]
    chosen = split_part(part)
    screen = progress.Screen()
    if dry_run:
        jobs = list_jobs(requests)
        done = [job.done for job in jobs]
        for job, is_done in zip(jobs, done, strict=True):
            screen.print_text(f"{'done' if is_done else 'missing':7}  {job.title}")
        screen.print_text(f"{sum(done)} of {len(jobs)} jobs are done; {len(jobs) - sum(done)} are missing")
        return
    with connected(cluster) as machines:
        reports = reproduce_tables(requests, chosen, so_far, lambda line: print_note("reproduce", line), machines)
    for report in reports:
        _print(report, out / (options.name or report.table.name), screen)


def _print(report: Report, files: Path, screen: progress.Screen) -> None:
    """The summaries of a table, and where the rest is: in `files` with several suffixes."""
    for shown in report.tables()[: len(report.by_rule)]:
        for part in render_tables(shown, screen.width):
            screen.print(part)
        for note in shown.notes:
            screen.print_text(note)
    for line in (*report.notes, report.footer()[-1]):
        screen.print_text(line)
    screen.print_text(f"{files}.md, .tex, .json")


reproduce.arguments = {"table": {"metavar": "TABLE"}}  # type: ignore[attr-defined]


def split_part(text: str) -> tuple[int, int]:
    """Which part of how many.

    >>> split_part("2/4")
    (2, 4)
    """
    index, _, count = text.partition("/")
    if not (is_count(index) and is_count(count) and int(index) <= int(count)):
        raise InputError(f"'{text}': expected a part such as 1/4, which is the first of four", "part")
    return int(index), int(count)

"""`anyorder reproduce`: a table of the paper, from the jobs that are missing to Markdown, LaTeX and JSON."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from anyorder import progress
from anyorder.cli.common import print_note, several, split_limits
from anyorder.device import Device
from anyorder.errors import InputError, check_number
from anyorder.evaluation.significance import SAMPLES
from anyorder.orders import split_orders
from anyorder.report.terminal import render_tables
from anyorder.reproduce import reproduce as library
from anyorder.reproduce.plan import Request
from anyorder.reproduce.render import Report
from anyorder.reproduce.tables import TABLES, find_table
from anyorder.training.config import split_directions

ALL = "all"


def reproduce(
    table: str,
    out: Path,
    model: str = "",
    data: list[str] | str | None = None,
    direction: str = "",
    scale: Literal["here", "paper"] = "here",
    seeds: int = 3,
    learned: Literal["seeds", "model"] = "seeds",
    shared: bool = False,
    rows: str = "",
    lengths: str = "",
    max_length: str | None = None,
    steps: int | None = None,
    baseline: float | None = None,
    baseline_weights: dict[str, float] = {},  # noqa: B006 - never modified
    baseline_model: Path | None = None,
    sentences: int | None = None,
    samples: int = SAMPLES,
    device: Device = "auto",
    batch_tokens: int | None = None,
    datasets: dict[str, str] = {},  # noqa: B006
    xlm: dict[str, str] = {},  # noqa: B006
    train_steps: int | None = None,
    name: str | None = None,
    so_far: bool = False,
    dry_run: bool = False,
) -> None:
    """Reproduce a table of the paper (Jiang & Bansal 2021), or all of them.

    Writes TABLE.md, TABLE.tex and TABLE.json to --out, with the paper's numbers beside ours. Finished work is never
    repeated, and an interrupted run continues when you run the command again. If you start it several times, such as
    once per GPU, the processes share the work. TABLE is table1, table2, table3, table4, table5, causes, analysis or
    all.

    Args:
        table: The table to reproduce, or all.
        out: The output folder for all results.
        model: A bundled model, a folder or a hub id; separate several with commas. Each direction uses the first model
            that translates it.
        data: Prepared stores to learn from, and folders of text files (dev.de, dev.en, test.de, ...) to evaluate on.
            Without text files, a store's own splits are used.
        direction: Directions, such as de-en,en-de; by default those of the table that the models support.
        scale: here: learn from --data, in minutes. paper: get WMT and XLM from the hub and train as in the paper.
        seeds: Number of seeds to learn each order with.
        learned: seeds: learn the orders. model: use the orders saved with the model, and learn nothing.
        shared: Learn one order for all directions of a model that have a store, not one per direction.
        rows: Only these rows of the table, separated by commas; left-to-right is always included.
        lengths: How to choose the target length, separated by commas; by default table:4,gold,candidates:4, and
            table:4 alone for analysis.
        max_length: Only the columns with these length limits, such as 30,none; none is for whole sets.
        steps: Training steps per learned order; overrides the default of the scale, which is lower for table3, table4
            and causes.
        baseline: Minutes to train an autoregressive baseline, which adds a row (table1, table2).
        baseline_weights: How often the baseline uses each pair of a corpus per epoch, by name, such as de-en/news; by
            default 1. Give it the weights that the model was trained with.
        baseline_model: Use the autoregressive baseline in this folder instead of training one.
        sentences: Use only the first N sentences of every test set.
        samples: Resamples of the significance tests.
        device: Device to run on.
        batch_tokens: Target tokens to decode per batch. On CUDA, rounding may change a few results.
        datasets: With --scale paper, data sets to use instead of WMT's, by language pair, such as zh-en.
        xlm: With --scale paper, models to use instead of the hub's, by language pair.
        train_steps: With --scale paper, training steps of the masked translation model.
        name: Write NAME.md, NAME.tex and NAME.json, for example to keep the tables of several commands in one folder.
        so_far: Do no work. Write the table from what is finished, while other processes may be working on the rest.
        dry_run: Only list the jobs: which are done or running, and how long the others may take.
    """
    tables = list(TABLES) if table == ALL else [find_table(table).name]
    if table == ALL:
        for option, value in {"rows": rows, "max_length": max_length, "name": name}.items():
            if value:
                raise InputError("is for a single table", option)
    check_number("train_steps", train_steps, at_least=1)
    if scale == "here" and not model:
        raise InputError("is missing: name a model, such as de-en", "model")
    first = Request(
        table=tables[0],
        out=out,
        models=[one.strip() for one in model.split(",") if one.strip()],
        data=[] if data is None else [Path(folder) for folder in several(data)],
        directions=split_directions(direction),
        rules=[rule.strip() for rule in lengths.split(",") if rule.strip()],
        rows=split_orders(rows) if rows.strip() else [],
        max_lengths=[] if max_length is None else split_limits(max_length),
        scale=scale,
        learned=learned,
        shared=shared,
        seeds=seeds,
        steps=steps,
        baseline=baseline,
        baseline_weights=baseline_weights,
        baseline_model=baseline_model,
        sentences=sentences,
        samples=samples,
        device=device,
        batch_tokens=batch_tokens,
        name=name,
    )
    requests = [replace(first, table=each) for each in tables]
    paper = library.PaperSource(datasets, xlm, train_steps)
    screen = progress.Screen()
    if dry_run:
        for line in list_jobs(library.preview(requests, paper)):
            screen.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    reports = library.reproduce_tables(requests, paper, lambda line: print_note("reproduce", line), so_far)
    if not reports:
        screen.print("stopped; run the same command to continue", highlight=False)
    for report in reports:
        _print(report, out / (name or report.table.name), screen)


def _print(report: Report, files: Path, screen: progress.Screen) -> None:
    """The summaries of a table, and where the rest is: in `files` with several suffixes."""
    for shown in report.tables()[: len(report.rules)]:
        for part in render_tables(shown, screen.width):
            screen.print(part)
        for note in shown.notes:
            screen.print(note, highlight=False, markup=False, soft_wrap=True)
    for line in (*report.notes, report.footer()[-1]):
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
    screen.print(f"{files}.md, .tex, .json", highlight=False, markup=False, soft_wrap=True)


reproduce.positionals = {  # type: ignore[attr-defined]
    "table": {"type": str, "choices": [*TABLES, ALL], "metavar": "TABLE", "help": "the table to reproduce, or all"},
    "--data": {
        "nargs": "+",
        "default": None,
        "metavar": "FOLDER",
        "help": "prepared stores to learn from, and folders of text files (dev.de, dev.en, ...) to evaluate on",
    },
}


def list_jobs(states: list[library.JobState]) -> list[str]:
    """What a dry run prints."""
    lines = []
    for state in states:
        time = "" if state.estimate is None else f" (about {state.estimate / 60:.1f} minutes)"
        word = "done" if state.done else "running" if state.under_way else "missing"
        lines.append(f"{word:7}  {state.title}{time}")
    missing = [state for state in states if not state.done]
    running = sum(state.under_way for state in states)
    known = [state.estimate for state in missing if state.estimate is not None]
    total = f", about {sum(known) / 60:.0f} minutes" if known else ""
    unknown = (
        f", {len(missing) - len(known)} of them without an estimate, which comes from jobs that are done"
        if len(known) < len(missing)
        else ""
    )
    return [
        *lines,
        f"{len(states) - len(missing)} of {len(states)} jobs are done; {len(missing)} are missing"
        f"{f', {running} of them running' if running else ''}{total}{unknown}",
    ]

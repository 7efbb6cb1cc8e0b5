"""`anyorder reproduce`: a table of the paper, from the jobs that are missing to Markdown, LaTeX and JSON."""

from pathlib import Path
from typing import Literal

from anyorder import progress
from anyorder.cli.common import print_note, several
from anyorder.device import Device
from anyorder.errors import InputError, check_number
from anyorder.evaluation.significance import SAMPLES
from anyorder.orders import split_orders
from anyorder.report.terminal import render_tables
from anyorder.reproduce import reproduce as library
from anyorder.reproduce.plan import Request
from anyorder.reproduce.tables import TABLES, find_table
from anyorder.training.config import split_directions


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
    steps: int | None = None,
    baseline: float | None = None,
    baseline_model: Path | None = None,
    sentences: int | None = None,
    samples: int = SAMPLES,
    device: Device = "auto",
    batch_tokens: int | None = None,
    datasets: dict[str, str] = {},  # noqa: B006 - never modified
    xlm: dict[str, str] = {},  # noqa: B006
    train_steps: int | None = None,
    dry_run: bool = False,
) -> None:
    """Reproduce a table of the paper (Jiang & Bansal 2021).

    Learns the orders and decodes the test sets that are missing, keeps what is done, and writes TABLE.md, TABLE.tex and
    TABLE.json into --out, with the paper's numbers beside ours. The same command again computes nothing; after a kill
    or Ctrl-C it goes on. Started several times, as on several GPUs, the processes share the work. TABLE is table1,
    table2, table3, table4, table5, causes or analysis.

    Args:
        table: Which table.
        out: The folder of all results.
        model: A bundled model, a folder or a hub id; several, separated by commas. Each direction takes the first one
            that translates it.
        data: Folders: prepared stores to learn from, and text files (dev.de, dev.en, test.de, ...) to evaluate on. A
            store's own splits are used where there are no text files.
        direction: Directions, such as de-en,en-de; those of the table that the models translate if not given.
        scale: here learns on --data in minutes; paper takes WMT and XLM from the hub and trains as the paper did.
        seeds: How often each order is learned.
        learned: seeds learns the orders; model takes those that lie beside the model, and learns nothing.
        shared: Learn each order once for all directions of a model that there is a store for.
        rows: Only these rows of the table, separated by commas; left-to-right always comes along.
        lengths: How the target's length is found, separated by commas; table:4,gold,candidates:4 if not given.
        steps: Steps of learning an order, in place of the scale's.
        baseline: Train an autoregressive model for so many minutes, as one more row (table1, table2).
        baseline_model: Or take the one in this folder.
        sentences: Only the first so many sentences of every test set.
        samples: Resamplings of the significance tests.
        device: Where to run.
        batch_tokens: Target tokens that are decoded together; results do not depend on it.
        datasets: With --scale paper, a data set in place of WMT's, by pair, such as zh-en.
        xlm: With --scale paper, a model in place of the hub's, by pair.
        train_steps: With --scale paper, steps of training masked translation.
        dry_run: Only list the jobs: which are done or under way, and how long the others may take.
    """
    find_table(table)
    check_number("train_steps", train_steps, at_least=1)
    if scale == "here" and not model:
        raise InputError("is missing: name a model, such as de-en", "model")
    request = Request(
        table=table,
        out=out,
        models=[name.strip() for name in model.split(",") if name.strip()],
        data=[] if data is None else [Path(folder) for folder in several(data)],
        directions=split_directions(direction),
        rules=[rule.strip() for rule in lengths.split(",") if rule.strip()],
        rows=split_orders(rows) if rows.strip() else [],
        scale=scale,
        learned=learned,
        shared=shared,
        seeds=seeds,
        steps=steps,
        baseline=baseline,
        baseline_model=baseline_model,
        sentences=sentences,
        samples=samples,
        device=device,
        batch_tokens=batch_tokens,
    )
    paper = library.PaperSource(datasets, xlm, train_steps)
    screen = progress.Screen()
    if dry_run:
        for line in list_jobs(library.preview(request, paper)):
            screen.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    report = library.reproduce(request, paper, on_job=lambda line: print_note("reproduce", line))
    if report is None:
        screen.print("stopped; the same command goes on", highlight=False)
        return
    for shown in report.tables()[: len(report.rules)]:
        for part in render_tables(shown, screen.width):
            screen.print(part)
        for note in shown.notes:
            screen.print(note, highlight=False, markup=False, soft_wrap=True)
    screen.print(report.footer()[-1], highlight=False, markup=False, soft_wrap=True)
    screen.print(f"{out / table}.md, .tex, .json", highlight=False, markup=False, soft_wrap=True)


reproduce.positionals = {  # type: ignore[attr-defined]
    "table": {"type": str, "choices": list(TABLES), "metavar": "TABLE", "help": "which table"},
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

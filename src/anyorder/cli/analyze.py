"""`anyorder analyze`: what the orders of translations look like, on a whole test set."""

import json as json_format
from pathlib import Path

from anyorder import progress
from anyorder.analysis.analyze import analyze as analyze_systems
from anyorder.cli.common import check_apart, output_file
from anyorder.data.corpus import read_lines
from anyorder.decoding.trajectory import read_systems
from anyorder.errors import InputError
from anyorder.files import check_writable
from anyorder.report.tables import analysis_tables, check_table_file, format_tables
from anyorder.report.terminal import render_tables


def analyze(
    input: list[str],
    /,
    reference: Path | None = None,
    trees: Path | None = None,
    tagger: str = "auto",
    html: Path | None = None,
    json: Path | None = None,
    table: Path | None = None,
    figures: Path | None = None,
    samples: int = 1000,
    null_samples: int = 50,
    seed: int = 1,
) -> None:
    """Measure the orders of translations.

    Reads the output of 'anyorder translate --json FILE', or any JSON lines with at least the fields tokens (subwords,
    ending in '@@' if the word continues) and steps (from 1), or the step maps of an engine (step_map and token_ids).
    Each file is one system; all systems must translate the same sentences. Lines that are not puzzles, in a file of
    puzzles, are left out.

    Args:
        input: Files with one trajectory per line (plain, .gz, .xz).
        reference: Reference translations, one per line; adds sentence-level BLEU. Puzzles need none.
        trees: Bracketed trees, one per line, for any of the sentences; they replace the tagger's constituents.
        tagger: Source of part-of-speech tags and constituents: a spaCy model, auto (spaCy's small English model, if it
            is installed and the text looks English), SPACY+BENEPAR (constituents from a benepar model),
            stanza:LANGUAGE, or none.
        html: Write an HTML report to this file.
        json: Write all metrics to this file.
        table: Write the tables for a paper: a .tex (LaTeX, with booktabs) or .md (Markdown) file.
        figures: Write publication-ready figures to this folder (PDF, SVG, PNG).
        samples: Bootstrap samples for the 95% confidence intervals.
        null_samples: Number of random baselines: copies of the test set with shuffled orders.
        seed: Random seed for both.
    """
    if not input:
        raise InputError("nothing to analyze: give the files that 'anyorder translate --json FILE' wrote")
    check_table_file(table)
    check_apart({"--json": json, "--html": html, "--table": table}, [*map(Path, input), reference, trees])
    if figures is not None:
        check_writable(figures)
    systems = read_systems([Path(name) for name in input])
    references = list(read_lines(reference)) if reference else None
    with output_file(json) as file, output_file(html) as page, output_file(table) as paper:
        with progress.bar("measuring", len(systems), "systems") as bar:
            analysis = analyze_systems(
                systems, references, tagger, trees, samples, null_samples, seed, on_progress=bar.advance
            )
        tables = analysis_tables(analysis)
        if file:
            file.write(json_format.dumps(analysis.as_json(), ensure_ascii=False) + "\n")
        if page:
            from anyorder.report.html import report_page

            title = f"Orders: {', '.join(systems)}"
            page.write(report_page(systems, analysis.as_json(), references, title))
        if paper and table:
            legend = f"± is half of the 95% interval; random: random orders of the same {analysis.noun}s"
            signatures = [f"{system.name}: {system.signature}" for system in analysis.systems if system.signature]
            paper.write(format_tables(tables, table, [legend, *signatures, *analysis.notes]))
        if figures is not None:
            from anyorder.report.plots import plot_all

            plot_all(analysis, figures)
    screen = progress.Screen()
    for data in tables:
        for part in render_tables(data, screen.width):
            screen.print(part)
    for note in analysis.notes:
        screen.print_text(f"note: {note}")
    for written in (json, html, table, figures):
        if written and (written.is_file() or written.is_dir()):  # unlike /dev/stdout
            print(f"wrote {written}")

"""`anyorder analyze`: what the orders of translations look like, on a whole test set."""

import json as json_format
from pathlib import Path

from anyorder import progress
from anyorder.analysis.analyze import analyze as analyze_systems
from anyorder.analysis.parsers import choose_parser, read_trees
from anyorder.cli.common import check_apart, check_folder, whole_file
from anyorder.data.corpus import read_lines
from anyorder.decoding.trajectory import read_systems
from anyorder.errors import InputError, check_number
from anyorder.report.table_data import analysis_sheets
from anyorder.report.table_export import check_table, write_table
from anyorder.report.terminal import tables


def analyze(
    input: list[str],
    reference: Path | None = None,
    trees: Path | None = None,
    tagger: str = "auto",
    html: Path | None = None,
    json: Path | None = None,
    table: Path | None = None,
    figures: Path | None = None,
    samples: int = 1000,
    draws: int = 50,
    seed: int = 1,
) -> None:
    """Measure the orders of translations.

    Reads what 'anyorder translate --json FILE' wrote, or anyone's JSON lines that hold at least tokens (subwords, '@@'
    where a word goes on) and steps (from 1). Every file is one system; all translate the same sentences.

    Args:
        input: Files with one trajectory a line (plain, .gz, .xz).
        reference: Reference translations, one a line; adds BLEU of every sentence.
        trees: Bracketed trees, one a line, of any of the sentences: constituents are theirs, not spaCy's.
        tagger: What finds parts of speech and constituents: a spaCy model, auto (the English one, where it is installed
            and the text looks English), SPACY+BENEPAR (constituents by a benepar model), stanza:LANGUAGE, or none.
        html: Write a report to look at in a browser.
        json: Write all figures to this file.
        table: Write the tables for a paper: a file .tex (LaTeX, with booktabs) or .md (Markdown).
        figures: Write figures for publication into this folder (PDF, SVG, PNG).
        samples: Test sets drawn for the 95% intervals.
        draws: Test sets of shuffled orders, to compare with.
        seed: For both.
    """
    if not input:
        raise InputError("nothing to analyze: give the files that 'anyorder translate --json FILE' wrote")
    check_number("--samples", samples, at_least=20)
    check_number("--draws", draws, at_least=1)
    check_table(table)
    check_apart({"--json": json, "--html": html, "--table": table}, [*map(Path, input), reference, trees])
    if figures is not None:
        check_folder(figures)
    systems = read_systems([Path(name) for name in input])
    references = list(read_lines(reference)) if reference else None
    known = read_trees(trees) if trees else None
    parser, notes = choose_parser(tagger, [one.tokens for made in systems.values() for one in made])
    with whole_file(json) as file, whole_file(html) as page, whole_file(table) as paper:
        with progress.bar("measuring", len(systems), "systems") as bar:
            result = analyze_systems(systems, references, known, parser, samples, draws, seed, notes, bar.advance)
        told = result.as_json()
        if file:
            file.write(json_format.dumps(told, ensure_ascii=False) + "\n")
        if page:
            from anyorder.report.html import report_page

            page.write(report_page(systems, told, references, f"Orders: {', '.join(systems)}"))
        sheets = analysis_sheets(result)
        if paper and table:
            spread = "± is half of the 95% interval; random: orders drawn by lot, the same sentences"
            signatures = [f"{one.name}: {one.signature}" for one in result.systems if one.signature]
            paper.write(write_table(sheets, table, [spread, *signatures, *result.notes]))
        if figures is not None:
            from anyorder.report.plots import figures as draw

            draw(told, figures)
    screen = progress.Screen()
    for part in (part for sheet in sheets for part in tables(sheet, screen.width)):
        screen.print(part)
    for note in result.notes:
        screen.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


analyze.positionals = {  # type: ignore[attr-defined]
    "input": {"nargs": "*", "type": str, "default": [], "help": "files of trajectories, one system each"}
}

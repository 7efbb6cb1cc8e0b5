"""Tables for papers: LaTeX with booktabs, or Markdown. Knows nothing about what the cells mean."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from anyorder.errors import InputError
from anyorder.report.table_data import Cell, Column, TableData


def check_table_file(file: Path | None) -> None:
    """Raise an `InputError` unless the file's name says in which format to write it."""
    if file is not None and file.suffix not in _WRITERS:
        raise InputError(f"{file}: expected a name that ends in {' or '.join(_WRITERS)}", "table")


def format_tables(tables: Sequence[TableData], file: Path, notes: Sequence[str] = ()) -> str:
    """The text for a file of that name. Notes, such as a signature, become comments that stay with the numbers."""
    return _WRITERS[file.suffix](tables, notes)


def _rows(
    table: TableData, text: Callable[[str], str], heading: Callable[[Column], str], cell: Callable[[Cell], str]
) -> Iterator[list[str]]:
    """The headings, then a row for each name, in the writing of a format."""
    columns = [column for group in table.groups.values() for column in group]
    yield [text(table.head), *map(heading, columns)]
    for row, name in enumerate(table.names):
        yield [text(name), *(cell(column.cells[row]) for column in columns)]


def _latex(tables: Sequence[TableData], notes: Sequence[str]) -> str:
    parts = []
    for table in tables:
        rows = list(_rows(table, _latex_text, _latex_heading, _latex_cell))
        lines = [f"{' & '.join(cells)} \\\\" for cells in rows]
        lines.insert(1, "\\midrule")
        if table.last_is_random:
            lines.insert(-1, "\\midrule")
        body = "\n".join(["\\toprule", *lines, "\\bottomrule"])
        comments = "".join(f"% {_on_one_line(text)}\n" for text in (table.title, *table.notes))
        alignment = "r" * (len(rows[0]) - 1)
        parts.append(f"{comments}\\begin{{tabular}}{{l{alignment}}}\n{body}\n\\end{{tabular}}\n")
    return "".join(f"% {_on_one_line(note)}\n" for note in notes) + "\n".join(parts)


def _latex_heading(column: Column) -> str:
    return _latex_text(_heading(column)) if column.heading != "p" else f"$p$ {_latex_text(column.detail)}".strip()


def _latex_cell(cell: Cell) -> str:
    text = _latex_text(cell.text)
    text = f"\\textbf{{{text}}}" if cell.best else text
    return f"{text}\\,$\\pm$\\,{cell.spread}" if cell.spread else text


_LATEX = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$",
    "≤": "$\\le$", "→": "$\\to$", "λ": "$\\lambda$", "τ": "$\\tau$", "Δ": "$\\Delta$", "–": "--", "|": "\\textbar{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    **{mark: f"{{{mark}}}" for mark in "[]*"},  # at the start of a row, they would be an argument of the line before
}  # fmt: skip


def _latex_text(text: str) -> str:
    """Escaped for LaTeX; the hyphen of a number becomes a minus sign."""
    if re.fullmatch(r"-[\d.,]+", text):
        return f"$-${text[1:]}"
    return "".join(_LATEX.get(mark, mark) for mark in _on_one_line(text))


def _markdown(tables: Sequence[TableData], notes: Sequence[str]) -> str:
    parts = []
    for table in tables:
        rows = list(_rows(table, _markdown_text, lambda column: _markdown_text(_heading(column)), _markdown_cell))
        rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        below = [line for note in table.notes for line in (_markdown_text(note), "")]
        parts.append("\n".join([_markdown_text(table.title), "", *lines, "", *below]))
    comments = (re.sub(r"-(?=[->])", "- ", _on_one_line(note)) for note in notes)  # "-->" would end one
    return "\n".join(parts) + "".join(f"\n<!-- {comment} -->\n" for comment in comments)


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text} ± {cell.spread}" if cell.spread else text


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]<>])", r"\\\1", _on_one_line(text))


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _heading(column: Column) -> str:
    return f"{column.heading} {column.detail}".strip()


_WRITERS = {".tex": _latex, ".md": _markdown}

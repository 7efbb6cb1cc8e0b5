"""What an evaluation on puzzles shows, as a table of cells."""

from anyorder.evaluation.accuracy import AccuracyDifference, AccuracyEvaluation
from anyorder.report.table_data import Cell, Column, TableData, count_text, p_value_cell


def accuracy_table(evaluation: AccuracyEvaluation, speed: bool = True) -> TableData:
    """One row per system; decoding speed is left out for papers."""
    rows = evaluation.rows
    solved = [f"{row.accuracy:.1f}" for row in rows]
    best = max(solved, key=float) if len(rows) > 1 else None
    columns = [
        Column("solved %", [Cell(text, best=text == best) for text in solved]),
        Column("95% interval", [Cell("{:.1f}–{:.1f}".format(*row.accuracy_interval)) for row in rows]),
    ]
    if any(row.cells is not None for row in rows):
        columns.append(Column("cells %", [Cell("–" if row.cells is None else f"{row.cells:.1f}") for row in rows]))
    columns.append(Column("forwards", [Cell(f"{row.forwards:.1f}") for row in rows]))
    systems = [row.system for row in rows]
    baselines = [system for system in systems if any(system in row.p_values for row in rows)]
    for baseline in baselines:
        detail = "" if len(baselines) == 1 else baseline
        columns.append(Column("Δ", [_difference_cell(row.differences.get(baseline)) for row in rows], detail))
        columns.append(Column("p", [p_value_cell(row.p_values_holm.get(baseline)) for row in rows], detail))
    if speed and any(row.seconds for row in rows):
        speeds = [Cell(f"{row.puzzles / row.seconds:,.0f}" if row.seconds else "") for row in rows]
        columns.append(Column("puzzles/s", speeds))
    compared = f", compared with {', '.join(baselines)}" if baselines else ""
    title = f"{evaluation.task}{compared} ({count_text(rows[0].puzzles, 'puzzle')})"
    notes = list(evaluation.notes)
    if baselines:
        correction = f", with Holm's correction for {len(baselines)} baselines" if len(baselines) > 1 else ""
        notes.insert(0, f"Δ: difference in solved % with half of its 95% interval; p: two-sided p-value{correction}.")
    fresh = all(row.system == row.order for row in rows)
    return TableData(title, "order" if fresh else "system", systems, {"all": columns}, notes)


def _difference_cell(difference: AccuracyDifference | None) -> Cell:
    if difference is None:
        return Cell("–")
    return Cell(f"{difference.accuracy:+.1f}", f"{(difference.high - difference.low) / 2:.1f}")

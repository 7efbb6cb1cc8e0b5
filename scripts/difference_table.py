"""Print how far a learned order is above left-to-right in a table of `anyorder reproduce`, and how certain that is.

    python scripts/difference_table.py recipes/six-directions/results/table2.json.xz --max-length 30

± is half of the 95% interval of the difference, the mean over the seeds. A difference smaller than that is not
significant even without a correction for several comparisons. Reads .json and .json.xz.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from anyorder.data.corpus import open_bytes
from anyorder.reproduce.tables import BASELINE, direction_title

PAPER_ORDER = "learned:hidden"


def lines(parts: list[dict[str, Any]], order: str = "learned:confidence") -> list[str]:
    """The table, line by line: sentences, a row for each length rule, the paper's differences."""
    directions = list(dict.fromkeys(part["direction"] for part in parts))
    rows = {(part["rule"], part["direction"]): {row["row"]: row for row in part["rows"]} for part in parts}
    sizes = {part["direction"]: part["sentences"] for part in parts}
    rules = list(dict.fromkeys(part["rule"] for part in parts))
    shown = [f"| | {' | '.join(map(direction_title, directions))} |", "|---" + "|---:" * len(directions) + "|"]
    shown.append(f"| sentences | {' | '.join(f'{sizes[direction]:,}' for direction in directions)} |")
    for rule in rules:
        cells = [_cell(rows[rule, direction][order]) for direction in directions]
        shown.append(f"| `{order}`, `{rule}` | {' | '.join(cells)} |")
    paper = [_paper(rows[rules[0], direction]) for direction in directions]
    shown.append(f"| *paper*, `{PAPER_ORDER}` | {' | '.join(paper)} |")
    return shown


def _cell(row: dict[str, Any]) -> str:
    differences = [seed["differences"][BASELINE] for seed in row["seeds"]]
    half = fmean((difference["high"] - difference["low"]) / 2 for difference in differences)
    return f"{fmean(difference['bleu'] for difference in differences):+.2f} ± {half:.2f}"


def _paper(rows: dict[str, dict[str, Any]]) -> str:
    learned, baseline = (rows.get(name, {}).get("paper") for name in (PAPER_ORDER, BASELINE))
    return "–" if learned is None or baseline is None else f"{learned - baseline:+.2f}"


def choose(table: dict[str, Any], split: str, max_length: int | None) -> list[dict[str, Any]]:
    """The columns with this split and length limit."""
    return [part for part in table["parts"] if part["part"] == {"split": split, "max_length": max_length}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--max-length", type=int, help="the sentences with at most this many subwords (default: all)")
    arguments = parser.parse_args()
    with open_bytes(arguments.table) as stream:
        parts = choose(json.load(stream), arguments.split, arguments.max_length)
    if not parts:
        parser.error("no column has this split and length limit")
    print("\n".join(lines(parts)))


if __name__ == "__main__":
    main()

"""Print the shapes of orders: the table in recipes/six-directions/notes.md, from `anyorder reproduce analysis`.

    python scripts/analysis_table.py recipes/six-directions/results/analysis.json.xz

Percentages of sentences, with the standard deviation over the seeds of a learned order. Reads .json and .json.xz.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from anyorder.data.corpus import open_bytes
from anyorder.reproduce.tables import SHARES, direction_title

METRICS = {
    "label outer-to-inner": "outer-to-inner",
    "nearly left-to-right share": "nearly left-to-right",
    "suffix last share": "a suffix after both neighbors",
    "constituent sentence share": "a constituent in consecutive steps",
}
ORDERS = ("easy-first", "margin", "learned:ppo", "learned:hidden", "learned:confidence")


def lines(table: dict[str, Any]) -> list[str]:
    """The table, line by line: a group of rows for each metric, the paper's numbers below ours."""
    found = {
        (part["direction"], row["row"], metric): value
        for part in table["parts"]
        for row in part["rows"]
        for metric, value in row["metrics"].items()
    }
    directions = list(dict.fromkeys(part["direction"] for part in table["parts"]))
    rows = {row["row"] for part in table["parts"] for row in part["rows"]}
    shown = [f"| % of sentences | order | {' | '.join(map(direction_title, directions))} |"]
    shown.append("|---|---" + "|---:" * len(directions) + "|")
    for metric, title in METRICS.items():
        for order in filter(rows.__contains__, ORDERS):
            cells = [_cell(found.get((direction, order, metric))) for direction in directions]
            shown.append(f"| {title} | `{order}` | {' | '.join(cells)} |")
            paper = [SHARES.get((direction, order, metric)) for direction in directions]
            if any(value is not None for value in paper):
                cells = ["–" if value is None else f"{100 * value:.0f}" for value in paper]
                shown.append(f"| | *paper* | {' | '.join(cells)} |")
    return shown


def _cell(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return "–"
    mean, spread = value
    return f"{100 * mean:.0f}" if spread is None else f"{100 * mean:.0f} ± {100 * spread:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    with open_bytes(parser.parse_args().table) as stream:
        print("\n".join(lines(json.load(stream))))


if __name__ == "__main__":
    main()

"""Figure of a table of `anyorder reproduce`: the BLEU of every order minus that of left-to-right.

    python scripts/plot_table.py FIGURE.svg table2.json
    python scripts/plot_table.py FIGURE.svg table1.json table1-gold.json --split test --max-length none

One panel per length rule, one group per direction. Several files are parts of one table. The bars of learned orders are
the standard deviation over the seeds. A filled marker differs significantly from left-to-right. Reads .json and
.json.xz.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from anyorder.data.corpus import open_bytes
from anyorder.reproduce.report import SIGNIFICANT
from anyorder.reproduce.tables import BASELINE, direction_title

STYLES = {
    "uniform": ("#999999", "x"),
    "easy-first": ("#56b4e9", "s"),
    "least-to-most": ("#56b4e9", "v"),
    "max-prob": ("#0072b2", "o"),
    "margin": ("#0072b2", "^"),
    "entropy": ("#0072b2", "D"),
    "learned:ppo": ("#cc79a7", "v"),
    "learned:hidden": ("#e69f00", "s"),
    "learned:confidence": ("#d55e00", "o"),
}
"""Colors (Okabe and Ito: safe for color-blind readers) and markers."""


def draw(axes: Any, parts: list[dict[str, Any]], directions: list[str]) -> None:
    axes.axhline(0, color="#000000", lw=0.8)
    for part in parts:
        group = directions.index(part["direction"])
        rows = {row["row"]: row for row in part["rows"]}
        shown = [name for name in STYLES if name in rows]
        for number, name in enumerate(shown):
            color, marker = STYLES[name]
            row, compared = rows[name], rows[name]["compared"][BASELINE]
            filled = compared["p_value"] < SIGNIFICANT or marker == "x"
            place = group + (number - (len(shown) - 1) / 2) * 0.085
            axes.errorbar(
                place, row["bleu"] - rows[BASELINE]["bleu"], yerr=row["spread"] or 0, color=color, lw=0.8, ls="none",
                marker=marker, ms=4.5, mfc=color if filled else "white",
            )  # fmt: skip
        if group % 2:
            axes.axvspan(group - 0.5, group + 0.5, color="#f2f2f2", lw=0, zorder=0)
    axes.set_xticks(range(len(directions)), [direction_title(direction) for direction in directions])
    axes.set_title(f"length {parts[0]['rule']}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def read(table: Path) -> dict[str, Any]:
    with open_bytes(table) as stream:
        found: dict[str, Any] = json.load(stream)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--max-length", type=lambda text: None if text == "none" else int(text), default=30)
    args = parser.parse_args()
    shown = {"split": args.split, "max_length": args.max_length}
    parts = [part for table in args.tables for part in read(table)["parts"] if part["part"] == shown]
    if not parts:
        parser.error("no column has this split and length limit")
    directions = list(dict.fromkeys(part["direction"] for part in parts))
    rules = list(dict.fromkeys(part["rule"] for part in parts))
    plt.rcParams.update({"font.size": 8, "svg.hashsalt": "anyorder", "svg.fonttype": "none"})
    figure, panels = plt.subplots(len(rules), 1, figsize=(8, 2.9 * len(rules)), sharex=True, squeeze=False)
    for axes, rule in zip(panels[:, 0], rules, strict=True):
        draw(axes, [part for part in parts if part["rule"] == rule], directions)
        axes.set_ylabel(f"BLEU minus {BASELINE}")
    for name, (color, marker) in STYLES.items():
        panels[0, 0].plot([], [], color=color, marker=marker, ms=4.5, ls="none", label=name)
    figure.legend(ncols=5, fontsize=7, frameon=False, loc="lower center")
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(args.figure, metadata={"Date": None})


if __name__ == "__main__":
    main()

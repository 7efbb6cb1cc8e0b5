"""Figures and tables of docs/regimes.md and the notes beside the recipes, from results of benchmarks/regimes.py.

    python scripts/plot_regimes.py FIGURE.svg RESULT.json [RESULT.json ...]

One panel a result: quality against forward passes, a color for each kind of regime, and a line through the regimes that
no other one beats in both. Standard output gets two Markdown tables of each result: that line, and the best regime of
every kind with at most a half, a third, a quarter and a sixth of the forward passes of one position a step.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

KINDS = {
    "one position a step": ("#000000", lambda schedule: schedule == "one"),
    "a number a step": ("#0072b2", str.isdigit),
    "a number of steps": ("#56b4e9", lambda schedule: schedule.startswith(("steps", "linear", "cosine", "dilated"))),
    "adaptive": ("#d55e00", lambda schedule: schedule.startswith(("threshold", "factor", "entropy", "klass"))),
    "blocks": ("#009e73", lambda schedule: schedule.startswith("blocks")),
}
"""Colors (Okabe and Ito: safe for color-blind readers), and which schedules are of each kind."""
REVISED, REVISED_COLOR = "with revision", "#cc79a7"
SHARES = (2, 3, 4, 6)

Row = dict[str, Any]


def kind_of(row: Row) -> str:
    if row["revision"] != "none":
        return REVISED
    return next(kind for kind, (_, includes) in KINDS.items() if includes(row["schedule"]))


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other one beats in quality with as few forward passes, by forward passes."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["forwards"], -row["quality"])):
        if not found or row["quality"] > found[-1]["quality"]:
            found.append(row)
    return found


def draw(axes: Any, result: dict[str, Any]) -> None:
    rows = result["rows"]
    for kind, color in [*((kind, color) for kind, (color, _) in KINDS.items()), (REVISED, REVISED_COLOR)]:
        own = [row for row in rows if kind_of(row) == kind]
        axes.scatter([r["forwards"] for r in own], [r["quality"] for r in own], s=11, color=color, label=kind, zorder=3)
    best = frontier(rows)
    axes.plot([row["forwards"] for row in best], [row["quality"] for row in best], color="#999999", lw=1, zorder=2)
    low, high = zip(*(row["interval"] for row in best), strict=True)
    axes.fill_between([row["forwards"] for row in best], low, high, color="#999999", alpha=0.15, lw=0, zorder=1)
    axes.set_xscale("log")
    ticks = [tick for tick in (2, 4, 8, 16, 32, 64, 128) if tick <= 1.2 * max(row["forwards"] for row in rows)]
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_xlabel("forward passes")
    axes.set_ylabel("BLEU" if result["metric"] == "BLEU" else "solved (%)")
    direction = f"{result['direction']}, " if result["direction"] else ""
    axes.set_title(f"{direction}{result['source']} ({result['size']:,})", fontsize=9)
    worst = sorted(row["quality"] for row in rows)[len(rows) // 20]
    axes.set_ylim(bottom=max(0, worst - 1))  # a few regimes that ruin everything are left out
    axes.spines[["top", "right"]].set_visible(False)


def tables(result: dict[str, Any]) -> list[str]:
    """Lines of Markdown."""
    rows = result["rows"]
    lines = ["| order | schedule | revision | forward passes | quality | 95% interval | difference from one by one |"]
    lines.append("|---|---|---|---|---|---|---|")
    lines += [as_line(row) for row in frontier(rows)]
    most = min(row["forwards"] for row in rows if (row["schedule"], row["revision"]) == ("one", "none"))
    kinds = [kind for kind in [*KINDS, REVISED] if kind != "one position a step"]
    lines += ["", f"| forward passes | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for share in SHARES:
        cells = []
        for kind in kinds:
            own = [row for row in rows if kind_of(row) == kind and row["forwards"] <= most / share]
            best = max(own, key=lambda row: row["quality"], default=None)
            cells.append(f"{best['quality']:.2f} `{name_of(best)}`" if best else "")
        lines.append(f"| ≤ {most / share:.1f} (1/{share}) | {' | '.join(cells)} |")
    return lines


def as_line(row: Row) -> str:
    low, high = row["interval"]
    change = ""
    if "difference" in row:
        change = (
            f"{row['difference']:+.2f} [{row['difference_interval'][0]:+.2f}, {row['difference_interval'][1]:+.2f}]"
        )
    names = " | ".join(f"`{row[key]}`" for key in ("order", "schedule", "revision"))
    return f"| {names} | {row['forwards']:.1f} | {row['quality']:.2f} | {low:.2f}–{high:.2f} | {change} |"


def name_of(row: Row) -> str:
    return " ".join(row[key] for key in ("order", "schedule", "revision") if row[key] not in ("none", "auto", "any"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    results = [json.loads(file.read_text(encoding="utf-8")) for file in options.results]
    plt.rcParams.update({"svg.hashsalt": "anyorder", "font.size": 9})
    figure, panels = plt.subplots(1, len(results), figsize=(4.6 * len(results), 3.6), squeeze=False)
    for axes, result in zip(panels[0], results, strict=True):
        draw(axes, result)
        print(f"{result['direction'] or ''} {result['source']}, compared with {result['compared_with']}\n")
        print("\n".join(tables(result)), "\n")
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=8, handletextpad=0.1)
    figure.savefig(options.figure, metadata={"Date": None})


if __name__ == "__main__":
    main()

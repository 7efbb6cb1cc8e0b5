"""Curves of learn-order runs, for the documentation.

    python scripts/plot_learning.py FIGURE.svg --direction de-en "the paper's=run1.jsonl,run2.jsonl" features=run3.jsonl

Each argument is a name and one or more logs, one per seed: the line is their mean, the band their range. Heuristic
orders in the logs are dotted lines.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
)  # Okabe and Ito: safe for color-blind readers


def entries(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def series(logs: list[list[dict[str, float]]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(points,) minutes and (logs, points) values, smoothed where there are many, on a common grid."""
    lines = [np.array([(entry["seconds"] / 60, entry[name]) for entry in log if name in entry]) for log in logs]
    grid = np.linspace(max(line[0, 0] for line in lines), min(line[-1, 0] for line in lines), 60)
    smooth = []
    for minutes, values in (line.T for line in lines):
        width = max(1, len(values) // 20)
        padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
        smooth.append(np.interp(grid, minutes, np.convolve(padded, np.ones(width) / width, mode="valid")))
    return grid, np.array(smooth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--direction", default="de-en")
    options = parser.parse_args()
    runs = {}
    for argument in options.runs:
        name, _, files = argument.rpartition("=")
        runs[name] = [entries(Path(file)) for file in files.split(",")]
    panels = {
        f"bleu {options.direction}": f"dev BLEU, {options.direction}",
        "reward": "reward of the rollouts",
        "entropy": "entropy (nats)",
        f"edge share {options.direction}": "edge share",
    }
    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none",
                         "svg.hashsalt": "anyorder"})  # fmt: skip
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), layout="constrained")
    for axis, (key, title) in zip(axes, panels.items(), strict=True):
        for (name, logs), color in zip(runs.items(), COLORS, strict=False):
            minutes, values = series(logs, key)
            axis.plot(minutes, values.mean(0), color=color, label=name)
            if len(logs) > 1:
                axis.fill_between(minutes, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)
        axis.set_title(title, loc="left")
        axis.set_xlabel("minutes")
    for order in ("left-to-right", "easy-first", "margin", "max-prob"):
        key = f"{order} {options.direction}"
        scores = [entry[key] for logs in runs.values() for log in logs for entry in log if key in entry]
        if scores:
            axes[0].axhline(scores[0], color="#777777", linestyle=":", linewidth=0.8)
            axes[0].annotate(
                order,
                (1, scores[0]),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=6,
                color="#555555",
            )
    axes[1].legend(frameon=False, fontsize=7)
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    plain = {"Date": None} if options.figure.suffix == ".svg" else None  # the same logs give the same file
    figure.savefig(options.figure, metadata=plain)


if __name__ == "__main__":
    main()

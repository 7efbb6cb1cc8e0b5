"""Print the shapes of orders: the tables in recipes/de-en/notes.md, from `anyorder analyze --json`.

    python scripts/findings.py De→En=analysis.de-en.json En→De=analysis.en-de.json

Every cell is a value with half the width of its 95% interval; the last row is what random orders give. A star marks
repetition rates that differ significantly from the first system's: the 95% interval of the difference, on the same
sentences, does not include 0.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

COLUMNS = {
    "outer-to-inner": ("label outer-to-inner",),
    "edge share": ("edge share",),
    "τ outer-in": ("kendall outer-in",),
    "τ left-to-right": ("kendall left-to-right",),
    "left-to-right (full stop may be first)": ("left-to-right share", "punctuation first share"),
    "nearly left-to-right": ("nearly left-to-right share",),
    "adjacent": ("adjacent share",),
    "suffix last": ("suffix last share",),
    "constituent in consecutive steps": ("constituent sentence share",),
    "function / content words": ("function word step", "content word step"),
    "repetitions (‰)": ("repetition rate",),
}
PAIRED = "function / content words"
STARRED = "repetitions (‰)"


def cell(column: str, metrics: list[dict[str, Any] | None], field: str) -> str:
    known = [metric for metric in metrics if metric is not None and metric[field] is not None]
    if len(known) < len(metrics):
        return "–"
    if column == PAIRED:
        return " / ".join(number(metric[field]) for metric in known)
    scale = 1000 if "‰" in column else 1
    value = scale * sum(metric[field] for metric in known)
    if field != "value":
        return number(value)
    half = scale * math.hypot(*((metric["high"] - metric["low"]) / 2 for metric in known))
    return f"{number(value)} ± {number(half)}{star(known[0]) if column == STARRED else ''}"


def star(metric: dict[str, Any]) -> str:
    """A star if the difference from the first system is significant."""
    low, high = metric["difference_low"], metric["difference_high"]
    return "" if low is None or low <= 0 <= high else "*"


def number(value: float) -> str:
    text = f"{value:.1f}" if abs(value) >= 1.05 else f"{value:.2f}"
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


def table(title: str, analysis: dict[str, Any]) -> str:
    lines = [f"{title}, {analysis['sentences']:,} sentences", "", "| order | " + " | ".join(COLUMNS) + " |"]
    lines.append("|" + "---|" * (len(COLUMNS) + 1))
    for system in analysis["systems"]:
        cells = [cell(column, [system["figures"].get(name) for name in names], "value")
                 for column, names in COLUMNS.items()]  # fmt: skip
        lines.append(f"| `{system['name']}` | " + " | ".join(cells) + " |")
    first = analysis["systems"][0]["figures"]
    cells = [cell(column, [first.get(name) for name in names], "null") for column, names in COLUMNS.items()]
    lines.append("| *random* | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("analyses", nargs="+", metavar="TITLE=FILE")
    for argument in parser.parse_args().analyses:
        title, _, file = argument.rpartition("=")
        print(table(title, json.loads(Path(file).read_text(encoding="utf-8"))), end="\n\n")


if __name__ == "__main__":
    main()

"""The tables of docs/analysis.md, from what `anyorder analyze --json` wrote.

    python scripts/findings.py De→En=analysis.de-en.json En→De=analysis.en-de.json

Every cell is a value with half the width of its 95% interval; the last row is what random orders give. A star says of
the repetitions that the 95% interval of the difference from the first system, on the same sentences, does not hold 0.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

COLUMNS = {
    "looks outer-in": ("label outer-to-inner",),
    "edge share": ("edge share",),
    "τ outer-in": ("kendall outer-in",),
    "τ left-to-right": ("kendall left-to-right",),
    "left-to-right, or after the full stop": ("left-to-right share", "punctuation first share"),
    "adjacent": ("adjacent share",),
    "suffix last": ("suffix last share",),
    "a constituent in one go": ("constituent sentence share",),
    "function / content words": ("function word step", "content word step"),
    "repetitions (‰)": ("repetition rate",),
}
PAIRED = "function / content words"
STARRED = "repetitions (‰)"


def cell(column: str, figures: list[dict[str, Any] | None], field: str) -> str:
    known = [figure for figure in figures if figure is not None and figure[field] is not None]
    if len(known) < len(figures):
        return "–"
    if column == PAIRED:
        return " / ".join(number(figure[field]) for figure in known)
    scale = 1000 if "‰" in column else 1
    value = scale * sum(figure[field] for figure in known)
    if field != "value":
        return number(value)
    half = scale * math.hypot(*((figure["high"] - figure["low"]) / 2 for figure in known))
    return f"{number(value)} ± {number(half)}{star(known[0]) if column == STARRED else ''}"


def star(figure: dict[str, Any]) -> str:
    """* where the difference from the first system cannot well be chance."""
    low, high = figure["difference_low"], figure["difference_high"]
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
    chance = analysis["systems"][0]["figures"]
    cells = [cell(column, [chance.get(name) for name in names], "null") for column, names in COLUMNS.items()]
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

"""Print what orders recover, from results of `anyorder evaluate --json` called MODEL.SHARE.json:

    python recipes/real-models/table.py recipes/real-models/results/*.json > recipes/real-models/results/tables.md

One table a model: orders in rows, shares of masked tokens in columns; percent recovered, its 95% interval over lines,
and p against the first order. p is not corrected for the number of orders.
"""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from anyorder.decoding.signature import Signature


def tables(files: list[Path]) -> str:
    """A section for each model."""
    groups = groupby(sorted(files), key=lambda file: file.name.partition(".")[0])
    return "\n".join(section(name, list(group)) for name, group in groups)


def section(name: str, files: list[Path]) -> str:
    results = sorted((json.loads(file.read_text(encoding="utf-8")) for file in files), key=share_of)
    first = [result["rows"][0] for result in results]
    lines = ["| order | " + " | ".join(f"{share_of(result):.0%} masked" for result in results) + " |"]
    lines.append("|---" * (1 + len(results)) + "|")
    for order in (row["system"] for row in results[0]["rows"]):
        cells = [cell(row) for result in results for row in result["rows"] if row["system"] == order]
        lines.append(f"| `{order}` | " + " | ".join(cells) + " |")
    tokens = ", ".join(f"{row['tokens']:,}" for row in first)
    scored = f"{first[0]['lines']} lines; masked tokens: {tokens}"
    return "\n".join([f"## {name}", "", *lines, "", f"{scored}. `{results[0]['signature']}`", ""])


def share_of(result: dict[str, Any]) -> float:
    return float(Signature.parse(result["signature"])["mask.share"])


def cell(row: dict[str, Any]) -> str:
    low, high = row["recovered_interval"]
    shown = f"{row['recovered']:.1f} ({low:.1f}–{high:.1f})"
    for p in row["p_values"].values():
        shown += " p < .001" if p < 0.001 else f" p = {p:.3f}".replace("0.", ".")
    return shown


if __name__ == "__main__":
    print("# What orders recover\n")
    print(tables([Path(name) for name in sys.argv[1:]]), end="")

"""Print the table of BLEU in docs/results.md from the files that `anyorder evaluate --json` wrote (0.1.0 or later).

    python scripts/results_table.py recipes/de-en/results

Orders called NAME, NAME-seed-2 and NAME-seed-3 were learned with different seeds and are otherwise the same; the row
below the first gives mean and standard deviation of the three. The best order of a column is bold.
"""

import argparse
import json
import re
import statistics
from pathlib import Path

COLUMNS = [(direction, split) for direction in ("de-en", "en-de") for split in ("dev", "test")]
TABLES = {"gold": ".*", "confidence": r"learned:confidence(-seed-\d+)?"}
"""The evaluations, and a pattern for the orders that the table takes from each."""
HEADER = "| order | De→En dev ≤30 | dev | test ≤30 | test | En→De dev ≤30 | dev | test ≤30 | test |"


def read(folder: Path) -> dict[str, list[float]]:
    """BLEU by order, one number per column."""
    scores: dict[str, list[float]] = {}
    for name, pattern in TABLES.items():
        for direction, split in COLUMNS:
            table = json.loads((folder / f"{split}.{direction}.{name}.json").read_text(encoding="utf-8"))
            for limit in (30, None):
                for row in table["rows"]:
                    if row["max_length"] == limit and re.fullmatch(pattern, row["order"]):
                        scores.setdefault(row["order"], []).append(row["bleu"])
    return scores


def lines(scores: dict[str, list[float]]) -> list[str]:
    """The table, line by line."""
    families: dict[str, list[list[float]]] = {}
    for order, values in scores.items():
        families.setdefault(re.sub(r"[:-]seed-\d+$", "", order), []).append(values)
    best = [max(column) for column in zip(*(values[0] for values in families.values()), strict=True)]
    table = [HEADER, "|---" * 9 + "|"]
    for name, seeds in families.items():
        cells = [
            f"**{value:.2f}**" if value == top else f"{value:.2f}" for value, top in zip(seeds[0], best, strict=True)
        ]
        table.append(f"| `{name}` | {' | '.join(cells)} |")
        if len(seeds) > 1:
            spread = [
                f"{statistics.mean(column):.2f} ± {statistics.stdev(column):.2f}" for column in zip(*seeds, strict=True)
            ]
            table.append(f"| *{len(seeds)} seeds* | {' | '.join(spread)} |")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    print("\n".join(lines(read(parser.parse_args().results))))


if __name__ == "__main__":
    main()

"""Print the tables of recipes/de-en/notes.md, docs/results.md and README.md from what `anyorder evaluate --json` wrote.

    python scripts/results_table.py recipes/de-en/results

First come all orders, then the rows that README.md and docs/results.md show, then the p-values of the learned orders.
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
LIMITS = (30, None)
LABELS = "De→En dev ≤30 | dev | test ≤30 | test | En→De dev ≤30 | dev | test ≤30 | test"
SUMMARY_ORDERS = ("uniform", "left-to-right", "easy-first", "max-prob", "margin", "learned", "learned:confidence")
SUMMARY_LABELS = "De→En newstest2013 | newstest2014 | En→De newstest2013 | newstest2014"
BASELINES = ("left-to-right", "easy-first", "entropy", "max-prob", "margin")


def read(folder: Path) -> dict[str, list[float]]:
    """BLEU by order, one number per column."""
    scores: dict[str, list[float]] = {}
    for name, pattern in TABLES.items():
        for direction, split in COLUMNS:
            table = json.loads((folder / f"{split}.{direction}.{name}.json").read_text(encoding="utf-8"))
            for limit in LIMITS:
                for row in table["rows"]:
                    if row["max_length"] == limit and re.fullmatch(pattern, row["order"]):
                        scores.setdefault(row["order"], []).append(row["bleu"])
    return scores


def lines(scores: dict[str, list[float]]) -> list[str]:
    """All orders: the table in recipes/de-en/notes.md, line by line."""
    families: dict[str, list[list[float]]] = {}
    for order, values in scores.items():
        families.setdefault(re.sub(r"[:-]seed-\d+$", "", order), []).append(values)
    best = [max(column) for column in zip(*(values[0] for values in families.values()), strict=True)]
    table = header("order", LABELS)
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


def summary_lines(scores: dict[str, list[float]]) -> list[str]:
    """Seven orders on whole test sets: the table in README.md and docs/results.md."""
    rows = {order: scores[order][1::2] for order in SUMMARY_ORDERS}
    best = [max(column) for column in zip(*rows.values(), strict=True)]
    table = header("order", SUMMARY_LABELS)
    for order, values in rows.items():
        cells = [
            f"**{value:.2f}**" if value == top else f"{value:.2f}" for value, top in zip(values, best, strict=True)
        ]
        table.append(f"| `{order}` | {' | '.join(cells)} |")
    return table


def p_value_lines(folder: Path, order: str) -> list[str]:
    """The p-values of an order against the heuristic ones, in the columns of the first table.

    The files hold those of version 0.1, which are one-sided.
    """
    columns: list[dict[str, float]] = []
    for direction, split in COLUMNS:
        table = json.loads((folder / f"{split}.{direction}.confidence.json").read_text(encoding="utf-8"))
        for limit in LIMITS:
            columns += [
                row["p_values"] for row in table["rows"] if row["order"] == order and row["max_length"] == limit
            ]
    table = header(f"`{order}` against, one-sided p", LABELS)
    for baseline in BASELINES:
        cells = [f"{column[baseline]:.3f}".removeprefix("0") for column in columns]
        table.append(f"| `{baseline}` | {' | '.join(cells)} |")
    return table


def header(first: str, labels: str) -> list[str]:
    return [f"| {first} | {labels} |", "|---" * (labels.count("|") + 2) + "|"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    folder = parser.parse_args().results
    scores = read(folder)
    tables = [lines(scores), summary_lines(scores)]
    tables += [p_value_lines(folder, order) for order in ("learned", "learned:confidence")]
    print("\n\n".join("\n".join(table) for table in tables))


if __name__ == "__main__":
    main()

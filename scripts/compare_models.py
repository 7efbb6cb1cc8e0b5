"""Compare two models with which `anyorder reproduce` decoded the same test sets, order by order.

    python scripts/compare_models.py runs/scratch-scores runs/distilled-scores --data data/raw --model multi

For every direction, set, length rule and order that both folders have, it prints the BLEU of both models, the
difference, and its p-value (two-sided paired randomization, not corrected). BLEU is that of the tables. `--model` is
any model with the same vocabulary; its rules split the references into words.
"""

import argparse
from functools import cache
from pathlib import Path

import anyorder
from anyorder.decoding.trajectory import read_trajectories
from anyorder.evaluation.evaluate import score_systems
from anyorder.reproduce.data_folders import DataFolders


def cells(results: Path) -> dict[tuple[str, ...], Path]:
    """The trajectories in a folder of results, by direction, set, length rule and order."""
    files = sorted((results / "decode").glob("*/*/*/*/*/trajectories.jsonl.xz"))
    return {file.parts[-5:-1]: file for file in files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="a folder of results")
    parser.add_argument("second", type=Path, help="another one")
    parser.add_argument("--data", type=Path, required=True, help="the test sets as text")
    parser.add_argument("--model", required=True, help="a model with the same vocabulary")
    arguments = parser.parse_args()
    data, model = DataFolders([arguments.data]), anyorder.load(arguments.model, device="cpu")
    first, second = cells(arguments.first), cells(arguments.second)
    both = sorted(key for key in first.keys() & second.keys() if key[2] != "own")  # that of autoregressive baselines
    if not both:
        parser.error("the folders have no order in common")
    open_set = cache(lambda direction, split: data.split_set(model.with_task(direction), split).test_set)
    print("| direction | set | length | order | first | second | Δ | p |\n|---|---|---|---|---:|---:|---:|---:|")
    for key in both:
        direction, folder, length, order = key
        split = folder.rpartition("-")[0]
        known = open_set(direction, split)
        systems = {"first": list(read_trajectories(first[key])), "second": list(read_trajectories(second[key]))}
        one, two = score_systems(systems, known.metrics(range(len(known.examples))), direction).rows
        change = two.bleu - one.bleu
        cells_of_row = (direction, split, length, order, f"{one.bleu:.2f}", f"{two.bleu:.2f}", f"{change:+.2f}")
        print(f"| {' | '.join(cells_of_row)} | {two.p_values['first']:.3f} |", flush=True)


if __name__ == "__main__":
    main()

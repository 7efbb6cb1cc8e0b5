"""Replace the targets of a store's training pairs by the translations of an autoregressive baseline.

    python scripts/distill.py data/six/de-en-tuning runs/baseline/model data/six/de-en-distilled

The new corpora, and the only language into which each is translated, are printed for `masking.only_into`.
"""

import argparse
from pathlib import Path

import torch

from anyorder import progress
from anyorder.data.store import Store
from anyorder.errors import InputError
from anyorder.reproduce.distillation import distill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="a prepared store of two languages")
    parser.add_argument("baseline", type=Path, help="a model that 'anyorder reproduce --baseline' trained")
    parser.add_argument("out", type=Path, help="the store to write")
    parser.add_argument("--pairs", type=int, help="training pairs to translate, drawn at random (default: all)")
    parser.add_argument("--minutes", type=float, help="begin no more pairs after this time")
    parser.add_argument("--beam", type=int, default=1, help="beam size (default: greedy)")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with progress.bar("translating", unit="sentences") as bar:
            result = distill(
                Store(arguments.store),
                arguments.baseline,
                arguments.out,
                pairs=arguments.pairs,
                minutes=arguments.minutes,
                beam=arguments.beam,
                device=device,
                on_progress=bar.advance,
            )
    except InputError as error:
        parser.exit(2, f"{error}\n")
    print(f"{result.pairs:,} pairs in both directions")
    for language, kept in result.kept.items():
        print(f"{kept:,} of the translations into {language} had no word or no end; the real ones were kept")
    for corpus, language in result.only_into.items():
        print(f"    {corpus}: {language}")


if __name__ == "__main__":
    main()

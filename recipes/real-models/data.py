"""Make the texts of this recipe from the examples in the source distributions of two other packages on PyPI:

    python recipes/real-models/data.py wheels/anarci-2026.2.13.2.tar.gz wheels/drfp-0.3.7.tar.gz --out runs

Antibodies: chains of the Protein Data Bank from ANARCI's examples (BSD license), cut to the variable domain. Reactions:
those of US patents in the 50,000 of Schneider et al. (2015), from DRFP's data (MIT license). Chains that share most of
their fragments are dropped but for the first, so that none is in both files.
"""

import argparse
import csv
import io
import random
import re
import tarfile
from pathlib import Path

SMILES = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
FOURTH_FRAMEWORK = re.compile(r"[FW][GAS].[GA]T")
"""Starts the last ten (light chain) or eleven (heavy chain) amino acids of a variable domain."""


def member(archive: Path, ending: str) -> str:
    """The text of one file in a source distribution."""
    with tarfile.open(archive) as packed:
        name = next(name for name in packed.getnames() if name.endswith(ending))
        stream = packed.extractfile(name)
        assert stream is not None
        return stream.read().decode("utf-8")


def variable_domains(fasta: str) -> list[str]:
    """Chains up to the end of their variable domain, in the order of the file; near repeats are left out."""
    kept: list[tuple[str, set[str]]] = []
    for record in fasta.split(">")[1:]:
        chain = "".join(record.split("\n")[1:]).strip()
        end = FOURTH_FRAMEWORK.search(chain, 85, 125)
        if end is None:
            continue
        domain = chain[: end.start() + (11 if end[0][0] == "W" else 10)]
        pieces = {domain[i : i + 4] for i in range(len(domain) - 3)}
        if len(domain) >= 95 and all(len(pieces & other) < 0.7 * len(pieces | other) for _, other in kept):
            kept.append((domain, pieces))
    return [domain for domain, _ in kept]


def reactions(table: str, shortest: int, longest: int) -> list[str]:
    """Reactions of that many symbols, each written as precursors>>product."""
    found = {}
    for row in csv.DictReader(io.StringIO(table), delimiter="\t"):
        reaction = row["rxn"]
        symbols = SMILES.findall(reaction)
        if shortest <= len(symbols) <= longest and "".join(symbols) == reaction:
            found[reaction.partition(">>")[2]] = reaction  # one for each product
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("anarci", type=Path)
    parser.add_argument("drfp", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--test", type=int, default=100, help="lines to evaluate on, behind those to learn from")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    texts = {
        "antibodies": variable_domains(member(given.anarci, "antibody_sequences.fasta")),
        "reactions": reactions(member(given.drfp, "schneider50k.tsv"), shortest=20, longest=60),
    }
    for name, lines in texts.items():
        random.Random(1).shuffle(lines)
        learn, test = lines[: -given.test], lines[-given.test :]
        for part, chosen in (("learn", learn[:2000]), ("test", test)):
            (given.out / f"{name}.{part}.txt").write_text("\n".join(chosen) + "\n", encoding="utf-8")
        print(f"{name}: {len(learn[:2000])} lines to learn from, {len(test)} to evaluate on")


if __name__ == "__main__":
    main()

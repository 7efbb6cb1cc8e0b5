"""BLEU against multi-bleu.perl's formula, written down from its definition."""

import math
from collections import Counter

import pytest

from anyorder.evaluation import bleu
from tests.conftest import toy_pairs


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    correct, total, produced, expected = [0] * 4, [0] * 4, 0, 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        words, others = hypothesis.split(), reference.split()
        produced, expected = produced + len(words), expected + len(others)
        for n in range(1, 5):
            ours = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            theirs = Counter(tuple(others[i : i + n]) for i in range(len(others) - n + 1))
            total[n - 1] += sum(ours.values())
            correct[n - 1] += sum(min(count, theirs[gram]) for gram, count in ours.items())
    if 0 in correct:
        return 0.0
    penalty = 1.0 if produced >= expected else math.exp(1 - expected / produced)
    return 100 * penalty * math.exp(sum(math.log(c / t) for c, t in zip(correct, total, strict=True)) / 4)


def score(hypotheses: list[str], references: list[str]) -> float:
    return float(bleu.multi_bleu().corpus_score(hypotheses, [references]).score)


REFERENCES = [english.replace(".", " .") for _, english in toy_pairs(40, seed=2)]
WORSE = [" ".join([*line.split()[:-2], "."]) if i % 3 else line for i, line in enumerate(REFERENCES)]
WORST = [line.lower() if i % 2 else line.replace("the", "a") for i, line in enumerate(WORSE)]


@pytest.mark.parametrize("lines", [REFERENCES, WORSE, WORST, ["nothing alike"] * 40])
def test_bleu_is_multi_bleu(lines: list[str]) -> None:
    assert score(lines, REFERENCES) == pytest.approx(multi_bleu(lines, REFERENCES), abs=1e-9)


def test_case_counts_and_punctuation_is_not_split_again() -> None:
    assert score(["The dog saw it ."], ["the dog saw it ."]) < 100
    assert score(["He saw it today."], ["He saw it today ."]) == 0

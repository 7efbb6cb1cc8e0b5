"""BLEU against multi-bleu.perl's formula, written down from its definition."""

import math
from collections import Counter

import pytest

from anyorder.evaluation.bleu import corpus_bleu, corpus_chrf
from anyorder.evaluation.significance import p_values
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


REFERENCES = [english.replace(".", " .") for _, english in toy_pairs(40, seed=2)]
WORSE = [" ".join([*line.split()[:-2], "."]) if i % 3 else line for i, line in enumerate(REFERENCES)]
WORST = [line.lower() if i % 2 else line.replace("the", "a") for i, line in enumerate(WORSE)]


@pytest.mark.parametrize("lines", [REFERENCES, WORSE, WORST, ["nothing alike"] * 40])
def test_bleu_is_multi_bleu(lines: list[str]) -> None:
    assert corpus_bleu(lines, REFERENCES) == pytest.approx(multi_bleu(lines, REFERENCES), abs=1e-9)


def test_case_counts_and_punctuation_is_not_split_again() -> None:
    assert corpus_bleu(["The dog saw it ."], ["the dog saw it ."]) < 100
    assert corpus_bleu(["He saw it today."], ["He saw it today ."]) == 0


def test_chrf() -> None:
    assert corpus_chrf(["The dog."], ["The dog."]) == 100
    assert 0 < corpus_chrf(["The dog."], ["The log."]) < 100


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_p_values(test: str) -> None:
    similar = list(WORSE)  # two lines better, two lines worse
    similar[1], similar[2], similar[3], similar[6] = REFERENCES[1], REFERENCES[2], WORSE[3][3:], WORSE[6][3:]
    systems = [similar, WORSE, REFERENCES]
    found = p_values(WORSE, systems, REFERENCES, test, samples=300)  # type: ignore[arg-type]
    assert found[0] > 0.05
    assert found[1] == 1.0
    assert found[2] < 0.01
    assert p_values(WORSE, systems, REFERENCES, test, samples=300) == found  # type: ignore[arg-type]
    assert p_values(WORSE, [], REFERENCES) == []


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_systems_with_the_same_score_do_not_differ_significantly(test: str) -> None:
    other_errors = [line.replace(REFERENCES[i].split()[-2], "?") for i, line in enumerate(REFERENCES)]
    same_score = [line.replace("?", "!") for line in other_errors]
    assert p_values(other_errors, [same_score], REFERENCES, test, samples=50) == [1.0]  # type: ignore[arg-type]

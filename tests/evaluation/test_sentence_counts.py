"""Counts of sentences: their sums give sacreBLEU's scores, of whole test sets and of resampled ones."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from anyorder.evaluation.bleu import bleu_of_sums, multi_bleu, sentence_counts
from tests.conftest import toy_pairs

METRICS = {
    "multi-bleu": multi_bleu(),
    **{tokenize: BLEU(tokenize=tokenize, force=True) for tokenize in ("13a", "intl", "zh", "char", "none")},
    "floor": BLEU(smooth_method="floor", force=True),
    "add-k": BLEU(smooth_method="add-k", smooth_value=0.5, force=True),
    "effective order": BLEU(effective_order=True, lowercase=True, max_ngram_order=3, force=True),
}
TEXT = st.text("aB cé,.-字学 $", max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=6), st.sampled_from(sorted(METRICS)), st.booleans())
def test_scores_are_those_of_sacrebleu(lines: list[tuple[str, str, str]], name: str, two_references: bool) -> None:
    hypotheses, *references = ([line[i] for line in lines] for i in range(3 if two_references else 2))
    metric = METRICS[name]
    expected = metric.corpus_score(hypotheses, references).score
    counts = sentence_counts(metric, hypotheses, references)
    assert counts.shape == (len(lines), 2 + 2 * metric.max_ngram_order)
    assert bleu_of_sums(metric, counts.sum(0).astype(float)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", METRICS)
def test_resampled_test_sets(name: str) -> None:
    metric, draw = METRICS[name], random.Random(1)
    references = [english for _, english in toy_pairs(20, seed=3)]
    hypotheses = [" ".join(word for word in line.split() if draw.random() > 0.2) for line in references]
    counts = sentence_counts(metric, hypotheses, [references])
    chosen = np.array([[draw.randrange(20) for _ in range(20)] for _ in range(6)])
    scores = bleu_of_sums(metric, counts[chosen].sum(1).astype(float))
    for rows, score in zip(chosen, scores, strict=True):
        again = metric.corpus_score([hypotheses[i] for i in rows], [[references[i] for i in rows]])
        assert score == pytest.approx(again.score, abs=1e-9)

"""Scores of plain strings, all computed by sacreBLEU. Knows nothing about trajectories or models."""

from collections.abc import Sequence
from functools import cache

from sacrebleu.metrics import BLEU, CHRF


def multi_bleu() -> BLEU:
    """What multi-bleu.perl prints: case-sensitive BLEU-4 on words that are already separated by spaces, unsmoothed."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], metric: BLEU | None = None) -> float:
    """BLEU of a test set, 0 to 100; `multi_bleu` on lines of words if no metric is given."""
    return float((metric or multi_bleu()).corpus_score(list(hypotheses), [list(references)]).score)


def corpus_chrf(systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> list[float]:
    """chrF2 of each system's texts, 0 to 100, on plain text; each set of references has one per sentence."""
    metric = CHRF(references=references)
    return [float(metric.corpus_score(texts, None).score) for texts in systems]


def sentence_bleu(text: str, reference: str) -> float:
    """BLEU of one sentence on sacreBLEU's 13a tokens, smoothed, up to the longest n-gram that the sentence has."""
    return float(_sentence_metric().sentence_score(text, [reference]).score)


@cache
def _sentence_metric() -> BLEU:
    return BLEU(effective_order=True)

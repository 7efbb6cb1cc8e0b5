"""Scores, all of them sacreBLEU's.

`bleu` is what multi-bleu.perl prints: case-sensitive BLEU-4 on tokens that are already there (Moses words, subwords
joined), one reference, no smoothing. `chrf` is chrF2 on the text a reader sees.
"""

from collections.abc import Sequence
from functools import cache

from sacrebleu.metrics import BLEU, CHRF


def multi_bleu() -> BLEU:
    return BLEU(tokenize="none", smooth_method="none", force=True)


def chrf() -> CHRF:
    return CHRF()


def corpus_bleu(words: Sequence[str], references: Sequence[str]) -> float:
    """Both as lines of words separated by spaces."""
    return float(multi_bleu().corpus_score(list(words), [list(references)]).score)


def corpus_chrf(texts: Sequence[str], references: Sequence[str]) -> float:
    """Both as plain text."""
    return float(chrf().corpus_score(list(texts), [list(references)]).score)


def sentence_bleu(text: str, reference: str) -> float:
    """Of one sentence, both as plain text: on sacreBLEU's tokens (13a), smoothed, no n-gram longer than it."""
    return float(_sentences().sentence_score(text, [reference]).score)


@cache
def _sentences() -> BLEU:
    return BLEU(effective_order=True)


def bleu_signature() -> str:
    """sacreBLEU's own signature, with the tokens named."""
    metric = multi_bleu()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature()).replace("tok:none", "tok:moses")

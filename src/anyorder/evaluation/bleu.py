"""BLEU and chrF, all computed by sacreBLEU: of plain strings, and as metrics of trajectories. Needs no model.

A `Scorer` says which strings BLEU compares and how it tokenizes them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU, CHRF

from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError, unknown
from anyorder.evaluation.metrics import Counts, Metric

_SENTENCE_BLEU = BLEU(effective_order=True)


def multi_bleu() -> BLEU:
    """What multi-bleu.perl prints: case-sensitive BLEU-4 on words that are already separated by spaces, unsmoothed."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def sentence_bleu(text: str, reference: str) -> float:
    """BLEU of one sentence on sacreBLEU's 13a tokens, smoothed, up to the longest n-gram that the sentence has."""
    return float(_SENTENCE_BLEU.sentence_score(text, [reference]).score)


def default_tokenizer(language: str, otherwise: str = "moses") -> str:
    """The default BLEU tokenizer for a target language: `zh` for Chinese, as at WMT.

    Chinese text has no spaces between words, so BLEU on words would depend on the segmenter.
    """
    return "zh" if language == "zh" else otherwise


class Scorer(ABC):
    """One way to compute BLEU, by default on plain text. chrF is the same for all of them: chrF2 on plain text."""

    name: str
    """The tokens that BLEU counts, as the signature names them (`bleu.tok`)."""

    @abstractmethod
    def metric(self) -> BLEU:
        """sacreBLEU's metric."""

    def hypotheses(self, trajectories: Sequence[Trajectory]) -> list[str]:
        """One string per trajectory, as the metric takes it."""
        return [trajectory.text for trajectory in trajectories]

    def references(self, references: Sequence[str]) -> list[str]:
        """One plain reference per sentence, as the metric takes them."""
        return list(references)


class SacreBLEUScorer(Scorer):
    """sacreBLEU with its defaults on the trajectories' `text`: what `sacrebleu reference < text` prints.

    tokenize: sacreBLEU's tokenizer: `13a`, `zh`, `char`, `intl`, `none` and so on.
    """

    def __init__(self, tokenize: str = "13a"):
        if tokenize not in BLEU.TOKENIZERS:
            raise unknown("tokenizer", tokenize, BLEU.TOKENIZERS)
        self.name = tokenize
        self.metric()

    def metric(self) -> BLEU:
        try:
            return BLEU(tokenize=self.name)
        except (ImportError, OSError, RuntimeError) as error:  # some tokenizers need their own packages or models
            raise InputError(f"'{self.name}': {' '.join(str(error).split())}", "tokenize") from None


class MosesScorer(Scorer):
    """multi-bleu.perl on Moses words: the words that the trajectories' tokens spell against those of the references.

    split_words: splits plain references into words, as the model's own text processing does.
    """

    name = "moses"

    def __init__(self, split_words: Callable[[Sequence[str]], list[str]]):
        self._split_words = split_words

    def metric(self) -> BLEU:
        return multi_bleu()

    def hypotheses(self, trajectories: Sequence[Trajectory]) -> list[str]:
        return [" ".join(trajectory.words) for trajectory in trajectories]

    def references(self, references: Sequence[str]) -> list[str]:
        return self._split_words(references)


def make_scorer(tokenize: str | Scorer, words: Mapping[str, str]) -> Scorer:
    """The scorer of that name: `moses`, or a tokenizer of sacreBLEU. words: the Moses words of every reference."""
    if tokenize == "moses":
        return MosesScorer(lambda references: [words[text] for text in references])
    return SacreBLEUScorer(tokenize) if isinstance(tokenize, str) else tokenize


class Bleu(Metric):
    """Counts per sentence: its length, the reference's, N of matched n-grams and N of all n-grams.

    references: lists of plain references, each with one per sentence.
    """

    name, heading, digits, unit = "bleu", "BLEU", 2, "sentence"

    def __init__(self, scorer: Scorer, references: Sequence[Sequence[str]]):
        self._scorer, self.metric = scorer, scorer.metric()
        self.metric._ref_cache = self.metric._cache_references([scorer.references(one) for one in references])

    def counts(self, trajectories: Sequence[Trajectory]) -> NDArray[np.int64]:
        return sentence_counts(self.metric, self._scorer.hypotheses(trajectories))

    def value(self, sums: Counts) -> float:
        """Exactly what sacreBLEU's `corpus_score` gives."""
        return float(self.metric._compute_score_from_stats([int(count) for count in sums]).score)

    def score(self, sums: Counts) -> NDArray[np.float64]:
        return bleu_of_sums(self.metric, sums)

    def settings(self) -> dict[str, str]:
        """sacreBLEU's own signature, by key."""
        parts = (part.partition(":") for part in str(self.metric.get_signature()).split("|"))
        settings = {**{key: value for key, _, value in parts}, "tok": self._scorer.name}
        return {f"bleu.{key}": value for key, value in settings.items()}


class ChrF(Metric):
    """chrF2 on plain text. Counts per sentence: of each n, the n-grams of text and reference, and those that match."""

    name, heading, unit = "chrf", "chrF", "sentence"

    def __init__(self, references: Sequence[Sequence[str]]):
        self._metric = CHRF(references=references)

    def counts(self, trajectories: Sequence[Trajectory]) -> NDArray[np.int64]:
        return sentence_counts(self._metric, [trajectory.text for trajectory in trajectories])

    def value(self, sums: Counts) -> float:
        return float(self._metric._compute_f_score([int(count) for count in sums]))

    def score(self, sums: Counts) -> NDArray[np.float64]:
        return np.apply_along_axis(self.value, -1, sums)


def sentence_counts(
    metric: BLEU | CHRF, texts: Sequence[str], references: Sequence[Sequence[str]] | None = None
) -> NDArray[np.int64]:
    """(sentences, K) what sacreBLEU sums over sentences; by default with the references that the metric holds."""
    # sacreBLEU's own paired tests start like this; its public functions return sums only.
    return np.array(metric._extract_corpus_statistics(texts, references), np.int64)


def bleu_of_sums(metric: BLEU, sums: Counts) -> NDArray[np.float64]:
    """BLEU of many test sets at once, (...), from their summed counts, (..., 2 + 2N); smoothed as in the metric."""
    order = metric.max_ngram_order
    produced, expected = sums[..., 0], sums[..., 1]
    matched, total = sums[..., 2 : 2 + order], sums[..., 2 + order :]
    any_matched = matched.any(-1)
    default = BLEU.SMOOTH_DEFAULTS[metric.smooth_method]
    value = default if metric.smooth_value is None else metric.smooth_value
    if metric.smooth_method == "add-k":
        added = value * (np.arange(order) > 0)
        matched, total = matched + added, total + added
    possible = total > 0
    missing = possible & (matched == 0)
    if metric.smooth_method == "exp":
        matched = np.where(missing, 0.5 ** np.cumsum(missing, -1), matched)
    elif metric.smooth_method == "floor":
        matched = np.where(missing, value, matched)
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity_penalty = np.exp(np.minimum(0.0, 1 - expected / produced))
        logarithms = np.log(matched / np.where(possible, total, 1))
    if metric.effective_order:
        mean = np.where(possible, logarithms, 0.0).sum(-1) / np.maximum(1, possible.sum(-1))
    else:
        mean = logarithms.mean(-1)
    return np.where(any_matched, 100 * brevity_penalty * np.exp(mean), 0.0)

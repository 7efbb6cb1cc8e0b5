"""How trajectories are scored: which strings BLEU compares and how it tokenizes them. Needs no model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from sacrebleu.metrics import BLEU

from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError, unknown
from anyorder.evaluation.bleu import multi_bleu


def default_tokenizer(language: str, otherwise: str = "moses") -> str:
    """The default BLEU tokenizer for a target language: `zh` for Chinese, as at WMT.

    Chinese text has no spaces between words, so BLEU on words would depend on the segmenter.
    """
    return "zh" if language == "zh" else otherwise


class Scorer(ABC):
    """One way to compute BLEU. chrF is the same for all of them: chrF2 on plain text."""

    name: str
    """The tokens that BLEU counts, as the signature names them (`bleu.tok`)."""

    @abstractmethod
    def metric(self) -> BLEU:
        """sacreBLEU's metric."""

    @abstractmethod
    def hypotheses(self, trajectories: Sequence[Trajectory]) -> list[str]:
        """One string per trajectory, as the metric takes it."""

    @abstractmethod
    def references(self, references: Sequence[str]) -> list[str]:
        """One plain reference per sentence, as the metric takes them."""

    def settings(self, references: int = 1) -> dict[str, str]:
        """sacreBLEU's own signature, by key, with this many references per sentence."""
        metric = self.metric()
        metric.corpus_score(["a"], [["a"]] * references)  # before this, sacreBLEU does not know their number
        parts = (part.partition(":") for part in str(metric.get_signature()).split("|"))
        return {**{key: value for key, _, value in parts}, "tok": self.name}


class SacreBLEUScorer(Scorer):
    """sacreBLEU with its defaults on the trajectories' `text`: what `sacrebleu reference < text` prints.

    Args:
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

    def hypotheses(self, trajectories: Sequence[Trajectory]) -> list[str]:
        return [trajectory.text for trajectory in trajectories]

    def references(self, references: Sequence[str]) -> list[str]:
        return list(references)


class MosesScorer(Scorer):
    """multi-bleu.perl on Moses words: the words that the trajectories' tokens spell against those of the references.

    Args:
        split_words: Splits plain references into words, as the model's own text processing does.
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

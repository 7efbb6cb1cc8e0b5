"""Decode a test set in several orders, then score it: the only part of the evaluation that needs a model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError, check_number
from anyorder.evaluation.evaluate import MIN_SAMPLES, Evaluation, Score, check_against, evaluate
from anyorder.evaluation.scorers import MosesScorer, SacreBLEUScorer, Scorer
from anyorder.evaluation.significance import Test
from anyorder.orders import Order
from anyorder.orders.storage import default_order
from anyorder.translator import Sentence, Translator

HEURISTIC_ORDERS = (
    "left-to-right",
    "right-to-left",
    "uniform",
    "outer-in:stride=1",
    "outer-in:stride=2",
    "outer-in:stride=3",
    "least-to-most",
    "easy-first",
    "entropy",
    "max-prob",
    "margin",
)
"""The orders of an evaluation that names none."""
DIGITS = 4
"""Scores of fresh trajectories are rounded to so many digits."""


def evaluate_orders(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    direction: str,
    orders: Sequence[str | Order] | None = None,
    max_lengths: Sequence[int | None] = (None,),
    config: DecodingConfig | None = None,
    tokenize: str | Scorer = "moses",
    against: Sequence[str] = (),
    test: Test = "bootstrap",
    samples: int = 1000,
    names: tuple[str, str] = ("sources", "references"),
    on_progress: Callable[[int], None] = lambda sentences: None,
) -> Evaluation:
    """Decode a test set in several orders and score each within every length limit.

    A limit selects the pairs with at most so many subwords on both sides. A sentence is decoded once, however many
    limits it is within. Pairs with an empty side are left out.

    Args:
        translator: The model; see `anyorder.load`.
        sources: Plain sentences to translate.
        references: One plain reference per source.
        direction: Source and target language, such as `de-en`.
        orders: The orders to compare; all heuristic ones, and the model's learned one, if not given.
        max_lengths: Length limits in subwords; None for no limit.
        config: Schedule, length rule (gold if not given) and seed; its order does not matter.
        tokenize: `moses` (multi-bleu.perl on Moses words, subwords joined), a tokenizer of sacreBLEU, or a `Scorer`.
        against: Orders that p-values compare with; the first one if none is named.
        test: See `evaluate`.
        samples: See `evaluate`.
        names: What messages call sources and references.
        on_progress: Called with the number of sentences that were decoded since the last call.
    """
    if len(sources) != len(references):
        raise InputError(f"{names[0]} has {len(sources):,} sentences but {names[1]} has {len(references):,}")
    by_name = _named(orders if orders is not None else default_orders(translator, direction))
    check_against(against, list(by_name))
    check_number("samples", samples, at_least=MIN_SAMPLES)
    config = config or DecodingConfig(length="gold")
    configs = {name: replace(config, order=order) for name, order in by_name.items()}
    for order_config in configs.values():
        order_config.bind(translator.model, direction)  # a learned order that does not exist is refused before decoding
    pairs = _encode(translator, direction, sources, references)
    scorer = _scorer(tokenize, dict(zip(references, pairs.reference_words, strict=True)))
    limits = sorted(set(max_lengths) or {None}, key=lambda limit: (limit is None, limit))
    within = {limit: _within(pairs, limit, names) for limit in limits}
    _check_room(translator, pairs, within[limits[-1]], names)
    decoded = {
        name: _decode_by_limit(translator, pairs.sentences, direction, order_config, within, on_progress)
        for name, order_config in configs.items()
    }
    rows: list[Score] = []
    for limit, indices in within.items():
        systems = {name: [order.trajectories[i] for i in indices] for name, order in decoded.items()}
        scored = evaluate(systems, [references[i] for i in indices], scorer, against, test, samples)
        rows += [
            replace(
                row,
                max_length=limit,
                bleu=round(row.bleu, DIGITS),
                chrf=round(row.chrf, DIGITS),
                seconds=round(decoded[row.system].seconds[limit], 3),
            )
            for row in scored.rows
        ]
    return Evaluation(scored.signature, direction, rows)


def default_orders(translator: Translator, direction: str) -> list[str]:
    """All heuristic orders, and the model's learned one if it has one for this direction."""
    learned = ["learned"] if default_order(translator.model, direction) == "learned" else []
    return [*HEURISTIC_ORDERS, *learned]


@dataclass(frozen=True)
class _Pairs:
    """An encoded test set."""

    sentences: list[Sentence]
    reference_words: list[str]
    longer_side: np.ndarray
    """(pairs,) int64: subwords of the longer side; the largest integer where a side is empty."""


@dataclass(frozen=True)
class _Decoded:
    """A test set in one order."""

    trajectories: dict[int, Trajectory]
    """By the number of the pair."""
    seconds: dict[int | None, float]
    """Time spent on the sentences within each limit."""


_EMPTY = np.iinfo(np.int64).max


def _named(orders: Sequence[str | Order]) -> dict[str, str | Order]:
    by_name = {order if isinstance(order, str) else order.name or order.identity: order for order in orders}
    if not by_name:
        raise InputError("no order is given", "orders")
    return by_name


def _scorer(tokenize: str | Scorer, words: dict[str, str]) -> Scorer:
    """The scorer of that name; `words` holds the Moses words of every reference."""
    if tokenize == "moses":
        return MosesScorer(lambda references: [words[text] for text in references])
    return SacreBLEUScorer(tokenize) if isinstance(tokenize, str) else tokenize


def _encode(translator: Translator, direction: str, sources: Sequence[str], references: Sequence[str]) -> _Pairs:
    source_language, target_language = translator.direction_languages(direction)
    encode = translator.model.vocabulary.encode
    source_ids = [np.array(ids, np.int64) for ids in encode(translator.words(sources, source_language))]
    reference_words = translator.words(references, target_language)
    lengths = [len(ids) for ids in encode(reference_words)]
    return _Pairs(
        [Sentence(*pair) for pair in zip(sources, source_ids, lengths, strict=True)],
        reference_words,
        np.array(
            [
                max(len(ids), length) if len(ids) and length else _EMPTY
                for ids, length in zip(source_ids, lengths, strict=True)
            ],
            np.int64,
        ),
    )


def _within(pairs: _Pairs, limit: int | None, names: tuple[str, str]) -> list[int]:
    """The numbers of the pairs within a limit."""
    found = np.flatnonzero(pairs.longer_side <= (_EMPTY - 1 if limit is None else limit)).tolist()
    if not found:
        missing = "text" if limit is None else f"at most {limit} subwords"
        raise InputError(f"{' and '.join(names)}: no pair has {missing} on both sides")
    return found


def _check_room(translator: Translator, pairs: _Pairs, indices: Sequence[int], names: tuple[str, str]) -> None:
    """An `InputError` for the first pair that has more subwords than the model has positions."""
    sentences, lines = [pairs.sentences[i] for i in indices], [i + 1 for i in indices]
    translator.check_lengths([len(sentence.ids) for sentence in sentences], lines, names[0])
    translator.check_lengths([sentence.reference_length or 0 for sentence in sentences], lines, names[1])


def _decode_by_limit(
    translator: Translator,
    sentences: Sequence[Sentence],
    direction: str,
    config: DecodingConfig,
    within: dict[int | None, list[int]],
    on_progress: Callable[[int], None],
) -> _Decoded:
    """Decode limit by limit, from the strictest, each sentence once."""
    trajectories: dict[int, Trajectory] = {}
    seconds: dict[int | None, float] = {}
    spent = 0.0
    for limit, indices in within.items():
        remaining = [i for i in indices if i not in trajectories]
        start = time.perf_counter()
        done = list(translator.decode([sentences[i] for i in remaining], direction, config, on_progress))
        spent += time.perf_counter() - start
        trajectories.update(zip(remaining, done, strict=True))
        seconds[limit] = spent
    return _Decoded(trajectories, seconds)

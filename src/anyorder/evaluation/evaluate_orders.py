"""Decode a test set in several orders, then score it: the only part of the evaluation that needs a model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyorder.data.lines import LineNote, Problem, clean_line, is_empty, join_notes, refuse
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.revision import Revision
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.sentence import Sentence, encode_sentences
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.evaluate import Evaluation, Score, check_against, check_test, evaluate
from anyorder.evaluation.references import References, reference_sets
from anyorder.evaluation.regimes import name_regimes
from anyorder.evaluation.scorers import Scorer, default_tokenizer, make_scorer
from anyorder.evaluation.significance import SAMPLES, Test
from anyorder.orders import Order
from anyorder.orders.storage import default_order
from anyorder.translator import Translator

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
"""The default orders of an evaluation."""
DIGITS = 4
"""Digits that scores of newly decoded trajectories are rounded to."""


def evaluate_orders(
    translator: Translator,
    sources: Sequence[str],
    references: References,
    direction: str,
    orders: Sequence[str | Order] | None = None,
    max_lengths: Sequence[int | None] = (None,),
    config: DecodingConfig | None = None,
    tokenize: str | Scorer | None = None,
    against: Sequence[str] = (),
    test: Test = "randomization",
    samples: int = SAMPLES,
    names: Sequence[str] = ("sources", "references"),
    strict: bool = False,
    on_progress: Callable[[int], None] = lambda sentences: None,
    schedules: Sequence[str | int | Schedule] | None = None,
    revisions: Sequence[str | Revision] | None = None,
) -> Evaluation:
    """Decode a test set in several orders, with one or several schedules and revisions, and score each system.

    A limit selects the pairs with at most that many subwords on both sides. Every sentence is decoded only once. Pairs
    with an empty side are left out. A source that is too long for the model is split, see `Translator.translate`; with
    the length rule `gold`, each part gets a share of the reference's length, as far as it fits. `Evaluation.lines`
    lists all these cases.

    Args:
        translator: The model; see `anyorder.load`.
        sources: Plain sentences to translate.
        references: One plain reference per source, or several lists of them; see `evaluate`. Gold lengths and length
            limits use the first list.
        direction: Source and target language, such as `de-en`.
        orders: The orders to compare; by default all heuristic orders and the model's learned order.
        max_lengths: Length limits in subwords; None for no limit.
        config: Schedule, revision, length rule (gold if no config is given), seed and so on; its order is ignored.
        tokenize: `moses` (multi-bleu.perl on Moses tokens, subwords joined), a sacreBLEU tokenizer, or a `Scorer`; by
            default `zh` into Chinese and `moses` into other languages.
        against: Baseline systems for the p-values, named by their orders; by default the first one.
        test: See `evaluate`.
        samples: See `evaluate`.
        names: Names of sources and references in messages, such as file names.
        strict: Whether to raise an `InputError` for a pair that would be left out or changed.
        on_progress: Called with the number of sentences decoded since the last call.
        schedules: Schedules to compare, each with every order; by default the config's. With several, systems have
            names such as `margin threshold:0.9`.
        revisions: Revisions to compare, likewise, with names such as `margin one mask-predict:10`.
    """
    sets = reference_sets(references)
    for one in sets:
        if len(sources) != len(one):
            raise InputError(f"{names[0]} has {len(sources):,} sentences but {names[1]} has {len(one):,}")
    config = config or DecodingConfig(length="gold")
    orders = default_orders(translator, direction) if orders is None else orders
    configs = name_regimes(config, orders, schedules, revisions)
    check_against(against, list(configs))
    check_test(test, samples)
    translator.direction_languages(direction)  # fail on an unknown direction before looking for an order
    for order_config in configs.values():
        order_config.bind(translator.model, direction)  # fail before decoding if a learned order does not exist
    pairs = _encode(translator, direction, sources, sets, config.length == "gold")
    scorer = make_scorer(tokenize or default_tokenizer(translator.direction_languages(direction)[1]), pairs.words)
    limits = sorted(set(max_lengths) or {None}, key=lambda limit: (limit is None, limit))
    within = {limit: _within(pairs, limit, names) for limit in limits}
    lines = _line_notes(pairs, set(within[limits[-1]]))
    if strict:
        for line in lines:
            refuse(pairs.problems[line.line - 1], line.line, _names_by_side(names, len(sets)))
    decoded = {
        name: _decode_by_limit(translator, pairs.sentences, direction, order_config, within, on_progress)
        for name, order_config in configs.items()
    }
    rows: list[Score] = []
    notes: list[str] = []
    for limit, indices in within.items():
        systems = {name: [order.trajectories[i] for i in indices] for name, order in decoded.items()}
        expected = [[one[i] for i in indices] for one in pairs.references]
        scored = evaluate(systems, expected, scorer, against, test, samples)
        rows += [
            replace(row.rounded(DIGITS), max_length=limit, seconds=round(decoded[row.system].seconds[limit], 3))
            for row in scored.rows
        ]
        notes += [note if limit is None else f"≤{limit}: {note}" for note in scored.notes]
    return Evaluation(scored.signature, direction, rows, notes, lines)


def default_orders(translator: Translator, direction: str) -> list[str]:
    """All heuristic orders, and the model's learned order if it has one for this direction."""
    learned = ["learned"] if default_order(translator.model, direction) == "learned" else []
    return [*HEURISTIC_ORDERS, *learned]


@dataclass(frozen=True)
class _Pairs:
    """An encoded test set."""

    sentences: list[Sentence]
    references: list[list[str]]
    """The lists of references as they are scored."""
    words: dict[str, str]
    """The Moses words of every reference."""
    problems: list[tuple[Problem, ...]]
    """Why a pair is left out or changed."""
    longer_side: np.ndarray
    """(pairs,) int64: subwords of the longer side; the largest integer where a side is empty."""


@dataclass(frozen=True)
class _Decoded:
    """A test set decoded in one order."""

    trajectories: dict[int, Trajectory]
    """By the index of the pair."""
    seconds: dict[int | None, float]
    """Time spent on the sentences within each limit."""


_EMPTY = np.iinfo(np.int64).max


def _encode(
    translator: Translator, direction: str, sources: Sequence[str], sets: Sequence[Sequence[str]], is_gold: bool
) -> _Pairs:
    _, target = translator.direction_languages(direction)
    cleaned = [[clean_line(text, _side(k)) for text in one] for k, one in enumerate(sets)]
    references = [[text for text, _ in one] for one in cleaned]
    words = {text: line for one in references for text, line in zip(one, translator.words(one, target), strict=True)}
    encoded = translator.model.vocabulary.encode([words[text] for text in references[0]])
    lengths = [len(ids) for ids in encoded]
    sentences = encode_sentences(translator.model, sources, direction, lengths if is_gold else None)
    problems = []
    longer_side = np.full(len(sources), _EMPTY, np.int64)
    for i, (sentence, length) in enumerate(zip(sentences, lengths, strict=True)):
        empty = () if length else (is_empty(_side(0)),)
        problems.append((*sentence.problems, *empty, *(problem for one in cleaned for problem in one[i][1])))
        if length and len(sentence.ids):
            longer_side[i] = max(len(sentence.ids), length)
    return _Pairs(sentences, references, words, problems, longer_side)


def _side(reference: int) -> str:
    """What notes call a list of references."""
    return "reference" if reference == 0 else f"reference {reference + 1}"


def _names_by_side(names: Sequence[str], references: int) -> dict[str, str]:
    """What errors call each side; lists of references without a name get the last name."""
    return {"source": names[0], **{_side(k): names[min(k + 1, len(names) - 1)] for k in range(references)}}


def _line_notes(pairs: _Pairs, used: set[int]) -> list[LineNote]:
    """Notes on pairs that are left out or changed, except those beyond every length limit."""
    empty = set(np.flatnonzero(pairs.longer_side == _EMPTY).tolist())
    return [
        LineNote(i + 1, join_notes(problems), scored=i in used)
        for i, problems in enumerate(pairs.problems)
        if problems and (i in used or i in empty)
    ]


def _within(pairs: _Pairs, limit: int | None, names: Sequence[str]) -> list[int]:
    """The indices of the pairs within a limit."""
    found = np.flatnonzero(pairs.longer_side <= (_EMPTY - 1 if limit is None else limit)).tolist()
    if not found:
        missing = "text" if limit is None else f"at most {limit} subwords"
        raise InputError(f"{' and '.join(names[:2])}: no pair has {missing} on both sides")
    return found


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

"""Orders times length limits: decode, score, compare, one row each."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anyorder.decoding.config import DecodingConfig, signature
from anyorder.decoding.engine import Hypothesis
from anyorder.errors import InputError
from anyorder.evaluation.bleu import bleu_signature, corpus_bleu, corpus_chrf
from anyorder.evaluation.significance import Test, p_values
from anyorder.orders import make_order
from anyorder.translator import Translator, direction_languages


@dataclass(frozen=True)
class Score:
    """One order on the sentences within one length limit."""

    order: str
    max_length: int | None
    sentences: int
    bleu: float
    chrf: float
    p_values: dict[str, float]
    """Against each order that was chosen to compare with, but itself."""
    seconds: float
    """Time spent decoding these sentences."""


@dataclass(frozen=True)
class Evaluation:
    signature: str
    direction: str
    rows: list[Score]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Pairs:
    """An encoded test set."""

    sources: list[str]
    references: list[str]
    source_ids: list[np.ndarray]
    reference_lengths: list[int]
    reference_words: list[str]
    names: tuple[str, str]
    """What messages call the two sides."""

    @property
    def longest(self) -> np.ndarray:
        """(pairs,) subwords of the longer side; infinite where a side is empty."""
        lengths = [
            max(len(ids), length) if len(ids) and length else np.iinfo(np.int64).max
            for ids, length in zip(self.source_ids, self.reference_lengths, strict=True)
        ]
        return np.array(lengths, np.int64)


def encode_pairs(
    translator: Translator,
    direction: str,
    sources: Sequence[str],
    references: Sequence[str],
    names: tuple[str, str] = ("source", "reference"),
) -> Pairs:
    source, target = direction_languages(translator.model, direction)
    encode, reference_words = translator.model.vocabulary.encode, translator.words(references, target)
    return Pairs(
        list(sources),
        list(references),
        [np.array(ids, np.int64) for ids in encode(translator.words(sources, source))],
        [len(ids) for ids in encode(reference_words)],
        reference_words,
        names,
    )


def evaluate(
    translator: Translator,
    pairs: Pairs,
    direction: str,
    orders: Sequence[str],
    max_lengths: Sequence[int | None] = (None,),
    how: DecodingConfig | None = None,
    against: Sequence[str] = (),
    test: Test = "bootstrap",
    samples: int = 1000,
    advance: Callable[[int], None] = lambda sentences: None,
) -> Evaluation:
    """Score every order within every length limit, with p-values against some of them (the first if none is named).

    A limit takes the pairs with at most so many subwords on both sides. A sentence is decoded once however many limits
    it is within. `how` gives budget, length (gold if not given) and seed; its order does not matter.
    """
    orders = list(dict.fromkeys(orders))
    how = how or DecodingConfig.of(orders[0], length="gold")
    against = list(dict.fromkeys(against)) or [orders[0]]
    for order in against:
        if order not in orders:
            raise InputError(f"order to compare with '{order}': is not among those evaluated ({', '.join(orders)})")
    bound = {order: make_order(order).bind(translator.model, direction) for order in orders}
    limits = sorted(set(max_lengths), key=lambda limit: (limit is None, limit))
    longest = pairs.longest
    within = {limit: np.flatnonzero(longest <= (limit or np.iinfo(np.int64).max - 1)) for limit in limits}
    for limit in limits:
        if len(within[limit]) == 0:
            raise InputError(
                f"{' and '.join(pairs.names)}: no pair has "
                + ("text on both sides" if limit is None else f"at most {limit} subwords on both sides")
            )
    everything = within[limits[-1]]
    translator.check_room([len(pairs.source_ids[i]) for i in everything], everything + 1, pairs.names[0])
    translator.check_room([pairs.reference_lengths[i] for i in everything], everything + 1, pairs.names[1])
    made: dict[str, dict[int, Hypothesis]] = {order: {} for order in orders}
    seconds: dict[tuple[str, int | None], float] = {}
    for order in orders:
        spent = 0.0
        for limit in limits:
            todo = [int(i) for i in within[limit] if int(i) not in made[order]]
            start = time.perf_counter()
            done = translator.fill(
                [pairs.source_ids[i] for i in todo],
                direction,
                how.with_order(bound[order]),
                [pairs.reference_lengths[i] for i in todo],
                advance,
            )
            spent += time.perf_counter() - start
            seconds[order, limit] = spent
            made[order].update(zip(todo, done, strict=True))
    rows = []
    for limit in limits:
        chosen = [int(i) for i in within[limit]]
        references = [pairs.reference_words[i] for i in chosen]
        texts = [pairs.references[i] for i in chosen]
        vocabulary = translator.model.vocabulary
        lines = {order: [" ".join(vocabulary.words(made[order][i].ids)) for i in chosen] for order in orders}
        p_of: dict[str, dict[str, float]] = {order: {} for order in orders}
        for baseline in against:
            others = [order for order in orders if order != baseline]
            compared = p_values(lines[baseline], [lines[order] for order in others], references, test, samples)
            for order, value in zip(others, compared, strict=True):
                p_of[order][baseline] = value
        for order in orders:
            written = translator.sentences([made[order][i] for i in chosen], direction)
            rows.append(
                Score(
                    order=order,
                    max_length=limit,
                    sentences=len(chosen),
                    bleu=round(corpus_bleu(lines[order], references), 4),
                    chrf=round(corpus_chrf(written, texts), 4),
                    p_values=p_of[order],
                    seconds=round(seconds[order, limit], 3),
                )
            )
    # Names say what a heuristic order is, but not what was learned.
    identities = ["*", *(order.identity for order in bound.values() if order.identity != order.name)]
    decoded = signature(",".join(identities), how.budget.name, how.length.name, how.seed)
    compared_by = f"test:{test}|samples:{samples}|against:{','.join(against)}"
    return Evaluation(f"{decoded}|{bleu_signature()}|{compared_by}", direction, rows)

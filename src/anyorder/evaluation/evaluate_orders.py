"""Decode a test set in several orders, then score it. Here and in `test_set`, evaluation needs a model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.revision import Revision
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.bleu import Scorer
from anyorder.evaluation.evaluate import Evaluation, References, check_against, score_systems
from anyorder.evaluation.significance import SAMPLES, Test, check_test
from anyorder.evaluation.test_set import NAMES, TestSet, read_test_set
from anyorder.orders import Order
from anyorder.orders.learned import default_order
from anyorder.tasks import Infill

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
MASKED_ORDERS = ("uniform", "left-to-right", "right-to-left", "entropy", "max-prob", "margin")
"""The same where masks are filled."""


def evaluate_orders(
    decoder: Decoder,
    sources: Sequence[str],
    references: References | None = None,
    orders: Sequence[str | Order] | None = None,
    max_lengths: Sequence[int | None] = (None,),
    config: DecodingConfig | None = None,
    tokenize: str | Scorer | None = None,
    against: Sequence[str] = (),
    test: Test = "randomization",
    samples: int = SAMPLES,
    names: Sequence[str] = NAMES,
    strict: bool = False,
    on_progress: Callable[[int], None] = lambda lines: None,
    schedules: Sequence[str | int | Schedule] | None = None,
    revisions: Sequence[str | Revision] | None = None,
    mask_share: float | None = None,
) -> Evaluation:
    """Decode a test set in several orders, with one or several schedules and revisions, and score each system.

    What is scored depends on the decoder's task: translations by BLEU and chrF, puzzles by the share that is solved,
    and texts by the share of masked tokens that is recovered (`infill`; the tokens to mask are drawn at random).

    A limit selects the lines with at most that many tokens (of a pair, on both sides). Every line is decoded only once.
    Lines that cannot be used, such as pairs with an empty side, are left out. A source that is too long for the model
    is split, see `Decoder.translate`; with the length rule `gold`, each part gets a share of the reference's length, as
    far as it fits. `Evaluation.lines` lists all these cases.

    Args:
        decoder: The model and its task; see `anyorder.load`.
        sources: Plain sentences to translate, puzzles, or texts to mask.
        references: One plain reference per source, or several lists of them; see `evaluate`. Gold lengths and length
            limits use the first list. For puzzles their solutions, if known. For texts none.
        orders: The orders to compare; by default the heuristic orders and the model's learned order.
        max_lengths: Length limits in subwords; None for no limit.
        config: Schedule, revision, length rule (gold if no config is given), seed and so on; its order is ignored. The
            seed is that of the masks, too.
        tokenize: `moses` (multi-bleu.perl on Moses tokens, subwords joined), a sacreBLEU tokenizer, or a `Scorer`; by
            default `zh` into Chinese and `moses` into other languages.
        against: Baseline systems for the p-values, named by their orders; by default the first one.
        test: See `evaluate`.
        samples: See `evaluate`.
        names: Names of sources and references in messages, such as file names.
        strict: Whether to raise an `InputError` for a line that would be left out or changed.
        on_progress: Called with the number of lines decoded since the last call.
        schedules: Schedules to compare, each with every order; by default the config's. With several, systems have
            names such as `margin threshold:0.9`.
        revisions: Revisions to compare, likewise, with names such as `margin one mask-predict:10`.
        mask_share: Fraction of each text's tokens to mask, at least two; by default half.
    """
    config = config or DecodingConfig(length="gold")
    configs = name_regimes(config, default_orders(decoder) if orders is None else orders, schedules, revisions)
    check_against(against, list(configs))
    check_test(test, samples)
    for order_config in configs.values():
        decoder.bind(order_config)  # fail before decoding if a learned order does not exist
    test_set = read_test_set(
        decoder, sources, references, config.length == "gold", tokenize, mask_share, config.seed, names, strict
    )
    limits = sorted(set(max_lengths) or {None}, key=lambda limit: (limit is None, limit))
    within = {limit: test_set.within(limit) for limit in limits}
    used = within[limits[-1]]
    lines, metrics = test_set.notes(used, strict), test_set.metrics(used)
    decoded = {name: _decode_by_limit(test_set, own, within, on_progress) for name, own in configs.items()}
    systems = {name: [trajectories[i] for i in used] for name, (trajectories, _) in decoded.items()}
    place = {i: k for k, i in enumerate(used)}
    indices = {limit: [place[i] for i in found] for limit, found in within.items()}
    scored = score_systems(systems, metrics, decoder.task.name, against, test, samples, indices)
    rows = [replace(row.rounded(), seconds=round(decoded[row.system][1][row.max_length], 3)) for row in scored.rows]
    return replace(scored, rows=rows, lines=lines)


def default_orders(decoder: Decoder) -> list[str]:
    """The heuristic orders, and the model's learned order if it has one for this task."""
    learned = ["learned"] if default_order(decoder.model, decoder.task.mode) == "learned" else []
    return [*(MASKED_ORDERS if isinstance(decoder.task, Infill) else HEURISTIC_ORDERS), *learned]


def _decode_by_limit(
    test_set: TestSet, config: DecodingConfig, within: dict[int | None, list[int]], on_progress: Callable[[int], None]
) -> tuple[dict[int, Trajectory], dict[int | None, float]]:
    """Decode limit by limit, from the strictest, each example once. Returns also the time spent within each limit."""
    trajectories: dict[int, Trajectory] = {}
    seconds: dict[int | None, float] = {}
    spent = 0.0
    for limit, indices in within.items():
        remaining = [i for i in indices if i not in trajectories]
        start = time.perf_counter()
        done = test_set.decode(config, remaining, on_progress)
        spent += time.perf_counter() - start
        trajectories.update(zip(remaining, done, strict=True))
        seconds[limit] = spent
    return trajectories, seconds


def name_regimes(
    config: DecodingConfig,
    orders: Sequence[str | Order],
    schedules: Sequence[str | int | Schedule] | None = None,
    revisions: Sequence[str | Revision] | None = None,
) -> dict[str, DecodingConfig]:
    """The config of each system by name: the order's, then the schedule's and the revision's if there are several.

    config: everything else, and the schedule and revision if none are given.
    """
    if not orders:
        raise InputError("is empty: name an order", "orders")
    schedules = [config.schedule] if schedules is None else schedules
    revisions = [config.revision] if revisions is None else revisions
    named: dict[str, DecodingConfig] = {}
    for order, schedule, revision in product(orders, schedules, revisions):
        parts = [order, *([schedule] if len(schedules) > 1 else []), *([revision] if len(revisions) > 1 else [])]
        name = " ".join(map(_name, parts))
        regime = replace(config, order=order, schedule=schedule, revision=revision)
        if named.setdefault(name, regime) != regime:
            raise InputError(f"two systems are called '{name}': give their orders or schedules different names")
    return named


def _name(part: str | int | Order | Schedule | Revision) -> str:
    return str(part) if isinstance(part, str | int) else part.name or type(part).__name__

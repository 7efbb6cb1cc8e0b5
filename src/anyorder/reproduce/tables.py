"""The tables as data: which rows (orders) and which columns (directions, splits, length limits) each one has.

Knows nothing about models, files or results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from anyorder.errors import InputError, unknown
from anyorder.reproduce.paper import BLEU, LAMBDAS, LEARNED, LEARNED_2019, REWARDS, ablation_name

SIX_DIRECTIONS = ("de-en", "en-de", "ro-en", "en-ro", "zh-en", "en-zh")
RULES = ("table:4", "gold", "candidates:4")
"""Length rules: the paper's, then ours."""
BASELINE = "left-to-right"
"""The baseline of every difference and p-value in a table."""


@dataclass(frozen=True)
class Row:
    """One order of a table. What a learned one does not say comes from the scale's settings."""

    name: str
    """That of the order, unless the row overrides something."""
    kind: str = ""
    """Of a learned order, as the settings of a scale call it: features, confidence, hidden or ppo."""
    reward: str | None = None
    """Overrides the kind's reward."""
    entropy_coef: float | None = None
    """Overrides the kind's entropy coefficient."""

    @property
    def is_ablation(self) -> bool:
        """Whether it is only compared with its neighbors, for which a scale may choose shorter runs."""
        return self.reward is not None


@dataclass(frozen=True)
class Part:
    """A part of a test set."""

    split: str
    max_length: int | None = None
    """Maximum number of subwords on both sides; None for all sentences."""

    @property
    def text(self) -> str:
        return self.split if self.max_length is None else f"{self.split} ≤{self.max_length}"


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    name: str
    title: str
    rows: tuple[Row, ...]
    parts: tuple[Part, ...]
    directions: tuple[str, ...]
    rules: tuple[str, ...] = RULES
    metrics: tuple[str, ...] = ()
    """Metrics of the orders to show beside BLEU, as `analyze` calls them."""
    takes_baseline: bool = False
    """Whether it has rows for an autoregressive model."""

    def paper_bleu(self, direction: str, part: Part, row: str) -> float | None:
        """The paper's number, if it has one."""
        return BLEU[self.name].get((direction, part.split, part.max_length, row))


def _heuristics(*names: str) -> tuple[Row, ...]:
    return tuple(map(Row, names))


def _ablations(rewards: Sequence[str], entropy_coefs: Sequence[float]) -> tuple[Row, ...]:
    """Left-to-right, then the paper's order with each of these rewards and entropy coefficients."""
    pairs = product(rewards, entropy_coefs)
    return Row(BASELINE), *(Row(ablation_name(*pair), "hidden", *pair) for pair in pairs)


_HIDDEN, _PPO = Row(LEARNED, "hidden"), Row(LEARNED_2019, "ppo")
_OURS = (Row("learned", "features"), Row("learned:confidence", "confidence"))
_ALL_ROWS = (
    *_heuristics("uniform", BASELINE, "easy-first", "least-to-most"),
    *(_PPO, _HIDDEN),
    *_heuristics("max-prob", "margin", "entropy"),
    *_OURS,
)
_WHOLE, _SHORT = Part("dev"), Part("dev", 30)
_TAU = "kendall left-to-right"
_SHAPE = (_TAU, "label outer-to-inner", "nearly left-to-right share")
_TABLES = (
    Table(
        "table1", "Table 1: whole dev and test sets",
        _ALL_ROWS,
        (Part("test"), _WHOLE), SIX_DIRECTIONS, takes_baseline=True,
    ),
    Table(
        "table2", "Table 2: dev sentences of at most 20 and 30 subwords",
        _ALL_ROWS,
        (Part("dev", 20), _SHORT), SIX_DIRECTIONS, takes_baseline=True,
    ),
    Table(
        "table3", "Table 3: the weight of the entropy bonus",
        _ablations(["bleu"], LAMBDAS),
        (_SHORT,), ("de-en", "ro-en"), metrics=(_TAU,),
    ),
    Table(
        "table4", "Table 4: BLEU and likelihood as reward",
        _ablations(REWARDS, [weight for weight in LAMBDAS if weight]),
        (_SHORT,), ("de-en",),
    ),
    Table(
        "table5", "Table 5: fixed outer-to-inner orders and learned ones",
        (*_heuristics(BASELINE, *(f"outer-in:stride={stride}" for stride in (1, 2, 3))), _HIDDEN, *_OURS),
        (_SHORT, _WHOLE), ("de-en", "en-de", "ro-en", "en-ro"),
    ),
    Table(
        "causes", "Causes: reward and entropy bonus",
        _ablations(["bleu", "edit-distance"], [0.001, 0.0]),
        (_SHORT, _WHOLE), ("de-en",), metrics=_SHAPE,
    ),
    Table(
        "analysis", "Section 5: what the orders look like",
        (*_heuristics(BASELINE, "easy-first", "margin"), _PPO, _HIDDEN, *_OURS),
        (_SHORT, _WHOLE), SIX_DIRECTIONS, rules=("table:4",),
        metrics=(*_SHAPE, "suffix last share", "constituent sentence share"),
    ),
)  # fmt: skip
TABLES = {table.name: table for table in _TABLES}


def find_table(name: str, rows: Sequence[str] = (), max_lengths: Sequence[int | None] = ()) -> Table:
    """The table of that name, or some rows and parts of it; an `InputError` for a name or limit that it does not have.

    Left-to-right always stays, because all others are compared with it.
    """
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    table = TABLES[name]
    names, limits = [row.name for row in table.rows], dict.fromkeys(part.max_length for part in table.parts)
    for row in rows:
        if row not in names:
            raise unknown("row", row, names)
    for limit in max_lengths:
        if limit not in limits:
            raise unknown("length limit", _limit_text(limit), map(_limit_text, limits))
    chosen = tuple(row for row in table.rows if not rows or row.name in (*rows, BASELINE))
    parts = tuple(part for part in table.parts if not max_lengths or part.max_length in max_lengths)
    return replace(table, rows=chosen, parts=parts)


def _limit_text(limit: int | None) -> str:
    return "none" if limit is None else str(limit)


def direction_title(direction: str) -> str:
    """A direction as tables print it.

    >>> direction_title("de-en")
    'De→En'
    """
    source, dash, target = direction.partition("-")
    if not dash:
        raise InputError(f"'{direction}': expected source and target language, such as de-en", "direction")
    return f"{source.capitalize()}→{target.capitalize()}"

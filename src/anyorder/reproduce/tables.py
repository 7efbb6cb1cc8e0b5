"""The paper's tables as data: which rows (orders) and columns (directions, splits, length limits) each one has.

Below them are the numbers in the paper, for comparison with ours; nothing here is computed. Source: Jiang & Bansal,
"Learning and Analyzing Generation Order for Undirected Sequence Models", Findings of EMNLP 2021; tables 1 to 5, and
sections 4 and 5 for the causes and the analysis. BLEU, greedy, one token per step. Knows nothing about models, files or
results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from anyorder.errors import InputError, unknown

SOURCE = "Jiang & Bansal (2021), Findings of EMNLP"
COST = "4 V100 for 72 hours a task (17,280 GPU minutes), sentences of at most 30 subwords"
BASELINE = "left-to-right"
"""The baseline of every difference and p-value in a table."""
LEARNED, LEARNED_2019 = "learned:hidden", "learned:ppo"
"""Our names for the paper's learned order, and for that of Mansimov et al. (2019)."""
HEURISTICS = ("uniform", BASELINE, "easy-first", "least-to-most")
OUTER_IN = ("outer-in:stride=1", "outer-in:stride=2", "outer-in:stride=3")
LAMBDAS = (0.01, 0.001, 0.0005, 0.0001, 0.0)
REWARDS = ("bleu", "likelihood")
SIX_DIRECTIONS = ("de-en", "en-de", "ro-en", "en-ro", "zh-en", "en-zh")
RULES = ("table:4", "gold", "candidates:4")
"""Length rules: the paper's, then ours."""


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


def ablation_name(reward: str, entropy_coef: float) -> str:
    """The row of an order that was learned with another reward or entropy coefficient.

    >>> ablation_name("bleu", 0.0005)
    'bleu, λ=0.0005'
    """
    return f"{reward}, λ={entropy_coef:g}"


def _ablations(rewards: Sequence[str], entropy_coefs: Sequence[float]) -> tuple[Row, ...]:
    """Left-to-right, then the paper's order with each of these rewards and entropy coefficients."""
    pairs = product(rewards, entropy_coefs)
    return Row(BASELINE), *(Row(ablation_name(*pair), "hidden", *pair) for pair in pairs)


_HIDDEN, _PPO = Row(LEARNED, "hidden"), Row(LEARNED_2019, "ppo")
_OURS = (Row("learned", "features"), Row("learned:confidence", "confidence"))
_ALL_ROWS = (*map(Row, HEURISTICS), _PPO, _HIDDEN, *map(Row, ("max-prob", "margin", "entropy")), *_OURS)
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
        (*map(Row, (BASELINE, *OUTER_IN)), _HIDDEN, *_OURS),
        (_SHORT, _WHOLE), ("de-en", "en-de", "ro-en", "en-ro"),
    ),
    Table(
        "causes", "Causes: reward and entropy bonus",
        _ablations(["bleu", "edit-distance"], [0.001, 0.0]),
        (_SHORT, _WHOLE), ("de-en",), metrics=_SHAPE,
    ),
    Table(
        "analysis", "Section 5: what the orders look like",
        (*map(Row, (BASELINE, "easy-first", "margin")), _PPO, _HIDDEN, *_OURS),
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


Key = tuple[str, str, int | None, str]
"""Direction, split, length limit (None: all sentences), row."""

_TABLE1 = {
    ("de-en", "test", None): (26.01, 28.34, 29.00, 28.85, 28.47, 28.64),
    ("de-en", "dev", None): (25.70, 28.21, 28.19, 27.30, None, 27.92),
    ("en-de", "test", None): (21.01, 24.27, 23.73, 23.08, 24.10, 24.19),
    ("en-de", "dev", None): (20.75, 23.60, 23.27, 22.61, None, 23.66),
    ("ro-en", "test", None): (30.62, 31.82, 32.47, 31.60, None, 32.18),
    ("ro-en", "dev", None): (30.95, 32.79, 33.22, 32.69, None, 33.23),
    ("en-ro", "test", None): (32.75, 35.55, 35.18, 34.59, None, 35.38),
    ("en-ro", "dev", None): (33.43, 36.38, 36.34, 35.14, None, 36.13),
}
_TABLE2 = {
    ("de-en", "dev", 20): (27.22, 28.48, 28.96, 28.14, 29.57),
    ("de-en", "dev", 30): (26.90, 28.89, 29.21, 28.12, 29.40),
    ("en-de", "dev", 20): (22.50, 23.83, 24.06, 23.08, 24.32),
    ("en-de", "dev", 30): (21.67, 23.86, 23.80, 22.88, 24.02),
    ("ro-en", "dev", 20): (30.53, 30.63, 30.92, 30.89, 31.09),
    ("ro-en", "dev", 30): (30.14, 31.26, 31.49, 31.27, 31.46),
    ("en-ro", "dev", 20): (33.68, 34.74, 35.67, 34.37, 34.65),
    ("en-ro", "dev", 30): (33.09, 34.77, 35.22, 33.96, 34.88),
    ("zh-en", "dev", 20): (19.94, 19.54, 20.10, 18.37, 22.18),
    ("zh-en", "dev", 30): (17.68, 19.44, 18.81, 18.03, 19.54),
    ("en-zh", "dev", 20): (27.25, 28.31, 26.69, 28.72, 28.61),
    ("en-zh", "dev", 30): (28.54, 29.69, 28.83, 30.37, 29.83),
}
_TABLE3 = {
    ("de-en", "dev", 30): (28.56, 29.40, 28.98, 28.74, 28.46),
    ("ro-en", "dev", 30): (31.41, 31.46, 31.46, 31.20, 30.92),
}
_TABLE4 = {("de-en", "dev", 30): (28.56, 29.40, 28.98, 28.74, 29.02, 29.17, 29.16, 28.85)}
_TABLE5 = {
    ("de-en", "dev", 30): (28.73, 28.86, 28.55, 29.40),
    ("de-en", "dev", None): (27.86, 27.81, 27.78, 27.92),
    ("en-de", "dev", 30): (23.36, 23.26, 23.19, 24.02),
    ("ro-en", "dev", 30): (31.05, 31.04, 31.04, 31.46),
    ("en-ro", "dev", 30): (34.23, 34.15, 33.95, 34.88),
}
_CAUSES = {("de-en", "dev", None): (27.92, 27.68)}


def _by_row(rows: Sequence[str], columns: Mapping[Any, Sequence[float | None]]) -> dict[Key, float]:
    return {
        (*column, row): value
        for column, values in columns.items()
        for row, value in zip(rows, values, strict=True)
        if value is not None
    }


BLEU: dict[str, dict[Key, float]] = {
    "table1": _by_row((*HEURISTICS, LEARNED_2019, LEARNED), _TABLE1),
    "table2": _by_row((*HEURISTICS, LEARNED), _TABLE2),
    "table3": _by_row([ablation_name("bleu", weight) for weight in LAMBDAS], _TABLE3),
    "table4": _by_row([ablation_name(reward, weight) for reward in REWARDS for weight in LAMBDAS if weight], _TABLE4),
    "table5": _by_row((*OUTER_IN, LEARNED), _TABLE5),
    "causes": _by_row([ablation_name(reward, 0.001) for reward in ("bleu", "edit-distance")], _CAUSES),
    "analysis": {},
}
"""BLEU by table."""

SHARES: dict[tuple[str, str, str], float] = {
    ("de-en", LEARNED, "label outer-to-inner"): 0.975,
    ("ro-en", LEARNED, "label outer-to-inner"): 0.975,
    ("en-de", LEARNED, "label outer-to-inner"): 0.86,
    ("en-ro", LEARNED, "label outer-to-inner"): 0.86,
    ("de-en", LEARNED, "suffix last share"): 0.33,
    ("ro-en", LEARNED, "suffix last share"): 0.56,
    ("de-en", LEARNED, "constituent sentence share"): 0.882,
    ("ro-en", LEARNED, "constituent sentence share"): 0.882,
    ("de-en", LEARNED_2019, "nearly left-to-right share"): 0.75,
}
"""Shares of sentences by direction, row and metric. 195 of 200 samples of De-En and Ro-En together are outer-to-inner,
86% of those of En-De and En-Ro; 172 of the 195 fill a constituent in consecutive steps. They were counted by hand."""

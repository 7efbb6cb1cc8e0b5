"""The numbers in the paper, for comparison with ours. Nothing here is computed.

Source: Jiang & Bansal, "Learning and Analyzing Generation Order for Undirected Sequence Models", Findings of EMNLP
2021; tables 1 to 5, and sections 4 and 5 for the causes and the analysis. BLEU, greedy, one token per step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

SOURCE = "Jiang & Bansal (2021), Findings of EMNLP"
COST = "4 V100 for 72 hours a task (17,280 GPU minutes), sentences of at most 30 subwords"
LEARNED, LEARNED_2019 = "learned:hidden", "learned:ppo"
"""Our names for the paper's learned order, and for that of Mansimov et al. (2019)."""

LAMBDAS = (0.01, 0.001, 0.0005, 0.0001, 0.0)
REWARDS = ("bleu", "likelihood")


def ablation_name(reward: str, entropy_coef: float) -> str:
    """The row of an order that was learned with another reward or entropy coefficient.

    >>> ablation_name("bleu", 0.0005)
    'bleu, λ=0.0005'
    """
    return f"{reward}, λ={entropy_coef:g}"


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
_HEURISTICS = ("uniform", "left-to-right", "easy-first", "least-to-most")


def _by_row(rows: Sequence[str], columns: Mapping[Any, Sequence[float | None]]) -> dict[Key, float]:
    return {
        (*column, row): value
        for column, values in columns.items()
        for row, value in zip(rows, values, strict=True)
        if value is not None
    }


BLEU: dict[str, dict[Key, float]] = {
    "table1": _by_row((*_HEURISTICS, LEARNED_2019, LEARNED), _TABLE1),
    "table2": _by_row((*_HEURISTICS, LEARNED), _TABLE2),
    "table3": _by_row([ablation_name("bleu", weight) for weight in LAMBDAS], _TABLE3),
    "table4": _by_row([ablation_name(reward, weight) for reward in REWARDS for weight in LAMBDAS if weight], _TABLE4),
    "table5": _by_row([*(f"outer-in:stride={stride}" for stride in (1, 2, 3)), LEARNED], _TABLE5),
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

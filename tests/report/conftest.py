"""Trajectories of a few sentences and an analysis of them."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anyorder.decoding.trajectory import Trajectory, Write
from anyorder.report.html import write_html

WORDS = ["the", "house", "is", "small", "Indi@@", "ana", "was", "first", "of", "accoun@@", "tability", "."]
LABELS = ["outer-to-inner", "left-to-right", "right-to-left", "inner-to-outer", "other"]


def trajectory(source: str, tokens: list[str], steps: list[int], order: str = "some") -> Trajectory:
    text = " ".join(tokens).replace("@@ ", "")
    return Trajectory(
        source, text, tokens, steps, [-0.1 * step for step in steps], order, len(tokens), f"order:{order}"
    )


def revised() -> Trajectory:
    """Two words, the first of which was written twice."""
    run = trajectory("s", ["new", "b"], [2, 1])
    return replace(run, writes=[Write(0, 1, "old", -1.5), Write(1, 1, "b", -0.1), Write(0, 2, "new", -0.2)])


def make_systems(count: int, orders: int = 3, seed: int = 0) -> dict[str, list[Trajectory]]:
    """The first order is left-to-right, the second right-to-left, the others are random."""
    generator = random.Random(seed)
    systems: dict[str, list[Trajectory]] = {f"order-{i}": [] for i in range(orders)}
    for number in range(count):
        length = generator.randint(3, 24)
        for i, (name, trajectories) in enumerate(systems.items()):
            steps = list(range(1, length + 1))
            if i == 1:
                steps.reverse()
            elif i > 1:
                generator.shuffle(steps)
            trajectories.append(
                trajectory(f"Satz Nummer {number + 1}", generator.choices(WORDS, k=length), steps, name)
            )
    return systems


def make_answers(count: int = 3) -> tuple[dict[str, list[Trajectory]], list[str]]:
    """4x4 puzzles with one clue: `right` fills the solution from the left, `wrong` from the right, its first cell wrong."""
    solution = "1234341221434321"
    systems: dict[str, list[Trajectory]] = {"right": [], "wrong": []}
    for number in range(count):
        clue = number % 15 + 1
        canvas = [cell if i == clue else None for i, cell in enumerate(solution)]
        source = "".join(cell or "0" for cell in canvas)
        for name, runs in systems.items():
            tokens = [cell for i, cell in enumerate(solution) if i != clue]
            steps = list(range(1, 16))
            if name == "wrong":
                tokens[0], steps = "2", steps[::-1]
            text = "".join([*tokens[:clue], solution[clue], *tokens[clue:]])
            runs.append(
                Trajectory(source, text, tokens, steps, [-0.1] * 15, name, 15, "", task="sudoku-4x4", canvas=canvas)
            )
    return systems, [solution] * count


def make_analysis(systems: dict[str, list[Trajectory]], seed: int = 0) -> dict[str, Any]:
    generator = random.Random(seed)
    count = len(next(iter(systems.values())))
    metric = {"value": 0.5, "low": 0.45, "high": 0.55, "null": 0.3, "null_low": 0.28, "null_high": 0.32, "count": count}
    share = [[0.05] * 20 for _ in range(20)]
    return {
        "format": 1,
        "sentences": count,
        "systems": [
            {
                "name": name,
                "signature": f"order:{name}",
                "figures": {
                    "kendall left-to-right": metric,
                    "edge share": metric,
                    "mean jump": {**metric, "value": 3.25},
                },
                "labels": dict(zip(LABELS, (0.5, 0.2, 0.1, 0.1, 0.1), strict=True)),
                "positions": {"bins": 20, "share": share},
                "jumps": {str(jump): 0.05 for jump in range(-10, 11) if jump},
                "by_tag": {"DET": metric, "NOUN": metric},
            }
            for name in systems
        ],
        "per_sentence": {
            "kendall left-to-right": [[generator.uniform(-1, 1) for _ in range(count)] for _ in systems],
            "sentence bleu": [[generator.uniform(0, 60) for _ in range(count)] for _ in systems],
            "label": [[generator.randrange(5) for _ in range(count)] for _ in systems],
        },
    }


@pytest.fixture
def opened(tab: Any, tmp_path: Path) -> Callable[..., Any]:
    """Writes a report and opens it."""

    def build(
        systems: Any, analysis: Any = None, references: Any = None, title: str = "Title", address: str = ""
    ) -> Any:
        file = tmp_path / "report.html"
        write_html(file, systems, analysis, references, title)
        tab.goto(file.as_uri() + address)
        tab.wait_for_selector("#panel-sentences", state="attached")
        return tab

    return build

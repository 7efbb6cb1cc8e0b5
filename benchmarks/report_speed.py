"""Measures how long a report takes to build, how large it is, and how fast it is in Chromium.

    python benchmarks/report_speed.py [--sentences 3000] [--orders 6] [--browser /usr/bin/chromium] [--json FILE]

The sentences are synthetic: words drawn by Zipf's law from a vocabulary of subwords. They compress worse than real ones
and have every metric that an analysis computes. A step is timed from the key press to the end of the layout, a frame
from the key press until the next frame is drawn.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from anyorder.decoding.trajectory import Trajectory
from anyorder.report.html import write_html

MEASURES = ("sentence bleu", "kendall left-to-right", "kendall outer-in", "edge share", "adjacent share", "mean jump")
LABELS = ("outer-to-inner", "left-to-right", "right-to-left", "inner-to-outer", "other")


def make_vocabulary(generator: random.Random, size: int = 12000) -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyzäöüß"
    words = {
        "".join(generator.choices(letters, k=generator.randint(1, 9))) + generator.choice(("", "", "@@"))
        for _ in range(2 * size)
    }
    return sorted(words)[:size]


def make_systems(sentences: int, orders: int, generator: random.Random) -> dict[str, list[Trajectory]]:
    words = make_vocabulary(generator)
    generator.shuffle(words)
    weights = [1 / (rank + 3) for rank in range(len(words))]
    systems: dict[str, list[Trajectory]] = {f"order {i + 1}": [] for i in range(orders)}
    for _ in range(sentences):
        length = min(90, max(4, round(generator.lognormvariate(3.2, 0.5))))
        source = " ".join(generator.choices(words, weights, k=length)).replace("@@ ", "")
        for name, trajectories in systems.items():
            tokens = generator.choices(words, weights, k=length)
            steps = generator.sample(range(1, length + 1), length)
            logprobs = [-generator.expovariate(1.5) for _ in range(length)]
            text = " ".join(tokens).replace("@@ ", "")
            trajectories.append(Trajectory(source, text, tokens, steps, logprobs, name, length, f"order:{name}"))
    return systems


def make_analysis(systems: dict[str, list[Trajectory]], generator: random.Random) -> dict[str, Any]:
    def make_metric() -> dict[str, float]:
        value = generator.random()
        return {
            "value": value,
            "low": value - 0.02,
            "high": value + 0.02,
            "null": 0.3,
            "null_low": 0.28,
            "null_high": 0.32,
        }

    count = len(next(iter(systems.values())))
    return {
        "format": 1,
        "sentences": count,
        "systems": [
            {
                "name": name,
                "signature": runs[0].signature,
                "figures": {f"metric {i + 1}": make_metric() for i in range(24)},
                "labels": dict.fromkeys(LABELS, 0.2),
                "positions": {"bins": 20, "share": [[generator.random() / 10 for _ in range(20)] for _ in range(20)]},
                "jumps": {str(jump): generator.random() / 10 for jump in range(-10, 11)},
                "by_tag": None,
            }
            for name, runs in systems.items()
        ],
        "per_sentence": {
            **{name: [[generator.random() for _ in range(count)] for _ in systems] for name in MEASURES},
            "label": [[generator.randrange(5) for _ in range(count)] for _ in systems],
        },
    }


def time_in_browser(file: Path, browser: str) -> dict[str, float]:
    """Milliseconds that the actions of a reader take."""
    from playwright.sync_api import sync_playwright

    def time_layout(action: str) -> str:
        timed = (
            f"const start = performance.now(); {action}; document.body.offsetHeight; return performance.now() - start;"
        )
        return f"() => {{ {timed} }}"

    key = "document.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
    frame = f"""() => new Promise((done) => requestAnimationFrame(() => {{
        const start = performance.now(); {key % "ArrowRight"};
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - start))); }}))"""
    sort = "const s = document.querySelector('.side select'); s.value = '%s'; s.dispatchEvent(new Event('change'))"
    find = "const i = document.querySelector('input[type=search]'); i.value = 'an'; i.dispatchEvent(new Event('input'))"
    with sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": 1366, "height": 900})
        tab.goto(file.as_uri())
        tab.wait_for_selector(".fill .token.on")
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        times = {
            "first paint": tab.evaluate(paint),
            "first sentence": tab.evaluate("performance.getEntriesByName('ready')[0].startTime"),
        }
        tab.evaluate(time_layout(sort % "longest"))
        tab.locator(".row").first.click()
        tab.keyboard.press("Home")
        steps = [tab.evaluate(time_layout(key % "ArrowRight")) for _ in range(60)]
        tab.keyboard.press("Home")
        frames = [tab.evaluate(frame) for _ in range(60)]
        times["step, median"] = statistics.median(steps)
        times["step, slowest"] = max(steps)
        times["step to frame, median"] = statistics.median(frames)
        times["next sentence"] = statistics.median(tab.evaluate(time_layout(key % "j")) for _ in range(9))
        times["sort by A beats B"] = tab.evaluate(time_layout(sort % "beat"))
        times["sort by disagreement, first time"] = tab.evaluate(time_layout(sort % "disagree"))
        times["search, first time"] = tab.evaluate(time_layout(find))
        times["corpus, first time"] = tab.evaluate(time_layout("document.getElementById('tab-corpus').click()"))
        chromium.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=3000)
    parser.add_argument("--orders", type=int, default=6)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    generator = random.Random(1)
    systems = make_systems(arguments.sentences, arguments.orders, generator)
    analysis = make_analysis(systems, generator)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        start = time.perf_counter()
        write_html(file, systems, analysis, [run.source for run in systems["order 1"]], "Speed")
        results = {"build, seconds": time.perf_counter() - start, "size, MB": file.stat().st_size / 1e6}
        results |= {f"{name}, ms": value for name, value in time_in_browser(file, arguments.browser).items()}
    print(f"{arguments.sentences} sentences x {arguments.orders} orders")
    for name, value in results.items():
        print(f"{name:36} {value:8.1f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"sentences": arguments.sentences, "orders": arguments.orders, **results}, indent=1)
        )


if __name__ == "__main__":
    main()

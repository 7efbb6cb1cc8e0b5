"""The command line as users meet it: what it prints, what it writes, and how it says no."""

import gzip
import io
import json
import lzma
import sys
from pathlib import Path

import pytest

from anyorder.cli import VERBS
from anyorder.data.store import Store
from anyorder.decoding.revision import REVISIONS
from anyorder.decoding.schedules import SCHEDULES
from anyorder.decoding.trajectory import Trajectory, read_trajectories
from anyorder.orders import ORDERS
from tests.cli.conftest import PAIRS, run
from tests.conftest import run_cli
from tests.processes import run_two


def test_help_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == run("--help") == 0
    overview = capsys.readouterr().out
    for verb, summary in VERBS.items():
        assert f"{verb:12} {summary}" in overview
        assert run(verb, "--help") == 0
        text = capsys.readouterr().out
        assert f"usage: anyorder {verb}" in text
        assert "_" not in "".join(word for word in text.split() if word.startswith("--"))
        assert "<" not in text, "the name of a class"
    assert run("--version") == 0


def test_translate_writes_trajectories(folder: Path, basic: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out.jsonl"
    assert run("translate", *basic, "--order", "margin", "--json", out, folder / "test.de.xz") == 0
    printed = capsys.readouterr().out.splitlines()
    trajectories = [Trajectory.from_json(line) for line in out.read_text().splitlines()]
    assert [trajectory.text for trajectory in trajectories] == printed
    assert [trajectory.source for trajectory in trajectories] == [source for source, _ in PAIRS]
    assert set(json.loads(out.read_text().splitlines()[0])) >= {
        "source", "text", "tokens", "steps", "logprobs", "order", "length", "signature",
    }  # fmt: skip
    assert all(sorted(trajectory.steps) == list(range(1, trajectory.length + 1)) for trajectory in trajectories)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_trajectories_are_compressed(folder: Path, basic: list[str], suffix: str) -> None:
    out = folder / f"packed.jsonl{suffix}"
    assert run("translate", *basic, "--json", out, folder / "test.de") == 0
    assert {".gz": gzip, ".xz": lzma}[suffix].open(out).read(1) == b"{"  # type: ignore[attr-defined]
    assert [trajectory.source for trajectory in read_trajectories(out)] == [source for source, _ in PAIRS]


def test_schedules(folder: Path, basic: list[str]) -> None:
    steps = {}
    for schedule in ("one", "3", "threshold:0.01"):
        out = folder / "schedule.jsonl"
        assert run("translate", *basic, "--length", "fixed:6", "--schedule", schedule, "--json", out, "Hund") == 0
        steps[schedule] = max(next(read_trajectories(out)).steps)
    assert steps["one"] == 6
    assert steps["3"] == 2
    assert steps["threshold:0.01"] < 6


def test_revisions_and_samples(folder: Path, basic: list[str]) -> None:
    def translate(*options: object) -> Trajectory:
        out = folder / "revision.jsonl"
        assert run("translate", *basic, "--length", "fixed:6", *options, "--json", out, "Hund") == 0
        return next(read_trajectories(out))

    revised = translate("--revision", "mask-predict:4")
    assert revised.forwards == 4
    assert revised.writes is not None
    assert len(revised.writes) == 6 + 4 + 3 + 1
    assert "schedule:steps:1|revision:mask-predict:4" in revised.signature
    sampled = [translate("--temperature", 2, "--top-p", 0.99, "--seed", seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1]
    assert sampled[0].tokens != sampled[2].tokens


def test_translate_takes_a_sentence_a_file_or_standard_input(
    folder: Path, basic: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("translate", *basic, folder / "test.de") == 0
    from_file = capsys.readouterr().out
    stdin = io.TextIOWrapper(io.BytesIO((folder / "test.de").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run("translate", *basic) == 0
    assert capsys.readouterr().out == from_file
    assert run("translate", *basic, PAIRS[0][0]) == 0
    assert capsys.readouterr().out == from_file.splitlines()[0] + "\n"


def test_a_sentence_may_be_longer_than_the_name_of_a_file(
    folder: Path, basic: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "der Hund " * 15 + " " * 300 + "."
    assert run("translate", *basic, "--json", folder / "long.jsonl", sentence) == 0
    assert json.loads((folder / "long.jsonl").read_text())["source"] == sentence
    assert run("translate", *basic, "--length", "fixed:2", f"{sentence} " * 20) == 0
    assert "line 1 (source split into" in capsys.readouterr().err


def test_translate_in_two_processes(folder: Path, basic: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Started by torchrun itself; other tests start two processes with the variables that it sets."""
    arguments = ["translate", *basic, "--order", "easy-first", folder / "test.de", "--json"]
    assert run(*arguments, folder / "alone.jsonl") == 0
    both = run_cli(*arguments, folder / "shared.jsonl", processes=2)
    assert both.returncode == 0, both.stderr
    assert both.stdout == capsys.readouterr().out
    assert (folder / "shared.jsonl").read_text() == (folder / "alone.jsonl").read_text()


def test_trace(folder: Path, basic: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    gold = ["--length", "gold", "--reference", folder / "test.en"]
    assert run("translate", *basic, "--order", "left-to-right", "--trace", *gold, folder / "test.de") == 0
    block = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert block[0] == f"source  {PAIRS[0][0]}"
    assert block[1].split()[0] == "1"
    assert block[1].count("__") == len(block) - 3
    assert block[-2].split(maxsplit=1)[1].startswith("[")
    assert block[-1].startswith("result  ")


def test_evaluate(folder: Path, basic: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, paper, times = folder / "table.json", folder / "table.md", folder / "times.json"
    arguments = ["--source", folder / "test.de.xz", "--reference", folder / "test.en", "--json", out, "--table", paper]
    arguments += ["--timings", times]
    arguments += ["--orders", "left-to-right,easy-first:logp=1,negent=0.9,margin", "--max-length", "40,none"]
    assert run("evaluate", *basic, *arguments, "--limit", 8, "--samples", 20) == 0
    table = json.loads(out.read_text())
    assert table["direction"] == "de-en"
    assert [row["order"] for row in table["rows"]] == ["left-to-right", "easy-first:logp=1,negent=0.9", "margin"] * 2
    assert [row["max_length"] for row in table["rows"]] == [40] * 3 + [None] * 3
    assert table["rows"][-1]["sentences"] == 8
    shown = capsys.readouterr().out.replace("\n", "")
    assert table["signature"] in shown
    assert f"<!-- {table['signature']} -->" in paper.read_text()
    assert "| order | BLEU ≤40 | chrF | BLEU all | chrF |\n" in paper.read_text()  # too few sentences for a test
    timings = json.loads(times.read_text())
    assert [(row["system"], row["max_length"]) for row in timings["rows"]] == [
        (row["system"], row["max_length"]) for row in table["rows"]
    ]
    assert all(row["seconds"] > 0 for row in timings["rows"])
    assert "sentences/s" in shown
    before = out.read_bytes()
    assert run("evaluate", *basic, *arguments, "--limit", 8, "--samples", 20) == 0
    assert out.read_bytes() == before


def test_evaluate_in_two_processes(folder: Path, basic: list[str]) -> None:
    arguments = [
        "evaluate", *basic, "--source", folder / "test.de", "--reference", folder / "test.en",
        "--orders", "uniform,margin", "--samples", 20, "--json",
    ]  # fmt: skip
    assert run(*arguments, folder / "alone.json") == 0
    for process in run_two(*arguments, folder / "shared.json"):
        assert process.returncode == 0, process.stderr
    assert (folder / "shared.json").read_bytes() == (folder / "alone.json").read_bytes()


def test_prepare_from_a_recipe(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"languages: de,en\ntrain: toy={folder}/test.%\nvocabulary: 100\nfilters: {{max_length: 50}}\n")
    assert run("prepare", "--config", recipe, "--out", tmp_path / "store", "--workers", 1) == 0
    assert "toy" in capsys.readouterr().out
    assert len(Store(tmp_path / "store").split("train")) == 9


def test_orders(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("orders") == 0
    shown = capsys.readouterr().out
    for name in (*ORDERS, "one", *SCHEDULES, *REVISIONS):
        assert f"\n {name} " in f"\n{shown}"

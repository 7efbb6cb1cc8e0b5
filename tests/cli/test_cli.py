"""The command line as users meet it: what it prints, what it writes, and how it says no."""

import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyorder.cli import VERBS, main
from anyorder.data.store import Store
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.revision import REVISIONS
from anyorder.decoding.schedules import SCHEDULES
from anyorder.decoding.trajectory import Trajectory, read_trajectories
from anyorder.models.translation import TranslationModel
from anyorder.orders import ORDERS
from tests.conftest import run_cli, tiny, toy_pairs, write_pairs
from tests.processes import Fork, run_two

PAIRS = toy_pairs(9, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    """A model and a small test set."""
    folder = tmp_path_factory.mktemp("cli")
    tiny(vocabulary).save_pretrained(folder / "model")
    write_pairs(folder, "test", PAIRS)
    (folder / "test.de.xz").write_bytes(lzma.compress((folder / "test.de").read_bytes()))
    return folder


@pytest.fixture
def basic(folder: Path) -> list[str]:
    return ["--model", str(folder / "model"), "--direction", "de-en", "--device", "cpu"]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


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


def test_what_was_decoded_stays_when_nobody_reads_on(folder: Path, basic: list[str]) -> None:
    out = folder / "kept.jsonl"
    arguments = ["translate", *basic, "--json", out, folder / "test.de"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "anyorder", *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141
    assert len(list(read_trajectories(out))) == len(PAIRS)


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
    assert "sent/s" in shown
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


def wrong(folder: Path, tmp_path: Path) -> dict[str, tuple[list[object], str]]:
    """Each wrong command and what the one line must say. Everything they could write is under `tmp_path / "out"`."""
    (folder / "short.en").write_text("one line\n")
    (folder / "latin.de").write_bytes("schön\n".encode("latin-1"))
    (folder / "latin.en").write_text("nice\n")
    (folder / "empty.de").write_text("")
    (folder / "empty.en").write_text("")
    (folder / "long.de").write_text("Hund\n" + "Hund " * 90 + "\n")
    (folder / "long.en").write_text("dog\ndog\n")
    broken = folder / "broken"
    if not broken.exists():
        TranslationModel.from_pretrained(folder / "model").save_pretrained(broken)
        (broken / "model.safetensors").write_bytes(b"\x08\x00\x00\x00")
    for language in ("de", "en"):
        (folder / f"uneven.{language}").write_text("a\n" * (3 if language == "de" else 2))
    model = ["--model", folder / "model", "--direction", "de-en", "--device", "cpu"]
    out, json_out = tmp_path / "out", ["--json", tmp_path / "out"]
    test = ["--source", folder / "test.de", "--reference", folder / "test.en"]
    return {
        "uneven": (["prepare", "--languages", "de,en", "--out", out, "--train", f"{folder}/uneven.%"], "uneven.de has 3 lines but"),
        "latin": (["prepare", "--languages", "de,en", "--out", out, "--train", f"{folder}/latin.%"], "latin.de, line 1: invalid UTF-8"),
        "empty": (["prepare", "--languages", "de,en", "--out", out, "--train", f"{folder}/empty.%"], "'train' is empty"),
        "nothing": (["prepare", "--languages", "de,en", "--out", out], "nothing to prepare"),
        "missing": (["prepare", "--languages", "de,en", "--out", out, "--train", f"{folder}/no.%"], "no.de: no such file"),
        "pattern": (["prepare", "--languages", "de,en", "--out", out, "--train", "file.de"], "with % for the language"),
        "language": (["prepare", "--languages", "de,english", "--out", out, "--train", "x.%"], "unknown language 'english': did you mean 'en'"),
        "twice": (["prepare", "--languages", "de,de", "--out", out, "--train", "x.%"], "names a language twice"),
        "small": (["prepare", "--languages", "de,en", "--out", out, "--train", f"{folder}/test.%", "--vocabulary", 20], "is too small"),
        "order": (["translate", *model, *json_out, "--order", "margn", folder / "test.de"], "unknown order 'margn': did you mean 'margin'"),
        "direction": (["translate", "--model", folder / "model", "--direction", "de-fr", *json_out, "hallo"], "unknown direction 'de-fr'"),
        "long": (["translate", *model, *json_out, "--strict", folder / "long.de"], "long.de, line 2:"),
        "utf8": (["translate", *model, *json_out, "--strict", folder / "latin.de"], "latin.de, line 1: invalid UTF-8"),
        "corrupted": (["translate", "--model", broken, "--direction", "de-en", *json_out, "hallo"], "damaged, it does not match"),
        "no model": (["translate", "--model", "de-eng", "--direction", "de-en", *json_out, "hallo"], "unknown model 'de-eng'"),
        "no file": (["translate", *model, *json_out, "missing.txt"], "missing.txt: no such file"),
        "no gold": (["translate", *model, *json_out, "--length", "gold", "hallo"], "--length gold and --reference FILE go together"),
        "schedule": (["translate", *model, *json_out, "--schedule", "zero", "hallo"], "unknown schedule 'zero'"),
        "reference": (["evaluate", *model, *json_out, "--source", folder / "test.de", "--reference", folder / "short.en"], "test.de has 9 lines but"),
        "alone": (["evaluate", *model, *json_out, "--source", folder / "test.de"], "--source and --reference go together"),
        "sample": (["evaluate", *model, *json_out], "comes without a sample"),
        "limit": (["evaluate", *model, *json_out, *test, "--max-length", "thirty"], "--max-length 'thirty'"),
        "table": (["evaluate", *model, *json_out, *test, "--table", folder / "table.doc"], "expected a name that ends in .tex or .md"),
        "too tight": (["evaluate", *model, *json_out, *test, "--max-length", "1"], "no pair has at most 1"),
        "against": (["evaluate", *model, *json_out, *test, "--orders", "margin", "--against", "l2r"], "--against 'l2r': is not one of the systems (margin)"),
        "store": (["train", "--data", folder, "--out", out, "--run.steps", 1], "not a prepared store"),
        "endless": (["train", "--data", folder, "--out", out], "say how long to train"),
        "type": (["train", "--data", folder, "--out", out, "--transformer.hidden-size", "wide"], "--transformer.hidden-size: expected int"),
        "heads": (["train", "--data", folder, "--out", out, "--run.steps", 1, "--transformer.hidden-size", "30"], "30 is not a multiple of 8 heads"),
        "option": (["train", "--data", folder, "--out", out, "--run.stops", 1], "--run.stops"),
        "verb": (["trane"], "unknown verb 'trane': did you mean 'train'"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "uneven", "latin", "empty", "nothing", "missing", "pattern", "language", "twice", "small", "order", "direction",
        "long", "utf8", "corrupted", "no model", "no file", "no gold", "schedule", "reference", "alone", "sample",
        "limit", "too tight", "against", "store", "endless", "type", "heads", "option", "verb",
    ],
)  # fmt: skip
def test_wrong_input_gets_one_line_and_leaves_nothing(
    folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = wrong(folder, tmp_path)[name]
    if arguments[0] == "prepare":
        arguments = [*arguments, "--workers", 1]
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("anyorder")
    assert expected in error
    assert list(tmp_path.iterdir()) == []


def test_wrong_vocabulary(folder: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(tmp_path, "other", toy_pairs(40, seed=9))
    assert run("prepare", "--languages", "de,en", "--train", f"{tmp_path}/other.%", "--out", tmp_path / "s",
               "--vocabulary", 90, "--workers", 1) == 0  # fmt: skip
    capsys.readouterr()
    arguments = ["train", "--data", tmp_path / "s", "--out", tmp_path / "run", "--init", folder / "model"]
    assert run(*arguments, "--run.steps", 1) == 2
    assert "wrong vocabulary" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_exit_codes_of_the_real_command(folder: Path, basic: list[str]) -> None:
    wrong_verb = run_cli("translat", *basic, "hallo")
    assert (wrong_verb.returncode, wrong_verb.stdout) == (2, "")
    assert "Traceback" not in wrong_verb.stderr
    wrong_order = Fork("translate", *basic, "--order", "x", "hallo").wait()
    assert (wrong_order.returncode, wrong_order.stdout) == (2, "")
    assert "Traceback" not in wrong_order.stderr
    piped = run_cli("translate", *basic, stdin=f"{PAIRS[0][0]}\n")
    assert piped.returncode == 0
    assert len(piped.stdout.splitlines()) == 1


def test_idle_threads_leave_their_core_to_others(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import os; print(os.environ['OMP_WAIT_POLICY'])")
    for given, expected in ((None, "passive"), ("active", "active")):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
        command = [sys.executable, "-m", "anyorder", "orders", "--plugin", str(tmp_path / "show.py")]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.splitlines()[0] == expected

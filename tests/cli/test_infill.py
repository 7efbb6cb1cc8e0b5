"""`anyorder infill` and `anyorder generate`, as a user types them."""

import json
from pathlib import Path

import pytest

import anyorder
from anyorder import InputError
from anyorder.cli import main
from anyorder.decoding.search import search
from anyorder.decoding.trajectory import read_trajectories
from anyorder.models.native.storage import find
from tests.models.checkpoints import save


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("BertForMaskedLM", "LlamaForCausalLM"):
        save(name, folder / name)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_infill_a_text(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    model = f"hf:{models / 'BertForMaskedLM'}"
    code, printed, errors = run(
        capsys, "infill", "--model", model, "--order", "margin", "--json", out, "w1 [MASK] w3 [MASK]."
    )
    assert (code, errors) == (0, "")
    [record] = [json.loads(line) for line in out.read_text().splitlines()]
    assert record["positions"] == [1, 3]
    assert record["source"] == "w1 [MASK] w3 [MASK]."
    assert len(record["tokens"]) == len(record["steps"]) == 2
    assert record["text"] == printed.strip()


def test_infill_a_file(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "texts.txt", tmp_path / "out.jsonl.gz"
    file.write_text("w1 [MASK]\nno mask\n[MASK] w2 [MASK]\n")
    options = ["--model", models / "BertForMaskedLM", "--schedule", 2, "--json", out]
    code, printed, errors = run(capsys, "infill", *options, file)
    assert code == 0
    assert len(printed.splitlines()) == 3
    assert errors == "anyorder infill: 1 line was not filled as it is (1 unmasked source): line 2 (unmasked source)\n"
    assert [one.length for one in read_trajectories(out)] == [1, 0, 2]


def test_trace_shows_what_was_given(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", models / "BertForMaskedLM", "--order", "left-to-right", "--trace"]
    _, printed, _ = run(capsys, "infill", *options, "w1 [MASK] w3 [MASK]")
    source, first, second, result, _ = printed.splitlines()
    assert source == "source  w1 [MASK] w3 [MASK]"
    filled = result.removeprefix("result  ").split()
    assert first.split()[1:4] == ["w1", filled[1], "w3"]
    assert first.split()[4] not in filled
    assert second.split()[1:] == filled  # no brackets: the two are no neighbors


def test_generate(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--model", models / "LlamaForCausalLM", "--length", 4, "--order", "margin", "--json", out]
    assert run(capsys, "generate", *options, "--prompt", "w1 w2")[0] == 0
    [record] = [json.loads(line) for line in out.read_text().splitlines()]
    assert record["positions"] == [2, 3, 4, 5]
    assert record["text"].startswith("w1 w2")
    run(capsys, "generate", *options, "--schedule", "blocks:2", "--cache", "dual:3", "--prompt", "w1 w2")
    [record] = [json.loads(line) for line in out.read_text().splitlines()]
    assert "|cache:dual:3|" in record["signature"]
    code, _, errors = run(capsys, "generate", *options, "--prompt", "w1", "w2")
    assert (code, errors) == (2, "anyorder generate: give --prompt or an input, not both\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["infill", "--model", "{bert}", "no mask"], "input, line 1: has no mask, so there is nothing to fill"),
        (["infill", "--model", "{bert}", "w1 " * 70 + "[MASK]"], "input, line 1: 71 tokens, the model has room for 62"),
        (
            ["infill", "--model", "{bert}", "--order", "margn", "[MASK]"],
            "unknown order 'margn': did you mean 'margin'?",
        ),
        (["infill", "--model", "{bert}", "--order", "learned", "[MASK]"], "this model has no learned order"),
        (["infill", "--model", "de-en", "[MASK]"], "is a translation model, which is for translate"),
        (
            ["translate", "--model", "hf:{bert}", "--direction", "de-en", "w1"],
            "BertForMaskedLM: is a masked language model, which does not translate; it is for infill and generate",
        ),
        (["infill", "--model", "{bert}/none", "[MASK]"], "{bert}/none: no such folder"),
        (["generate", "--model", "{bert}", "--length", "99", "w1"], "--length 99: expected a number of at least 1"),
        (["generate", "--model", "{bert}", "--cache", "dual", "w1"], "--cache dual: needs a schedule in blocks"),
        (
            ["generate", "--model", "{bert}", "--cache", "dual", "--schedule", "blocks:4", "--length", "4", "w1"],
            "--cache dual: is for language models with full attention; BertForMaskedLM is an encoder",
        ),
    ],
)
def test_bad_input_gives_one_line(
    arguments: list[str], message: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert, out = str(models / "BertForMaskedLM"), tmp_path / "out.jsonl"
    given = [argument.replace("{bert}", bert) for argument in arguments]
    code, printed, errors = run(capsys, *given, "--json", out)
    assert (code, printed) == (2, "")
    assert message.replace("{bert}", bert) in errors
    assert errors.count("\n") == 1
    assert not out.exists()


def test_a_model_for_puzzles_reads_puzzles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    puzzles, out = tmp_path / "puzzles.txt", tmp_path / "out.jsonl"
    puzzles.write_text("0000034010030000\n..20\n[MASK]13223411423321[MASK]\n.132234114233214\n")
    code, printed, errors = run(
        capsys, "infill", "--model", "sudoku-4x4", "--order", "margin", "--json", out, puzzles, "--device", "cpu"
    )
    assert code == 0
    assert "1 line was not filled as it is (1 unreadable puzzle): line 2 (unreadable puzzle (4 characters, " in errors
    first, none, text, last = read_trajectories(out)
    assert printed.splitlines() == [first.text, "..20", text.text, "4132234114233214"]
    assert (first.source, first.task, first.length) == ("0000034010030000", "sudoku-4x4", 12)
    assert [run.task for run in (none, text, last)] == ["infill", "infill", "sudoku-4x4"]
    assert text.length == 2


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("020000000420010", "15 characters"),
        ("02000000042001030", "17 characters"),
        ("[MASK]" * 17, "17 characters"),
        (" 1 ", "1 character"),
        ("02000000042001a3", "'a'"),
        ("0200000004250103", "'5'"),
    ],
)
def test_a_line_that_is_no_puzzle(line: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, errors = run(capsys, "infill", "--model", "sudoku-4x4", "--device", "cpu", line)
    expected = f"{found}, expected the 16 cells of sudoku-4x4: 1 to 4, or 0 for an empty cell"
    assert (code, printed, errors) == (2, "", f"anyorder infill: input, line 1: {expected}\n")


def test_a_puzzle_without_empty_cells(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "infill", "--model", "sudoku-4x4", "--device", "cpu", "1234341221434321")
    assert (code, errors) == (2, "anyorder infill: input, line 1: has no mask, so there is nothing to fill\n")


def test_the_trace_of_a_puzzle_is_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    puzzle = "1234341221430020"
    options = ["--model", "sudoku-4x4", "--device", "cpu", "--order", "right-to-left", "--trace"]
    _, printed, _ = run(capsys, "infill", *options, puzzle)
    source, steps, *_, result, _ = printed.splitlines()
    assert (source, result) == (f"source  {puzzle}", "result  1234341221434321")
    assert steps.split("  ")[::5] == ["step 1", "step 2", "step 3"]
    assert " .  . | 2 [1]    . [3]| 2  1    [4] 3 | 2  1" in printed
    assert "step of each cell" in printed


def test_results_are_written_as_they_come(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was finished before an error has been printed."""
    monkeypatch.setattr("anyorder.decoder.FIRST", 1)
    file = tmp_path / "texts.txt"
    file.write_text("w1 [MASK]\nno mask\n")
    code, printed, errors = run(capsys, "infill", "--model", models / "BertForMaskedLM", "--device", "cpu", file)
    assert (code, len(printed.splitlines())) == (0, 2)

    def fail_later(*arguments: object) -> list:
        if seen:
            raise InputError("no more")
        seen.append(1)
        return search(*arguments)  # type: ignore[arg-type]

    seen: list[int] = []
    monkeypatch.setattr("anyorder.decoder.search", fail_later)
    code, printed, errors = run(capsys, "infill", "--model", models / "BertForMaskedLM", "--device", "cpu", file)
    assert (code, errors) == (2, "anyorder infill: no more\n")
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_precision(dtype: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--model", models / "BertForMaskedLM", "--device", "cpu", "--json", out]
    assert run(capsys, "infill", *options, "--dtype", dtype, "w1 [MASK] w3")[0] == 0
    assert f"|dtype:{dtype}|seed:" in out.read_text()
    assert run(capsys, "infill", *options, "--dtype", "float32", "w1 [MASK] w3")[0] == 0
    assert "dtype" not in out.read_text()
    code, _, errors = run(capsys, "infill", *options, "--dtype", "int8", "w1 [MASK]")
    assert (code, "--dtype" in errors, errors.count("\n")) == (2, True, 1)
    with pytest.raises(InputError, match="dtype 'int8': expected auto, float32, bfloat16, float16"):
        anyorder.load(models / "BertForMaskedLM", dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dtype is for models that are loaded"):
        anyorder.load(anyorder.load(models / "BertForMaskedLM").model, dtype="float16")


def test_a_revision_of_the_hub(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetch(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert "*.jinja" in allow_patterns
        asked.append((name, revision))
        return str(models / "BertForMaskedLM")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    for name in ("hf:someone/bert@v1.0", "hf:someone/bert@refs/pr/3", "hf:bert", "someone/bert"):
        find(name.removeprefix("hf:"), only_here=False)
    assert asked == [("someone/bert", "v1.0"), ("someone/bert", "refs/pr/3"), ("bert", None), ("someone/bert", None)]
    with pytest.raises(InputError, match="someone/bert@: expected a branch, tag or commit after the @"):
        anyorder.load("hf:someone/bert@")
    with pytest.raises(InputError, match="de-en@main: comes with this package, so it has no branches"):
        anyorder.load("de-en@main")

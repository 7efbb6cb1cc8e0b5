"""The verb `evaluate` on files of trajectories; scoring while decoding is tested with the other verbs."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from anyorder.cli import main
from anyorder.decoding.signature import Signature

SCRIPT = '''
"""Somebody else's decoder: fills "the ... ." from both ends. It has never heard of anyorder."""
import json
import sys

for number, line in enumerate(open(sys.argv[1], encoding="utf-8")):
    words = line.rstrip("\\n").split(" ")
    if sys.argv[3] == "drop":
        words = [word for i, word in enumerate(words) if (i + number) % 5]
    tokens = []
    for word in words:
        tokens += [word[:3] + "@@", word[3:]] if len(word) > 5 else [word]
    last = len(tokens) - 1
    steps = [min(2 * i + 1, 2 * (last - i) + 2) for i in range(len(tokens))]
    record = {"source": f"sentence {number}", "text": " ".join(words), "tokens": tokens, "steps": steps}
    with open(sys.argv[2], "a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\\n")
'''
REFERENCES = [
    'The commission\'s proposal was rejected, "once and for all", on 3 May.',
    "It isn't clear whether 2,500 people (or more) will attend.",
    "Ein Satz mit Umlauten: schöne Grüße aus Köln!",
    "这是 一个 测试。",
    "He said: nothing happens in the house by the river today.",
    "Prices rose by 3.5% in March, the bank reported.",
    "Nobody knows why the bridge (built in 1931) was closed.",
    "The minister's answer: we will see what the court decides.",
    "In the evening the children went home along the river.",
    "Das Haus am Fluss wurde im Mai 2004 verkauft.",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "references").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    (tmp_path / "hypotheses").write_text("\n".join(REFERENCES).replace("the", "a") + "\n", encoding="utf-8")
    (tmp_path / "decode.py").write_text(SCRIPT, encoding="utf-8")
    assert "import anyorder" not in SCRIPT
    for name in ("keep", "drop"):
        command = [sys.executable, "decode.py", "hypotheses", f"{name}.jsonl", name]
        subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path


def texts(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]


def run(folder: Path, *arguments: object) -> int:
    return main(["evaluate", *map(str, arguments), "--reference", str(folder / "references")])


@pytest.mark.parametrize("tokenize", [None, "13a", "intl", "zh", "char", "none"])
def test_scores_equal_sacrebleu_called_directly(
    folder: Path, tokenize: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [folder / "keep.jsonl", folder / "drop.jsonl"]
    options = [] if tokenize is None else ["--tokenize", tokenize]
    assert run(folder, "--trajectories", *files, "--json", folder / "out.json", *options) == 0
    table = json.loads((folder / "out.json").read_text())
    assert [row["system"] for row in table["rows"]] == ["keep", "drop"]
    for file, row in zip(files, table["rows"], strict=True):
        direct = sacrebleu.corpus_bleu(texts(file), [REFERENCES], tokenize=tokenize or "13a")
        assert row["bleu"] == direct.score
        assert row["chrf"] == sacrebleu.corpus_chrf(texts(file), [REFERENCES]).score
        assert (row["order"], row["max_length"], row["sentences"]) == ("", None, 10)
    assert table["rows"][0]["p_values"] == {}
    assert 0 < table["rows"][1]["p_values"]["keep"] < 0.05
    difference = table["rows"][1]["differences"]["keep"]
    assert difference["low"] < difference["bleu"] < difference["high"] < 0
    signature = Signature.parse(table["signature"])
    assert str(signature) == table["signature"]
    assert signature["bleu.tok"] == (tokenize or "13a")
    assert table["signature"] in capsys.readouterr().out.replace("\n", "")


def test_compressed_files_tables_and_the_first_sentences(folder: Path) -> None:
    packed = folder / "a,b.jsonl.gz"
    packed.write_bytes(gzip.compress((folder / "keep.jsonl").read_bytes()))
    files = [packed, folder / "drop.jsonl"]
    options = ["--against", "a,b", "--table", folder / "t.md", "--json", folder / "out.json", "--limit", 3]
    assert run(folder, "--trajectories", *files, *options) == 0
    first, second = json.loads((folder / "out.json").read_text())["rows"]
    assert (first["system"], first["sentences"], second["p_values"]) == ("a,b", 3, {})
    assert first["bleu"] == sacrebleu.corpus_bleu(texts(folder / "keep.jsonl")[:3], [REFERENCES[:3]]).score
    assert "| system | BLEU | chrF |\n" in (folder / "t.md").read_text()
    assert run(folder, "--trajectories", *files, "--against", "drop,a,b") == 2  # commas separate names
    assert run(folder, "--trajectories", *files, "--against", "drop") == 0


def test_the_same_command_writes_the_same_bytes(folder: Path) -> None:
    files = [folder / "keep.jsonl", folder / "drop.jsonl"]
    for name in ("one.json", "two.json"):
        assert run(folder, "--trajectories", *files, "--test", "bootstrap", "--json", folder / name) == 0
    assert (folder / "one.json").read_bytes() == (folder / "two.json").read_bytes()


def test_several_references(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = [line.replace("a", "the") for line in REFERENCES]
    second, short = folder / "second", folder / "short"
    second.write_text("\n".join(others) + "\n", encoding="utf-8")
    short.write_text("\n".join(others[:-1]) + "\n", encoding="utf-8")
    command = ["evaluate", "--trajectories", f"{folder}/keep.jsonl", "--json", f"{folder}/out.json"]
    assert main([*command, "--reference", f"{folder}/references", str(second)]) == 0
    table = json.loads((folder / "out.json").read_text())
    keep = texts(folder / "keep.jsonl")
    assert table["rows"][0]["bleu"] == sacrebleu.corpus_bleu(keep, [REFERENCES, others]).score
    assert table["rows"][0]["chrf"] == sacrebleu.corpus_chrf(keep, [REFERENCES, others]).score
    assert Signature.parse(table["signature"])["bleu.nrefs"] == "2"
    assert main([*command, "--reference", f"{folder}/references", str(second), "--limit", "4"]) == 0
    table = json.loads((folder / "out.json").read_text())
    assert table["rows"][0]["bleu"] == sacrebleu.corpus_bleu(keep[:4], [REFERENCES[:4], others[:4]]).score
    capsys.readouterr()
    assert main([*command, "--reference", f"{folder}/references", str(short)]) == 2
    assert "references has 10 lines but" in capsys.readouterr().err
    command[-1] = str(second)
    assert main([*command, "--reference", f"{folder}/references", str(second)]) == 2
    assert "would replace a file that is read" in capsys.readouterr().err


def test_references_from_a_recipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = folder / "recipe.yaml"
    for form in ("{}", "[{}]"):
        trajectories, reference = form.format(folder / "keep.jsonl"), form.format(folder / "references")
        recipe.write_text(f"trajectories: {trajectories}\nreference: {reference}\n")
        assert main(["evaluate", "--config", str(recipe)]) == 0
    recipe.write_text(f"trajectories: {folder}/keep.jsonl\nreference: [5, null]\n")
    assert main(["evaluate", "--config", str(recipe)]) == 2
    assert capsys.readouterr().err == "anyorder evaluate: 5: no such file\n"


def test_one_sentence_is_too_few_for_a_test(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [folder / "keep.jsonl", folder / "drop.jsonl"]
    assert run(folder, "--trajectories", *files, "--limit", 1, "--json", folder / "out.json") == 0
    table = json.loads((folder / "out.json").read_text())
    assert [row["p_values"] for row in table["rows"]] == [{}, {}]
    assert table["notes"] == ["1 sentence is too few for a significance test (at least 10): no p-values."]
    assert table["notes"][0] in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model", "de-en"], "--model is for decoding with a model and does not go together with --trajectories"),
        (["--direction", "de-en"], "--direction is for decoding"),
        (["--source", "{}/hypotheses"], "--source is for decoding"),
        (["--orders", "margin"], "--orders is for decoding"),
        (["--length", "gold"], "--length is for decoding"),
        (["--schedule", "one"], "--schedule is for decoding"),
        (["--max-length", "30"], "--max-length is for decoding"),
        (["--seed", "2"], "--seed is for decoding"),
        (["--device", "cpu"], "--device is for decoding"),
        (["--batch-tokens", "64"], "--batch-tokens is for decoding"),
        (["--tokenize", "moses"], "--tokenize moses: is for decoding with a model"),
        (["--tokenize", "14a"], "unknown tokenizer '14a': did you mean '13a'?"),
        (["--against", "drop"], "--against 'drop': is not one of the systems (keep)"),
        (["--timings", "{}/times.json"], "--timings is for decoding"),
        (["--samples", "3"], "--samples 3: expected a number of at least 20"),
        (["--samples", "99999999999999999999"], "and at most 1000000"),
        (["--limit", "0"], "--limit 0: expected a number of at least 1"),
        (["--table", "{}/t.doc"], "t.doc: expected a name that ends in .tex or .md"),
        (["--json", "{}/keep.jsonl"], "would replace a file that is read"),
        (["--reference", "{}/decode.py"], "keep has 10 sentences but there are"),
    ],
)
def test_wrong_input(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    given = [argument.format(folder) for argument in arguments]
    reference = [] if "--reference" in given else ["--reference", str(folder / "references")]
    command = ["evaluate", "--trajectories", str(folder / "keep.jsonl"), *reference, *given]
    assert main([*command] if "--json" in given else [*command, "--json", str(folder / "out.json")]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_model_or_files_are_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--model", "de-en"], ["--direction", "de-en"]):
        assert run(folder, *arguments) == 2
        assert "give --model and --direction (or --text) to decode, or --trajectories" in capsys.readouterr().err
    assert main(["evaluate", "--trajectories", str(folder / "keep.jsonl")]) == 2
    assert "--trajectories needs --reference" in capsys.readouterr().err
    assert run(folder, "--trajectories", folder / "nowhere.jsonl") == 2
    assert "nowhere.jsonl: no such file" in capsys.readouterr().err

"""Lines that cannot be translated or scored as they are: named, counted, and no matter to the others."""

import io
import json
import sys
from pathlib import Path

import pytest

from anyorder.cli import main
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.trajectory import read_trajectories
from tests.conftest import tiny, toy_pairs

PAIRS = [(source.encode(), target.encode()) for source, target in toy_pairs(8, seed=6)]
BAD = {
    2: ("empty source", b"", b"Nothing."),
    3: ("control characters in source became spaces; empty source", b" \x07 ", b"A bell."),
    5: ("source truncated to 62 of", b"Hund " * 10_000, b"dog " * 10),
    6: ("source split into 2 parts", b"Der Hund sieht die Katze heute im Garten. " * 9, b"The dog sees the cat. " * 9),
    8: ("invalid UTF-8 in source became U+FFFD", b"Der H\xfcnd sieht.", b"The dog."),
    9: ("control characters in source became spaces", b"Der\x00 Hund\x1b[31m sieht.", b"The dog."),
}
"""By line: the note, the source and its reference."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    """A model, a clean test set (`clean`), and the same with bad lines among the others (`mixed`)."""
    folder = tmp_path_factory.mktemp("lines")
    tiny(vocabulary).save_pretrained(folder / "model")
    mixed, good = [], iter(PAIRS)
    for line in range(1, len(PAIRS) + len(BAD) + 1):
        mixed.append(BAD[line][1:] if line in BAD else next(good))
    for name, pairs in (("clean", PAIRS), ("mixed", mixed)):
        for side, language in enumerate(("de", "en")):
            (folder / f"{name}.{language}").write_bytes(b"".join(pair[side] + b"\n" for pair in pairs))
    return folder


def run(folder: Path, verb: str, *arguments: object) -> int:
    model = ["--model", folder / "model", "--direction", "de-en", "--device", "cpu"]
    return main([verb, *map(str, [*model, *arguments])])


@pytest.mark.parametrize("order", ["uniform", "margin"])
def test_other_lines_are_translated_as_without_them(
    folder: Path, tmp_path: Path, order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--order", order, "--length", "predicted", "--schedule", 4]
    assert run(folder, "translate", *options, "--json", tmp_path / "clean", folder / "clean.de") == 0
    clean = capsys.readouterr()
    assert clean.err == ""
    assert run(folder, "translate", *options, "--json", tmp_path / "mixed", folder / "mixed.de") == 0
    mixed = capsys.readouterr()
    for one, other in ((clean.out, mixed.out), *[[(tmp_path / name).read_text() for name in ("clean", "mixed")]]):
        lines = other.split("\n")[:-1]
        assert len(lines) == len(PAIRS) + len(BAD)
        assert [line for i, line in enumerate(lines, start=1) if i not in BAD] == one.split("\n")[:-1]
    assert mixed.err.startswith(
        "anyorder translate: 6 lines were not translated as they are (2 control characters, 2 empty source, "
        "1 invalid UTF-8, 1 source split, 1 source truncated): line 2 (empty source), line 3 "
    )
    assert mixed.err.endswith("line 8 (invalid UTF-8 in source became U+FFFD) and 1 more\n")
    trajectories = dict(enumerate(read_trajectories(tmp_path / "mixed"), start=1))
    assert {line for line, one in trajectories.items() if one.note} == set(BAD)
    for line, (note, *_) in BAD.items():
        assert trajectories[line].note.startswith(note)
        assert bool(trajectories[line].text) == ("empty" not in note)
    split = trajectories[6]
    assert set(split.steps) == set(range(1, max(split.steps) + 1))
    assert len(split.tokens) == len(split.steps) == len(split.logprobs) == split.length
    assert main(["analyze", "--samples", "20", "--null-samples", "2", "--tagger", "none", str(tmp_path / "mixed")]) == 0


def test_parts_are_translated_on_their_own(folder: Path, tmp_path: Path) -> None:
    sentence = "Der Hund sieht die Katze heute im Garten. "
    (tmp_path / "parts").write_text(f"{sentence * 9}\n{sentence * 6}\n{sentence * 3}\n")
    options = ["--order", "uniform", "--schedule", 2, "--length", "predicted", "--json", tmp_path / "out"]
    assert run(folder, "translate", *options, tmp_path / "parts") == 0
    whole, *parts = read_trajectories(tmp_path / "out")
    assert (whole.note, parts[0].note, parts[1].note) == ("source split into 2 parts", "", "")
    assert whole.text == " ".join(part.text for part in parts)
    assert whole.logprobs == [logprob for part in parts for logprob in part.logprobs]
    assert whole.steps == parts[0].steps + [max(parts[0].steps) + step for step in parts[1].steps]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (b"", "is empty, expected a sentence"),
        (b"Hund " * 90, "90 subwords, the model has room for 62"),
        (b"Der H\xfcnd", "invalid UTF-8 (byte 0xfc at column 6)"),
        (b"Der\x00 Hund", "holds control characters, expected plain text"),
    ],
)
@pytest.mark.parametrize("verb", ["translate", "evaluate"])
def test_strict_stops_at_the_first_of_them(
    folder: Path, tmp_path: Path, verb: str, source: bytes, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test.de").write_bytes(b"Der Hund sieht.\n" + source + b"\n\n")
    (tmp_path / "test.en").write_bytes(b"The dog sees.\nA dog.\nA cat.\n")
    files: list[object] = [tmp_path / "test.de"]
    if verb == "evaluate":
        files = ["--orders", "margin", "--source", tmp_path / "test.de", "--reference", tmp_path / "test.en"]
    assert run(folder, verb, "--strict", "--json", tmp_path / "out.json", *files) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"anyorder {verb}: {tmp_path}/test.de, line 2: {error}\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["test.de", "test.en"]


def evaluated(folder: Path, out: Path, name: str, *options: object) -> dict:
    files = ["--source", folder / f"{name}.de", "--reference", folder / f"{name}.en", "--json", out]
    assert (
        run(folder, "evaluate", "--orders", "uniform,margin", "--schedule", 4, "--samples", 20, *files, *options) == 0
    )
    return json.loads(out.read_text())


@pytest.mark.parametrize("length", ["gold", "predicted"])
def test_a_test_set_with_such_lines_is_scored(
    folder: Path, tmp_path: Path, length: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluated(folder, tmp_path / "out.json", "mixed", "--length", length)
    assert {row["sentences"] for row in result["rows"]} == {len(PAIRS) + 4}
    assert [(one["line"], one["scored"]) for one in result["lines"]] == [(line, line > 3) for line in BAD]
    for one in result["lines"]:
        assert one["note"].startswith(BAD[one["line"]][0])
    assert "anyorder evaluate: 6 lines were not scored as they are" in capsys.readouterr().err


def test_pairs_that_are_left_out_change_no_score(folder: Path, tmp_path: Path) -> None:
    for language in ("de", "en"):
        lines = (folder / f"clean.{language}").read_bytes().split(b"\n")
        lines[3:3] = [b"", b"\x0b"] if language == "de" else [b"text", b"text"]
        lines[6:6] = [b"Hund"] if language == "de" else [b" "]
        (tmp_path / f"test.{language}").write_bytes(b"\n".join(lines))
    clean = evaluated(folder, tmp_path / "clean.json", "clean")
    assert clean["lines"] == []
    with_empty = evaluated(tmp_path, tmp_path / "out.json", "test", "--model", folder / "model")
    assert [one["line"] for one in with_empty.pop("lines")] == [4, 5, 7]
    assert with_empty == {key: value for key, value in clean.items() if key != "lines"}


@pytest.mark.parametrize("content", [b"", None])
def test_nothing_to_translate(
    folder: Path, tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    (tmp_path / "empty").write_bytes(b"")
    files, name = ([], "standard input") if content is None else ([tmp_path / "empty"], str(tmp_path / "empty"))
    assert run(folder, "translate", *files) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"anyorder translate: {name} is empty: nothing to translate\n")


def test_an_empty_argument_is_an_empty_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "translate", "") == 0
    shown = capsys.readouterr()
    assert shown.out == "\n"
    assert (
        shown.err == "anyorder translate: 1 line was not translated as it is (1 empty source): line 1 (empty source)\n"
    )


def test_a_reference_that_is_shorter_than_the_source(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short").write_text("The dog.\n")
    options = ["--length", "gold", "--reference", tmp_path / "short", "--json", tmp_path / "out"]
    assert run(folder, "translate", *options, folder / "clean.de") == 2
    expected = f"anyorder translate: {folder}/clean.de has more lines than {tmp_path}/short\n"
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "out").exists()


def test_the_gold_length_is_clipped_to_the_room(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "test.de").write_text("Der Hund sieht.\n\nHund\n")
    (tmp_path / "test.en").write_text("dog " * 90 + "\n\n\n")
    options = ["--length", "gold", "--schedule", 8, "--reference", tmp_path / "test.en", "--json", tmp_path / "out"]
    assert run(folder, "translate", *options, tmp_path / "test.de") == 0
    one, *others = read_trajectories(tmp_path / "out")
    assert one.length == 62
    assert one.note == "length clipped to 62 of the reference's 90 subwords"
    assert [(other.length, other.note) for other in others] == [
        (0, "empty source; empty reference"),
        (0, "empty reference"),
    ]

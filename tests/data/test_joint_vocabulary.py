"""One vocabulary for several language pairs: learned on all of their text, used by each of their stores."""

from collections import Counter
from pathlib import Path

import pytest

from anyorder.cli import main
from anyorder.data.store import Store, open_stores
from anyorder.data.vocabulary import balance_languages
from tests.stores import write_store

COUNTS = {"en": {"the": 900, "a": 100}, "ro": {"și": 8, "a": 2}}


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (1.0, {"the": 900, "a": 102, "și": 8}),
        (0.5, {"the": 900, "a": 120, "și": 80}),  # ro has a hundredth of the words, so it counts ten times
        (0.0, {"the": 900, "a": 300, "și": 800}),
    ],
)
def test_small_languages_count_for_more(alpha: float, expected: dict[str, int]) -> None:
    assert balance_languages(COUNTS, alpha) == Counter(expected)


def test_commands_that_make_stores_with_one_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text of both pairs, of which English has two files, is learned from together."""
    for pair, line in (("de-en", "der Hund|the dog"), ("ro-en", "câinele rău|the bad dog")):
        (tmp_path / pair).mkdir()
        for language, words in zip(pair.split("-"), line.split("|"), strict=True):
            text = "".join(f"{words} {number}\n" for number in range(60))
            (tmp_path / pair / f"train.{language}").write_text(text, encoding="utf-8")
    joint = ["--mono", f"de-en={tmp_path}/de-en/train.%,ro-en={tmp_path}/ro-en/train.%", "--vocabulary", "70"]
    prepare = ["prepare", "--workers", "1", "--languages"]
    assert main([*prepare, "de,en,ro", *joint, "--vocabulary-alpha", "0.5", "--out", str(tmp_path / "joint")]) == 0
    store = Store(tmp_path / "joint")
    assert {language: len(side) for language, side in store.split("mono").sides.items()} == {
        "de": 60,
        "en": 120,
        "ro": 60,
    }
    words = store.vocabulary.words(store.split("mono").sides["ro"][7])
    assert words == ["câinele", "rău", "7"]
    more = ["--train", f"news={tmp_path}/ro-en/train.%", "--tokenizer", str(tmp_path / "joint")]
    assert main([*prepare, "ro,en", *more, "--out", str(tmp_path / "store" / "ro-en")]) == 0
    german = write_store(tmp_path / "store" / "de-en", store.vocabulary, {"train": 3})
    stores = open_stores([german, tmp_path / "store" / "ro-en"])
    assert stores.languages == ("de", "en", "ro")
    capsys.readouterr()
    train = ["train", "--data", *(str(one.path) for one in stores), "--out", str(tmp_path / "run"), "--run.steps", "1"]
    assert main([*train, "--masking.only-into", '{"ro-en/news": "de"}']) == 2
    assert "unknown language of corpus 'ro-en/news' 'de'" in capsys.readouterr().err
    assert main([*train, "--data", str(german), str(tmp_path / "none")]) == 2
    assert "none: not a prepared store" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

import filecmp
import json
import time
from pathlib import Path

import numpy as np
import pytest

from anyorder.data.corpus import Corpus, parse_corpora
from anyorder.data.prepare import FilterConfig, FilterReport, prepare
from anyorder.data.store import Store
from anyorder.data.text import Text, TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.files import CHECKSUMS, sha256
from tests.conftest import toy_pairs, write_pairs

LANGUAGES = ("de", "en")


def make(tmp_path: Path, out: str = "store", **options: object) -> tuple[Store, FilterReport]:
    pairs = toy_pairs(120, seed=1)
    train = [*pairs[:100], pairs[0], ("", "nothing"), pairs[110], ("Hund " * 90, "dog " * 90), ("ja", "yes " * 9)]
    write_pairs(tmp_path, "train", train)
    (tmp_path / "train.corpus").write_text("news\n" * 40 + "web\n" * 65)
    write_pairs(tmp_path, "dev", pairs[100:])
    splits = {
        "train": [Corpus("train", (tmp_path / "train.de", tmp_path / "train.en"), tmp_path / "train.corpus")],
        "dev": parse_corpora(f"{tmp_path}/dev.%", LANGUAGES),
    }
    chosen: dict[str, object] = {"vocabulary": 110, "filters": FilterConfig(1, 80, 4.0), "workers": 1, **options}
    report = prepare(LANGUAGES, splits, tmp_path / out, **chosen)  # type: ignore[arg-type]
    return Store(tmp_path / out), report


def test_the_report_counts_every_line(tmp_path: Path) -> None:
    store, report = make(tmp_path)
    lines = report.as_json()
    assert lines["train"]["news"] == {"kept": 40}
    assert lines["train"]["web"] == {
        "kept": 60, "empty": 1, "duplicate": 1, "in another split": 1, "too long": 1, "ratio": 1,
    }  # fmt: skip
    assert lines["dev"] == {"dev": {"kept": 20}}
    assert store.manifest["lines"] == lines
    assert len(store.split("train")) == 100


def test_the_store_holds_what_the_text_says(tmp_path: Path) -> None:
    store, _ = make(tmp_path)
    for name, first in (("train", 0), ("dev", 100)):
        split = store.split(name)
        for i in (0, 7, len(split) - 1):
            for column, language in enumerate(LANGUAGES):
                line = toy_pairs(120, seed=1)[first + i][column]
                ids = store.vocabulary.encode([Text(language).words(line)])[0]
                assert split.sides[language][i].tolist() == ids
    corpus = store.split("train").corpus
    assert corpus is not None
    assert np.bincount(corpus).tolist() == [40, 60]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    make(tmp_path, "one")
    make(tmp_path, "two", workers=2)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "two").iterdir())
    _, different, errors = filecmp.cmpfiles(tmp_path / "one", tmp_path / "two", names, shallow=False)
    assert not different
    assert not errors


def test_the_last_pairs_of_a_corpus_are_held_out(tmp_path: Path) -> None:
    whole, _ = make(tmp_path, "whole")
    store, report = make(tmp_path, "part", hold_out={"order": {"news": 10, "web": 5}})
    assert len(store.split("train")) == 85
    assert report.held_out == {"order": 15}
    held, side = store.split("order").sides["en"], whole.split("train").sides["en"]
    assert [held[i].tolist() for i in range(15)] == [side[i].tolist() for i in [*range(30, 40), *range(95, 100)]]


def test_a_store_of_version_0_1_opens(tmp_path: Path) -> None:
    store, _ = make(tmp_path)
    manifest = store.manifest | {"text": {"normalise": False, "romanian": "plain", "lowercase": False}}
    (store.path / "manifest.json").write_text(json.dumps(manifest))
    (store.path / CHECKSUMS).unlink()
    assert Store(store.path).text == TextConfig(normalize=False, romanian="plain")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_ratio": 0.5}, "max_ratio 0.5: expected 0 or a number of at least 1"),
        ({"min_length": 5, "max_length": 4}, "max_length 4: expected a number of at least 5"),
    ],
)
def test_filters_check_themselves(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as error:
        FilterConfig(**options)  # type: ignore[arg-type]
    assert str(error.value) == message
    assert error.value.config is FilterConfig


def test_a_vocabulary_can_be_reused(tmp_path: Path) -> None:
    store, _ = make(tmp_path, "first")
    again, _ = make(tmp_path, "second", vocabulary=store.vocabulary)
    assert again.vocabulary.fingerprint == store.vocabulary.fingerprint


def test_monolingual_text_need_not_be_aligned(tmp_path: Path) -> None:
    (tmp_path / "m.de").write_text("der Hund\ndie Katze\nder Hund\n" * 5)
    (tmp_path / "m.en").write_text("the dog\n" + "the cat\n" * 20)
    prepare(LANGUAGES, {}, tmp_path / "s", mono=parse_corpora(f"{tmp_path}/m.%", LANGUAGES), vocabulary=44, workers=1)
    split = Store(tmp_path / "s").split("mono")
    assert not split.parallel
    assert {language: len(side) for language, side in split.sides.items()} == {"de": 2, "en": 2}


def test_monolingual_text_holds_nothing_of_an_evaluation_split(tmp_path: Path) -> None:
    """A line is dropped where dev or test has it on the side of the same language, and nowhere else."""
    pairs = toy_pairs(60, seed=3)
    splits = {
        name: parse_corpora(write_pairs(tmp_path, name, part), LANGUAGES)
        for name, part in (("train", pairs[:40]), ("dev", pairs[40:50]), ("test", pairs[50:]))
    }
    german = [pairs[45][0], pairs[55][0], pairs[3][0], "Der Hund malt.", pairs[45][1], pairs[45][0]]
    english = [pairs[50][1], "The dog paints."]
    (tmp_path / "m.de").write_text("".join(line + "\n" for line in german))
    (tmp_path / "m.en").write_text("".join(line + "\n" for line in english))
    mono = parse_corpora(f"{tmp_path}/m.%", LANGUAGES)
    report = prepare(LANGUAGES, splits, tmp_path / "s", mono=mono, vocabulary=110, workers=1)
    lines = report.as_json()
    assert lines["mono.de"] == {"m": {"kept": 3, "in another split": 3}}
    assert lines["mono.en"] == {"m": {"kept": 1, "in another split": 1}}
    split = Store(tmp_path / "s").split("mono")
    assert {language: len(side) for language, side in split.sides.items()} == {"de": 3, "en": 1}


def test_evaluation_text_in_one_language(tmp_path: Path) -> None:
    (tmp_path / "dev.de").write_text("der Hund\n" * 2 + "die Katze\n")
    (tmp_path / "train.de").write_text("der Hund\n" * 20 + "ein Baum\n" * 20 + "das Haus\n" * 20)
    splits = {name: parse_corpora(f"{tmp_path}/{name}.%", ("de",)) for name in ("train", "dev")}
    lines = prepare(("de",), splits, tmp_path / "s", vocabulary=40, workers=1).as_json()
    assert lines["dev"] == {"dev": {"kept": 3}}  # an evaluation split loses only empty lines
    assert lines["train"] == {"train": {"kept": 2, "duplicate": 38, "in another split": 20}}


def test_monolingual_text_may_lack_a_language(tmp_path: Path) -> None:
    (tmp_path / "m.de").write_text("der Hund\ndie Katze\n" * 10)
    prepare(LANGUAGES, {}, tmp_path / "s", mono=parse_corpora(f"{tmp_path}/m.%", LANGUAGES), vocabulary=40, workers=1)
    store = Store(tmp_path / "s")
    assert list(store.split("mono").sides) == ["de"]
    assert list(store.manifest["inputs"]) == ["m.de"]
    with pytest.raises(InputError, match="no such file, nor one for another language"):
        prepare(LANGUAGES, {}, tmp_path / "t", mono=parse_corpora(f"{tmp_path}/n.%", LANGUAGES), workers=1)


def test_nothing_is_left_behind_by_a_failure(tmp_path: Path) -> None:
    write_pairs(tmp_path, "train", toy_pairs(5, seed=1))
    (tmp_path / "train.en").write_text("only one line\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"train.de has 5 lines but .*train.en has 1 lines"):
        prepare(LANGUAGES, {"train": parse_corpora(f"{tmp_path}/train.%", LANGUAGES)}, tmp_path / "s", workers=1)
    assert sorted(tmp_path.iterdir()) == before


def test_an_existing_store_is_not_overwritten(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match="already exists"):
        make(tmp_path)


def test_a_corpus_of_empty_lines_is_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path, "train", [("", ""), (" ", "x")])
    with pytest.raises(InputError, match="'train' is empty"):
        prepare(LANGUAGES, {"train": parse_corpora(f"{tmp_path}/train.%", LANGUAGES)}, tmp_path / "s", workers=1)


def test_damage_is_noticed(tmp_path: Path) -> None:
    store, _ = make(tmp_path)
    file = tmp_path / "store" / "train.de.ids.bin"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(InputError, match="damaged"):
        store.split("train")
    with pytest.raises(InputError, match="unknown split 'trian': did you mean 'train'"):
        store.split("trian")


@pytest.mark.parametrize(
    ("spec", "name", "labels"),
    [("news=n.%.xz", "news", None), ("data/train.%.gz", "train", None), ("a.%@l.txt", "a", Path("l.txt"))],
)
def test_corpora_are_named(spec: str, name: str, labels: Path | None) -> None:
    corpus = parse_corpora(spec, LANGUAGES)[0]
    assert (corpus.name, corpus.labels) == (name, labels)
    assert all("%" not in str(file) for file in corpus.files)


def test_opening_a_million_pairs_takes_under_a_second(tmp_path: Path) -> None:
    _store, _ = make(tmp_path)
    folder, count = tmp_path / "store", 1_000_000
    for language in LANGUAGES:
        np.zeros(count * 20, np.uint16).tofile(folder / f"train.{language}.ids.bin")
        np.save(folder / f"train.{language}.ends.npy", np.arange(20, count * 20 + 1, 20))
    np.save(folder / "train.corpus.npy", np.zeros(count, np.uint8))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["pairs"] = count
    (folder / "manifest.json").write_text(json.dumps(manifest))
    sums = {file.name: sha256(file) for file in folder.iterdir() if file.name != CHECKSUMS}
    (folder / CHECKSUMS).write_text(json.dumps(sums))
    start = time.perf_counter()
    split = Store(folder).split("train")
    total = sum(int(side.lengths.sum()) for side in split.sides.values())
    assert time.perf_counter() - start < 1
    assert (len(split), total) == (count, 2 * 20 * count)
    assert json.loads((folder / "manifest.json").read_text())["languages"] == list(LANGUAGES)


def test_a_vocabulary_with_more_entries_than_its_model(tmp_path: Path) -> None:
    """As XLM's: merges that only lead on to longer pieces get ids past the end, and are <unk> in text."""
    (tmp_path / "t.de").write_text("ab a\n")
    (tmp_path / "t.en").write_text("b ba\n")
    special = ("<s>", "</s>", "<pad>", "<unk>", "<special0>", "<mask>")
    pieces = [*special, "a", "b", "a</w>", "b</w>", "ab</w>", "ba</w>"]
    merges = [("a", "b</w>"), ("b", "a</w>")]
    vocabulary = Vocabulary.from_merges({piece: i for i, piece in enumerate(pieces)}, merges, size=10)
    train = parse_corpora(str(tmp_path / "t.%"), ("de", "en"))
    prepare(("de", "en"), {"train": train}, tmp_path / "store", vocabulary=vocabulary, workers=1)
    store = Store(tmp_path / "store")
    assert len(store.vocabulary) == 10
    assert store.split("train").sides["de"].ids.tolist() == [vocabulary.unk, 8]
    assert store.split("train").sides["en"].ids.tolist() == [9, vocabulary.unk]
    assert store.split("train") is store.split("train")

"""Stores whose training targets a baseline has made."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from anyorder.cli import main
from anyorder.data.store import Store, Stores
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.files import CHECKSUMS
from anyorder.models.native.storage import WEIGHTS
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import TranslationModel
from anyorder.reproduce.autoregressive import RECORD, Autoregressive, AutoregressiveObjective
from anyorder.reproduce.distillation import distill
from anyorder.tasks.translation import encode_sentences
from anyorder.training.config import TextTrainConfig, TrainConfig
from anyorder.training.loop import run_training
from anyorder.training.train import train_model
from anyorder.training.translation_objective import MaskingConfig, TranslationPairs
from tests.cluster_work import Here
from tests.conftest import tiny
from tests.reproduce.conftest import Laboratory, decode_with_baseline
from tests.stores import write_store

pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def toy(laboratory: Laboratory) -> TranslationModel:
    return TranslationModel.from_pretrained(laboratory.model)


@pytest.fixture(scope="module")
def baseline(store: Store, toy: TranslationModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained until its translations depend on the source."""
    out = tmp_path_factory.mktemp("baseline")
    objective = AutoregressiveObjective([store], toy, 1024, seed=1)
    run = TrainConfig(steps=300, learning_rate=0.003, warmup=20, ema=0.9, validate_every=0, device="cpu")
    run_training(objective, run, out, resume=False)
    return out / objective.folder


def pairs_by_corpus(store: Store) -> dict[str, list[tuple[list[int], list[int]]]]:
    split = store.split("train")
    found: dict[str, list[tuple[list[int], list[int]]]] = {name: [] for name in split.corpora}
    first, second = (split.sides[language] for language in store.languages)
    assert split.corpus is not None
    for i, corpus in enumerate(split.corpus.tolist()):
        found[split.corpora[corpus]].append((first[i].tolist(), second[i].tolist()))
    return found


def test_targets_are_what_the_baseline_says(
    store: Store, toy: TranslationModel, baseline: Path, tmp_path: Path
) -> None:
    result = distill(store.path, baseline, tmp_path / "made")
    made, (corpus,) = Store(tmp_path / "made"), store.split("train").corpora
    assert made.split("train").only_into == {f"{corpus}-into-de": "de", f"{corpus}-into-en": "en"}
    assert result.pairs == len(store.split("train"))
    real, new = pairs_by_corpus(store)[corpus], pairs_by_corpus(made)
    for target in (0, 1):
        source, (direction, back) = 1 - target, (("en-de", "de-en"), ("de-en", "en-de"))[target]
        found = new[f"{corpus}-into-{store.languages[target]}"]
        assert [pair[source] for pair in found] == [pair[source] for pair in real]
        assert len({tuple(pair[target]) for pair in found}) > 50
        sentences = encode_sentences(toy, [toy.to_text(pair[source], back) for pair in real[:30]], direction)
        hypotheses = decode_with_baseline(baseline, toy, direction, sentences, 1)
        for pair, one, hypothesis in zip(found, real, hypotheses, strict=False):
            assert pair[target] == one[target] or toy.to_tokens(pair[target]) == hypothesis.tokens
        changed = sum(pair[target] != one[target] for pair, one in zip(found, real, strict=True))
        assert len(real) / 2 < changed <= len(real) - result.kept[store.languages[target]]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_batch_gives_what_each_sentence_gives_alone(
    store: Store, toy: TranslationModel, baseline: Path, beam: int
) -> None:
    teacher = Autoregressive(baseline, store.vocabulary, "the test", CPU)
    side = store.split("train").sides["de"]
    sources = [side[i] for i in np.random.default_rng(1).permutation(len(side))[:20]]

    def translate(some: list[np.ndarray]) -> list[list[int]]:
        return [ids.tolist() for ids in teacher.translate(some, "en", beam, lambda count: None)]

    together = translate(sources)
    assert together == [translate([source])[0] for source in sources]
    assert len(set(map(tuple, together))) > 5
    ended = [ids[-1] == toy.vocabulary.eos for ids in together]
    assert sum(ended) > 10
    assert all(toy.vocabulary.pad not in ids and ids.count(toy.vocabulary.eos) <= 1 for ids in together)


def test_other_pairs_and_splits_stay(vocabulary: Vocabulary, baseline: Path, tmp_path: Path) -> None:
    old = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 40, "dev": 6}, ("news", "web")))
    (old.path / "tokenizer.json.partial-1").write_text("left by a killed process")
    result = distill(old.path, baseline, tmp_path / "made", pairs=10, beam=2)
    made = Store(tmp_path / "made")
    real, new = pairs_by_corpus(old), pairs_by_corpus(made)
    assert result.pairs == 10
    assert len(made.split("train")) == 30 + 2 * 10
    for corpus in ("news", "web"):
        into_german, into_english = new[f"{corpus}-into-de"], new[f"{corpus}-into-en"]
        assert len(into_german) == len(into_english) == len(real[corpus]) - len(new[corpus])
        pairs = [pair for pair in real[corpus] if pair not in new[corpus]]
        assert [pair[1] for pair in into_german] == [pair[1] for pair in pairs]
        assert [pair[0] for pair in into_english] == [pair[0] for pair in pairs]
    for name in ("dev.de.ids.bin", "dev.en.ends.npy", "tokenizer.json"):
        assert (made.path / name).read_bytes() == (old.path / name).read_bytes()
    assert {file.name for file in made.path.iterdir()} == {file.name for file in old.path.iterdir()} - {
        "tokenizer.json.partial-1"
    } | {"checksums.json"}
    again = distill(old.path, baseline, tmp_path / "again", pairs=10, beam=2)
    assert again == result
    assert (tmp_path / "again" / "train.de.ids.bin").read_bytes() == (made.path / "train.de.ids.bin").read_bytes()
    assert json.loads((made.path / "manifest.json").read_text())["distilled"]["pairs"] == 10


def test_the_workers_of_a_cluster_translate_the_same(
    vocabulary: Vocabulary, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyorder.reproduce.distillation.CHUNK_PAIRS", 4)
    monkeypatch.chdir(tmp_path)
    old, done = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 20}, ("news", "web"))), []
    alone = distill(old.path, baseline, tmp_path / "alone", pairs=10)
    together = distill(
        Path("de-en"), baseline, tmp_path / "together", pairs=10, on_progress=done.append, cluster=Here()
    )
    assert (alone, sum(done)) == (together, 2 * 10)
    assert (tmp_path / "alone" / CHECKSUMS).read_bytes() == (tmp_path / "together" / CHECKSUMS).read_bytes()


def test_it_stops_in_time(
    vocabulary: Vocabulary, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the pairs that it came to are those that `pairs` draws."""
    monkeypatch.setattr("anyorder.reproduce.distillation.CHUNK_PAIRS", 4)
    old = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 40}, ("news", "web")))
    first = distill(old.path, baseline, tmp_path / "first", minutes=1e-9)
    assert first.pairs == 4
    drawn = distill(old.path, baseline, tmp_path / "drawn", pairs=4)
    assert drawn == first
    assert pairs_by_corpus(Store(tmp_path / "first")) == pairs_by_corpus(Store(tmp_path / "drawn"))
    whole = distill(old.path, baseline, tmp_path / "whole", minutes=10)
    assert whole.pairs == 40
    made = Store(tmp_path / "whole").split("train")
    assert set(made.corpora) == set(made.only_into) == {f"{a}-into-{b}" for a in ("news", "web") for b in ("de", "en")}


def test_bad_translations_are_not_used(
    vocabulary: Vocabulary, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without a word, without an end, or longer than any real one."""
    old = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 5}))
    word, eos = vocabulary.first_word, vocabulary.eos
    hypotheses = [[word, eos], [eos], [word, word], [word, word, eos], [word] * 13 + [eos]]
    monkeypatch.setattr(Autoregressive, "translate", lambda *arguments, **options: list(map(np.array, hypotheses)))
    result = distill(old.path, baseline, tmp_path / "made")
    assert result.kept == {"de": 3, "en": 3}
    (real,), new = pairs_by_corpus(old).values(), pairs_by_corpus(Store(tmp_path / "made"))
    for target, language in enumerate(("de", "en")):
        pairs = next(pairs for name, pairs in new.items() if name.endswith(f"-into-{language}"))
        expected = [[word], real[1][target], real[2][target], [word, word], real[4][target]]
        assert [pair[target] for pair in pairs] == expected
        assert [pair[1 - target] for pair in pairs] == [pair[1 - target] for pair in real]


def test_a_model_learns_each_pair_in_its_direction(vocabulary: Vocabulary, baseline: Path, tmp_path: Path) -> None:
    old = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 40, "dev": 6}))
    distill(old.path, baseline, tmp_path / "made", pairs=30)
    made = Store(tmp_path / "made")
    pairs = TranslationPairs(Stores([made]), tiny(vocabulary), (), {}, {})
    assert [len(pairs.lengths(direction)[0]) for direction in ("de-en", "en-de")] == [40, 40]
    run = TextTrainConfig(steps=2, batch_tokens=512, validate_every=0, device="cpu")
    size = TransformerConfig(hidden_size=32, num_layers=1, num_heads=2)
    assert train_model(made, tmp_path / "run", size, MaskingConfig(), run).steps == 2
    with pytest.raises(InputError, match="was distilled before"):
        distill(made.path, baseline, tmp_path / "twice")


def test_stores_that_cannot_be_distilled(vocabulary: Vocabulary, baseline: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"

    def refuse(message: str, splits: dict[str, int], corpora: tuple[str, ...] = ("news",), longer: int = 0) -> None:
        folder = write_store(tmp_path / "de-en", vocabulary, splits, corpora, longer=longer)
        with pytest.raises(InputError, match=message):
            distill(folder, baseline, out)
        assert not out.exists()

    refuse("needs parallel training text", {"dev": 4})
    refuse("already has a corpus 'news-into-de'", {"train": 4}, ("news", "news-into-de"))
    refuse("90 corpora, expected at most 85", {"train": 180}, tuple(map(str, range(90))))
    refuse(r"sentences of \d+ subwords, the baseline has room for 62", {"train": 4}, longer=90)
    folder = write_store(tmp_path / "de-en", vocabulary, {"train": 4, "dev": 4})
    (folder / "dev.de.ids.bin").write_bytes(bytes((folder / "dev.de.ids.bin").stat().st_size))
    with pytest.raises(InputError, match="damaged"):
        distill(folder, baseline, out)


def test_baselines_that_cannot_be_used(store: Store, baseline: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"

    def refuse(message: str, file: str, content: bytes, keep_checksums: bool = False) -> None:
        other = tmp_path / "other"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(baseline, other)
        if not keep_checksums:
            (other / CHECKSUMS).unlink()
        (other / file).write_bytes(content)
        with pytest.raises(InputError, match=message):
            distill(store.path, other, out, pairs=2)
        assert not out.exists()

    record = json.loads((baseline / RECORD).read_text())
    config = json.loads((baseline / "config.json").read_text())
    weights = (baseline / WEIGHTS).read_bytes()
    refuse("another vocabulary", RECORD, json.dumps(record | {"vocabulary": "x"}).encode())
    refuse("another vocabulary", RECORD, json.dumps(record | {"languages": ["de", "en", "ro"]}).encode())
    refuse("does not know the language en", RECORD, json.dumps(record | {"languages": ["de", "ro"]}).encode())
    refuse("cannot be read", WEIGHTS, weights[:-10])
    refuse("config.json: expected an object", "config.json", b"[]")
    refuse(
        "encoder_layers: 1000000000, expected", "config.json", json.dumps(config | {"encoder_layers": 10**9}).encode()
    )
    refuse("dropout: 2, expected a number", "config.json", json.dumps(config | {"dropout": 2}).encode())
    refuse(f"{WEIGHTS}: has no", "config.json", json.dumps(config | {"encoder_layers": 3}).encode())
    refuse("damaged", WEIGHTS, weights[:-1] + bytes([weights[-1] ^ 1]), keep_checksums=True)


def test_the_verb(store: Store, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made"
    command = ["distill", "--data", str(store.path), "--baseline", str(baseline), "--out", str(out), "--device", "cpu"]
    assert main([*command, "--pairs", "5"]) == 0
    assert "5 pairs were translated in both directions." in capsys.readouterr().out
    assert Store(out).split("train").only_into
    assert main(command) == 2
    assert "already exists" in capsys.readouterr().err
    for option, value in (("--pairs", "0"), ("--minutes", "0.0"), ("--beam", "101"), ("--seed", "-1")):
        assert main([*command, option, value]) == 2
        assert capsys.readouterr().err.startswith(f"anyorder distill: {option} {value}: expected")

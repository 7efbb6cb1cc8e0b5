"""Stores whose training targets a baseline has made."""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from anyorder.data.store import Store
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.sentence import encode_sentences
from anyorder.errors import InputError
from anyorder.models.transformer import TransformerConfig
from anyorder.models.translation import TranslationModel
from anyorder.reproduce import distillation
from anyorder.reproduce.autoregressive import RECORD, AutoregressiveObjective, load_baseline
from anyorder.reproduce.baseline_jobs import decode_baseline
from anyorder.reproduce.distillation import distill
from anyorder.training.config import TextTrainConfig, TrainConfig
from anyorder.training.loop import run_training
from anyorder.training.train import train_model
from anyorder.training.translation_objective import MaskingConfig
from tests.reproduce.conftest import Laboratory
from tests.stores import write_store

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def toy(laboratory: Laboratory) -> TranslationModel:
    return TranslationModel.from_pretrained(laboratory.model)


@pytest.fixture(scope="module")
def baseline(store: Store, toy: TranslationModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained until some of its translations come to an end."""
    out = tmp_path_factory.mktemp("baseline")
    objective = AutoregressiveObjective([store], toy, 2048, seed=1)
    run = TrainConfig(steps=150, learning_rate=0.01, warmup=1, ema=0.5, validate_every=0, device="cpu")
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
    result = distill(store, baseline, tmp_path / "made")
    made, (corpus,) = Store(tmp_path / "made"), store.split("train").corpora
    assert result.only_into == {f"{corpus}-into-de": "de", f"{corpus}-into-en": "en"}
    assert result.pairs == len(store.split("train"))
    real, new = pairs_by_corpus(store)[corpus], pairs_by_corpus(made)
    network, record = load_baseline(baseline, torch.device("cpu"))
    for target in (0, 1):
        source, (direction, back) = 1 - target, (("en-de", "de-en"), ("de-en", "en-de"))[target]
        found = new[f"{corpus}-into-{store.languages[target]}"]
        assert [pair[source] for pair in found] == [pair[source] for pair in real]
        sentences = encode_sentences(toy, [toy.to_text(pair[source], back) for pair in real[:30]], direction)
        tag = len(toy.vocabulary) + record.texts("languages").index(store.languages[target])
        hypotheses = decode_baseline(network, toy, sentences, direction, tag, 1)
        for pair, one, hypothesis in zip(found, real, hypotheses, strict=False):
            assert pair[target] == one[target] or toy.to_tokens(pair[target]) == hypothesis.tokens
        kept = result.kept[store.languages[target]]
        changed = sum(pair[target] != one[target] for pair, one in zip(found, real, strict=True))
        assert len(real) / 2 < changed <= len(real) - kept


def test_other_pairs_and_splits_stay(vocabulary: Vocabulary, store: Store, baseline: Path, tmp_path: Path) -> None:
    old = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 40, "dev": 6}, ("news", "web")))
    assert old.vocabulary.fingerprint == store.vocabulary.fingerprint
    result = distill(old, baseline, tmp_path / "made", pairs=10)
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
        assert (tmp_path / "made" / name).read_bytes() == (tmp_path / "de-en" / name).read_bytes()
    again = distill(old, baseline, tmp_path / "again", pairs=10)
    assert again == result
    assert (tmp_path / "again" / "train.de.ids.bin").read_bytes() == (
        tmp_path / "made" / "train.de.ids.bin"
    ).read_bytes()
    assert json.loads((tmp_path / "made" / "manifest.json").read_text())["distilled"]["pairs"] == 10


def test_it_stops_in_time(
    vocabulary: Vocabulary, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the pairs that it came to are those that `pairs` draws."""
    monkeypatch.setattr(distillation, "AT_ONCE", 4)
    old = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 40}, ("news", "web")))
    first = distill(old, baseline, tmp_path / "first", minutes=1e-9)
    assert first.pairs == 4
    drawn = distill(old, baseline, tmp_path / "drawn", pairs=4)
    assert drawn == first
    assert pairs_by_corpus(Store(tmp_path / "first")) == pairs_by_corpus(Store(tmp_path / "drawn"))
    whole = distill(old, baseline, tmp_path / "whole", minutes=10)
    assert whole.pairs == 40
    assert set(Store(tmp_path / "whole").split("train").corpora) == set(whole.only_into)


def test_translations_without_word_or_end_are_not_used(
    vocabulary: Vocabulary, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 4}))
    word, eos = vocabulary.first_word, vocabulary.eos
    found = [np.array(ids) for ids in ([word, eos], [eos], [word, word], [word, word, eos])]
    monkeypatch.setattr(distillation, "generate", lambda *arguments, **options: found)
    result = distill(old, baseline, tmp_path / "made")
    assert result.kept == {"de": 2, "en": 2}
    real, new = next(iter(pairs_by_corpus(old).values())), pairs_by_corpus(Store(tmp_path / "made"))
    into_english = next(pairs for name, pairs in new.items() if name.endswith("-into-en"))
    assert [pair[1] for pair in into_english] == [[word], real[1][1], real[2][1], [word, word]]


def test_a_model_learns_from_it(vocabulary: Vocabulary, baseline: Path, tmp_path: Path) -> None:
    old = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 40, "dev": 6}))
    result = distill(old, baseline, tmp_path / "made", pairs=30)
    run = TextTrainConfig(steps=2, batch_tokens=512, validate_every=0, device="cpu")
    trained = train_model(
        tmp_path / "made", tmp_path / "run", TransformerConfig(hidden_size=32, num_layers=1, num_heads=2),
        MaskingConfig(only_into=result.only_into), run,
    )  # fmt: skip
    assert trained.steps == 2


def test_what_cannot_be_distilled(store: Store, vocabulary: Vocabulary, baseline: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    with pytest.raises(InputError, match="needs parallel training text"):
        distill(Store(write_store(tmp_path / "de-en", vocabulary, {"dev": 4})), baseline, out)
    for key, value, message in (
        ("vocabulary", "another", "another vocabulary"),
        ("languages", ["de", "ro"], "does not translate into en"),
    ):
        other = tmp_path / key
        shutil.copytree(baseline, other)
        record = json.loads((other / RECORD).read_text())
        (other / RECORD).write_text(json.dumps({**record, key: value}))
        with pytest.raises(InputError, match=message):
            distill(store, other, out, pairs=2)
    assert not out.exists()
    with pytest.raises(InputError, match="pairs"):
        distill(store, baseline, out, pairs=0)


def test_the_script(
    store: Store, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["distill.py", *arguments])
        runpy.run_path(str(ROOT / "scripts" / "distill.py"), run_name="__main__")

    run(str(store.path), str(baseline), str(tmp_path / "made"), "--pairs", "5")
    assert "5 pairs in both directions" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        run(str(store.path), str(baseline), str(tmp_path / "made"))
    assert stopped.value.code == 2
    assert "already exists" in capsys.readouterr().err

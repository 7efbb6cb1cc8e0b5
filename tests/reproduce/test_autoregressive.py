"""The autoregressive baseline: batches, learning something, resuming, decoding."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyorder.data.store import Store
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.models.native.storage import WEIGHTS
from anyorder.models.native.translation_model import TranslationModel
from anyorder.reproduce.autoregressive import (
    Autoregressive,
    AutoregressiveObjective,
    bucket,
    marian_settings,
)
from anyorder.reproduce.reproduce import Request, make_plans, reproduce
from anyorder.tasks.translation import encode_sentences
from anyorder.training.config import TrainConfig
from anyorder.training.loop import run_training
from anyorder.training.objective import IGNORED
from anyorder.training.run_folder import Cursor
from tests.reproduce.conftest import Laboratory, decode_with_baseline
from tests.stores import write_store

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def toy(laboratory: Laboratory) -> TranslationModel:
    return TranslationModel.from_pretrained(laboratory.model)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(50, 200))
def test_buckets_hold_everything_and_fit(sizes: list[int], batch_tokens: int) -> None:
    groups = bucket(np.array(sizes), batch_tokens)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    padded = [len(group) * max(sizes[i] for i in group) for group in groups]
    assert max(padded) <= batch_tokens
    for group, following in pairwise(groups):
        assert (len(group) + 1) * sizes[following[0]] > batch_tokens  # none is smaller than it could be


def test_batches_are_pairs_of_the_store(store: Store, toy: TranslationModel) -> None:
    objective = AutoregressiveObjective([store], toy, 512, seed=1)
    batch, cursor = next(objective.batches(Cursor(), 0, 0, 1))
    assert cursor == Cursor(1, 0, 1)
    eos, pad, size = toy.vocabulary.eos, toy.vocabulary.pad, len(toy.vocabulary)
    sides = store.split("train").sides
    known = {
        (tuple(sides[a][i].tolist()), tuple(sides[b][i].tolist()), b)
        for i in range(len(store.split("train")))
        for a, b in (("de", "en"), ("en", "de"))
    }
    seen = set()
    for inputs, labels, shifted in zip(
        *(batch[name] for name in ("input_ids", "labels", "decoder_input_ids")), strict=True
    ):
        source, target = inputs[inputs != pad].tolist(), labels[labels != IGNORED].tolist()
        assert source[-1] == target[-1] == eos
        assert shifted[: len(target)].tolist() == [pad, *target[:-1]]
        language = toy.config.languages[source[0] - size]
        assert (tuple(source[1:-1]), tuple(target[:-1]), language) in known
        seen.add(language)
    assert seen == {"de", "en"}


def test_corpora_have_weights(vocabulary: Vocabulary, toy: TranslationModel, tmp_path: Path) -> None:
    store = Store(write_store(tmp_path / "de-en", vocabulary, {"train": 40}, ("news", "web")))
    objective = AutoregressiveObjective([store], toy, 512, seed=1, weights={"web": 0, "de-en/news": 2})
    sides = store.split("train").sides
    rows = {tuple(sides[language][i].tolist()): i for i in range(40) for language in ("de", "en")}
    seen = Counter[int]()
    for batch, cursor in objective.batches(Cursor(), 0, 0, 1):
        if cursor.epoch:
            break
        for labels in batch["labels"]:
            seen[rows[tuple(labels[labels != IGNORED][:-1].tolist())]] += 1
    held_out = set(objective._held_out.tolist())
    assert len(held_out) == 4
    assert seen == dict.fromkeys(set(range(0, 40, 2)) - held_out, 2)
    with pytest.raises(InputError, match="unknown corpus 'wiki'"):
        AutoregressiveObjective([store], toy, 512, seed=1, weights={"wiki": 2})


def test_it_learns_and_goes_on_after_a_stop(store: Store, toy: TranslationModel, tmp_path: Path) -> None:
    def train(out: Path, steps: int) -> None:
        objective = AutoregressiveObjective([store], toy, 512, seed=1)
        run = TrainConfig(
            steps=steps, learning_rate=0.003, warmup=1, decay_from=1.0, ema=0.5, log_every=1, device="cpu"
        )
        run_training(objective, run, out, resume=True)

    train(tmp_path / "whole", 6)
    train(tmp_path / "parts", 3)
    train(tmp_path / "parts", 6)
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    losses = [[entry["loss"] for entry in map(json.loads, log) if "loss" in entry] for log in logs]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0] - 0.1
    whole, parts = (tmp_path / name / "model" / WEIGHTS for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    learned = Autoregressive(whole.parent, toy.vocabulary, "the test", torch.device("cpu"))
    assert list(learned.tags) == ["de", "en"]


def test_size_and_forbidden_tokens(toy: TranslationModel, store: Store, tmp_path: Path) -> None:
    objective = AutoregressiveObjective([store], toy, 512, seed=1)
    objective.save(objective.learner, tmp_path)
    sentences = encode_sentences(toy, ["Der Hund sieht ein Haus.", "Ein Kind malt gestern das Haus am Fluss."], "de-en")
    for beam in (1, 3):
        found = decode_with_baseline(tmp_path / objective.folder, toy, "de-en", sentences, beam)
        assert [one.source for one in found] == [sentence.text for sentence in sentences]
        for one in found:
            assert one.steps == list(range(1, one.length + 1))
            assert not any(token.startswith("<") for token in one.tokens)
            assert f"beam:{beam}|" in one.signature
    settings = marian_settings(toy)
    assert (settings["encoder_layers"], settings["decoder_layers"]) == (1, 1)


def test_it_is_a_row_of_the_tables(laboratory: Laboratory, tmp_path: Path) -> None:
    request = Request(
        "table1", tmp_path, [str(laboratory.model)], [laboratory.store, laboratory.text], ["de-en"], ["gold"],
        ["left-to-right"], baseline=0.01, sentences=4, samples=20, device="cpu",
    )  # fmt: skip
    (report,) = reproduce([request])
    assert [row.row for row in report.parts[0].rows] == [
        "left-to-right", "autoregressive, greedy", "autoregressive, beam 4",
    ]  # fmt: skip
    assert {one.kind for one in report.costs} == {"train", "decode"}
    assert reproduce([request]) == [report]
    with pytest.raises(InputError, match="has other settings .weights was {}, now it is {'train': 2}"):
        reproduce([replace(request, baseline_weights={"train": 2})])
    with pytest.raises(InputError, match="is for a baseline that is trained"):
        replace(request, baseline=None, baseline_weights={"news": 2})
    other = replace(request, baseline=None, baseline_model=laboratory.model)
    with pytest.raises(InputError, match="is no baseline"):
        reproduce([other])


def test_it_needs_text_for_every_direction(laboratory: Laboratory, vocabulary: Vocabulary, tmp_path: Path) -> None:
    held_out = write_store(tmp_path / "de-en", vocabulary, {"order": 4})
    request = Request(
        "table1", tmp_path / "out", [str(laboratory.model)], [laboratory.text, held_out], ["de-en"], ["gold"],
        ["left-to-right"], baseline=0.01, device="cpu",
    )  # fmt: skip
    with pytest.raises(InputError, match="needs a store with a train split"):
        make_plans([request])
    other = write_store(tmp_path / "ro-en", vocabulary, {"train": 4})
    with pytest.raises(InputError, match="no store with a train split holds de-en"):
        make_plans([replace(request, data=[*request.data, other])])

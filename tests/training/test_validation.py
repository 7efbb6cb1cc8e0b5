"""Which split chooses the checkpoint: `selection` where there is one, and then nothing looks at dev."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anyorder.data.corpus import parse_corpora
from anyorder.data.prepare import prepare
from anyorder.data.store import Split, Store
from anyorder.errors import InputError
from anyorder.evaluation.test_set import TestSet
from anyorder.learning.config import RLConfig
from anyorder.models.hf.pretrained import load_transformers
from anyorder.orders import make_order
from anyorder.orders.policy import PolicyConfig
from anyorder.tasks import make_puzzle
from anyorder.training.translation_objective import MaskingConfig, TranslationObjective
from anyorder.training.validation import Validation, puzzle_validation
from tests.conftest import tiny
from tests.learning.objectives import translation_order_objective


@pytest.fixture(scope="module")
def with_selection(corpus: Path, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The store of the other tests with 40 pairs held out, and a dev split."""
    splits = {name: parse_corpora(f"{corpus}/{name}.%", ("de", "en")) for name in ("train", "dev")}
    out = tmp_path_factory.mktemp("held") / "store"
    prepare(("de", "en"), splits, out, vocabulary=store.vocabulary, hold_out={"selection": {"train": 40}}, workers=1)
    return Store(out)


def opened_splits(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the splits that are opened from now on."""
    opened: list[str] = []
    original = Store.split

    def split(self: Store, name: str) -> Split:
        opened.append(name)
        return original(self, name)

    monkeypatch.setattr(Store, "split", split)
    return opened


@pytest.mark.parametrize(
    ("named", "chosen"), [("auto", "selection"), ("dev", "dev"), ("selection", "selection"), ("none", "none")]
)
def test_the_selection_split_is_used_where_there_is_one(
    with_selection: Store, named: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, model = with_selection, tiny(with_selection.vocabulary)
    opened = opened_splits(store, monkeypatch)
    masking = MaskingConfig(validation_sentences=4, validation_split=named)
    training = TranslationObjective(store, model, masking, 1000, 1, fixed=False)
    rl = RLConfig(sentences=4, validation_sentences=4, validation_orders="", validation_split=named)
    learning = translation_order_objective(store, model, ["de-en"], PolicyConfig(), rl, seed=1)
    for objective in (training, learning):
        scores = objective.validate(objective.learner)
        assert bool(scores) == (chosen != "none")
    assert learning.fingerprint()["rl"].validation_split == chosen  # type: ignore[attr-defined]
    assert training.fingerprint()["masking"].validation_split == chosen  # type: ignore[attr-defined]
    assert set(opened) == {"train", chosen} - {"none"}


def test_the_dev_split_is_used_where_there_is_no_other(store: Store) -> None:
    model = tiny(store.vocabulary)
    objective = TranslationObjective(store, model, MaskingConfig(), 1000, 1, fixed=False)
    assert objective.fingerprint()["masking"].validation_split == "dev"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="unknown split 'selection'"):
        TranslationObjective(store, model, MaskingConfig(validation_split="selection"), 1000, 1, fixed=False)
    with pytest.raises(InputError, match="unknown split 'nope'"):  # said before the data is read, so before the rest
        TranslationObjective(
            store,
            model,
            MaskingConfig(validation_split="nope", weights={"x": 2}),
            5,
            1,
            fixed=False,
            directions=["de-fr"],
        )
    with pytest.raises(InputError, match="unknown split 'devv': did you mean 'dev'"):
        translation_order_objective(store, model, ["de-en"], PolicyConfig(), RLConfig(validation_split="devv"), seed=1)


@pytest.mark.parametrize(("second", "error"), [(0.001, 1e-6), (0.005, 1e-6), (10.0, 0.25)])
def test_the_time_of_a_validation_follows_from_a_sample(
    second: float, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding takes as many passes as positions, so twice the length takes four times as long.

    One step is enough where a pass is slow: it takes as many seconds as there are positions.
    """
    sizes, now, decoded = np.array([4] * 8 + [8] * 8), [0.0], []

    def decode(self: Validation, order: Any, model: Any, indices: Sequence[int], schedule: int = 1) -> list[Any]:
        own = sizes[list(indices)]
        if schedule == 1:
            decoded.extend(indices)
        now[0] += second * float((own if schedule > 1 else own**2).sum())
        return [SimpleNamespace(steps=[1] * size) for size in own]

    monkeypatch.setattr(Validation, "decode", decode)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    validation = Validation(TestSet(None, range(16), sizes, lambda indices: []))  # type: ignore[arg-type]
    estimate = validation.estimate_seconds(None, None)  # type: ignore[arg-type]
    assert estimate == pytest.approx(second * float((sizes**2).sum()), rel=error)
    assert decoded == ([] if second > 1 else list(range(0, 16, 2)))


def test_puzzles_are_validated_on_others_than_are_learned_from() -> None:
    task, model = make_puzzle("sudoku-4x4"), load_transformers("sudoku-4x4")
    validation = puzzle_validation(task, model, 12, seed=3)
    trajectories = validation.decode(make_order("margin"), model)
    assert validation.score(trajectories) == 100
    held_out, learned = (task.generate(12, seed).puzzles for seed in (7, 6))
    assert [len(one.steps) for one in trajectories] == (held_out == 0).sum(1).tolist() != (learned == 0).sum(1).tolist()

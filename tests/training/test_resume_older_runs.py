"""A run that was begun before a setting existed is resumed as one with its default."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anyorder.data.store import Store
from anyorder.errors import InputError
from anyorder.learning.config import LEARN_ORDER_RUN, RLConfig
from anyorder.learning.learn_order import learn_order
from anyorder.models.native.transformer import TransformerConfig
from anyorder.orders.policy import PolicyConfig
from anyorder.training.config import TextTrainConfig
from anyorder.training.train import train_model
from anyorder.training.translation_objective import MaskingConfig
from tests.conftest import tiny


def forget(out: Path, group: str, *names: str) -> None:
    """The newest checkpoint as an older version wrote it: without these settings."""
    folder = max(out.glob("checkpoint-*"))
    state = json.loads((folder / "state.json").read_text())
    for name in names:
        del state["fingerprint"][group][name]
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "checksums.json").unlink()


def test_a_model(store: Store, tmp_path: Path) -> None:
    size = TransformerConfig(hidden_size=16, num_layers=1, num_heads=2, max_positions=64)
    masking = MaskingConfig(validation_split="none")
    run = TextTrainConfig(steps=1, batch_tokens=300, device="cpu")

    def train(steps: int, masking: MaskingConfig) -> int:
        return train_model(store, tmp_path / "run", size, masking, replace(run, steps=steps), resume=True).steps

    train(1, masking)
    forget(tmp_path / "run", "masking", "shifted", "only_into")
    with pytest.raises(InputError, match=r"cannot resume: masking\.shifted was 0\.0, now it is 0\.02$"):
        train(2, replace(masking, shifted=0.02))
    assert train(2, masking) == 2


def test_an_order(store: Store, tmp_path: Path) -> None:
    model, rl = tiny(store.vocabulary), RLConfig(sentences=4, rollouts=2, max_length=12, validation_split="none")

    def learn(steps: int, rl: RLConfig, policy: PolicyConfig) -> int:
        run = replace(LEARN_ORDER_RUN, steps=steps, device="cpu")
        return learn_order(model, "de-en", tmp_path / "run", store, policy=policy, rl=rl, run=run, resume=True).steps

    learn(1, rl, PolicyConfig("linear"))
    forget(tmp_path / "run", "rl", "gamma")
    with pytest.raises(InputError, match=r"cannot resume: rl\.gamma was 0\.999, now it is 0\.9$"):
        learn(2, replace(rl, gamma=0.9), PolicyConfig("linear"))
    assert learn(2, rl, PolicyConfig("linear")) == 2
    forget(tmp_path / "run", "policy", "dropout")
    assert learn(3, rl, PolicyConfig("linear")) == 3

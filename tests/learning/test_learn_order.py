"""`anyorder learn-order`: whole runs, killed, resumed and shared, what they leave behind, and what they refuse."""

import json
import random
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from anyorder.cli import main
from anyorder.data.store import Store
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.learning.config import RLConfig
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders.policy import PolicyConfig
from anyorder.training.run_folder import Cursor
from tests.conftest import tiny
from tests.learning.objectives import translation_order_objective
from tests.processes import Fork, run_two, wait_until


@pytest.fixture(scope="module")
def model_folder(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen") / "model"
    tiny(store.vocabulary, hidden_size=64, num_layers=2).save_pretrained(folder)
    return folder


def command(store: Store, model: Path, out: Path, *more: object) -> list[object]:
    return [
        "learn-order", "--model", model, "--data", store.path, "--out", out, "--direction", "de-en",
        "--rl.sentences", 8, "--rl.rollouts", 2, "--rl.max-length", 16,
        "--rl.validation-sentences", 5, "--run.device", "cpu", "--run.log-every", 1, "--run.warmup", 1, *more,
    ]  # fmt: skip


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def curve(out: Path) -> list[tuple[int, float, float]]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(entry["step"], entry["reward"], entry["loss"]) for entry in entries if "loss" in entry]


@pytest.mark.parametrize("algorithm", ["ppo"])  # it keeps the most between two steps: rollouts, old values, epochs
def test_killed_and_resumed_it_learns_the_same(
    store: Store, model_folder: Path, tmp_path: Path, algorithm: str
) -> None:
    steps = 10
    more = ["--run.steps", steps, "--run.save-every", 1, "--run.validate-every", 4, "--rl.algorithm", algorithm]
    more += ["--policy.dropout", 0.2]
    assert run(*command(store, model_folder, tmp_path / "unbroken", *more)) == 0
    broken = tmp_path / "broken"
    log = broken / "log.jsonl"
    for target in sorted(random.Random(2).sample(range(2, steps - 2), 2)):
        process = Fork(*command(store, model_folder, broken, *more, "--resume"))
        wait_until(lambda step=target: log.exists() and f'"step": {step},' in log.read_text(), poll=0.002)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        assert process.wait().returncode == -signal.SIGKILL
    assert run(*command(store, model_folder, broken, *more, "--resume")) == 0
    for name in ("model", "average", "optimizer"):
        ours, theirs = (
            load_file(next(out.glob("checkpoint-*")) / f"{name}.safetensors") for out in (broken, tmp_path / "unbroken")
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name
    assert curve(broken) == curve(tmp_path / "unbroken")
    orders = [(out / "order" / "order.safetensors").read_bytes() for out in (broken, tmp_path / "unbroken")]
    assert orders[0] == orders[1]


def test_two_processes_learn_like_one(store: Store, model_folder: Path, tmp_path: Path) -> None:
    more = ["--run.steps", 12, "--run.batches-per-step", 2, "--run.save-every", 0, "--run.validate-every", 0]
    more += ["--rl.algorithm", "a2c", "--rl.rollouts", 1, "--rl.num-minibatches", 2]
    more += ["--policy.kind", "confidence"]
    assert run(*command(store, model_folder, tmp_path / "one", *more)) == 0
    for process in run_two(*command(store, model_folder, tmp_path / "two", *more)):
        assert process.returncode == 0, process.stderr
    one, two = np.array(curve(tmp_path / "one")), np.array(curve(tmp_path / "two"))
    assert one.shape == two.shape == (12, 3)
    assert np.abs(one - two).max() < 1e-4
    ours, theirs = (load_file(tmp_path / name / "order" / "order.safetensors") for name in ("one", "two"))
    assert max((ours[key] - theirs[key]).abs().max().item() for key in ours) < 1e-4


def test_the_result_is_used_by_name(
    store: Store, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--run.steps", 2, "--name", "default", "--rl.algorithm", "a2c", "--policy.kind", "hidden"]
    more += ["--rl.validation-orders", "left-to-right,easy-first:logp=1,negent=0.9"]
    assert main([str(part) for part in command(store, model_folder, tmp_path / "run", *more)]) == 0
    captured = capsys.readouterr()
    assert "left-to-right de-en" in captured.out + captured.err
    records = tmp_path / "out.jsonl"
    arguments = ["translate", "--model", model_folder, "--direction", "de-en", "--device", "cpu", "--json", records]
    assert main([str(part) for part in [*arguments, "Der Hund sieht ein Haus."]]) == 0
    one = json.loads(records.read_text())
    assert one["order"] == "learned"
    assert "order:learned@" in one["signature"]
    assert (
        main(
            [str(part) for part in [*arguments, "--order", f"learned:{tmp_path}/run/order", "Der Hund sieht ein Haus."]]
        )
        == 0
    )
    assert json.loads(records.read_text())["steps"] == one["steps"]
    texts = tmp_path / "text"
    texts.write_text("Der Hund sieht ein Haus.\n")
    arguments = ["evaluate", "--model", model_folder, "--direction", "de-en", "--device", "cpu", "--json", records]
    assert main([str(part) for part in [*arguments, "--source", texts, "--reference", texts]]) == 0
    table = json.loads(records.read_text())
    assert table["rows"][-1]["order"] == "learned"
    assert "order:*,learned@" in table["signature"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--direction", "de-fr"], "unknown direction 'de-fr'"),
        (["--rl.min-length", 1], "--rl.min-length 1: expected a number of at least 2"),
        (["--rl.min-length", 50, "--rl.max-length", 60], "no pair of the split 'train' has 50 to 60"),
        (["--rl.split", "trian"], "did you mean 'train'"),
        (["--rl.rollouts", 1], "rloo needs at least 2 rollouts"),
        (["--rl.gamma", 0], "--rl.gamma 0.0: expected a number"),
        (["--rl.num-minibatches", 9], "--rl.num-minibatches 9: expected a number of at most 8"),
        (["--rl.num-minibatches", 2, "--rl.weights", '{"train": 0.9}'], "may have no more than 0 pairs"),
        (["--policy.size", 100], "not a multiple of 64"),
        (["--policy.kind", "linear", "--policy.attention", 1], "--policy.kind linear has no network"),
        (["--policy.kind", "linear", "--policy.size", 64], "--policy.kind linear has no network"),
        (["--policy.kind", "linear", "--policy.dropout", 0.1], "--policy.kind linear has no network"),
        (["--policy.dropout", 1], "--policy.dropout 1.0: expected a number"),
        (["--rl.kl-coef", 1, "--rl.reference-order", "learned:/no"], "/no: no learned order there"),
        (["--rl.kl-coef", 1, "--rl.reference-order", "margn"], "did you mean 'margin'"),
        (["--rl.weights", '{"nws": 2}'], "unknown corpus 'nws'"),
        (["--rl.weights", '{"train": 0}'], "less than one sentence"),
        (["--rl.validation-length", 1], "no pair of the split 'dev' has at most 1"),
        (["--rl.max-length", 63], "--rl.max-length 63: the model has room for 62 subwords"),
        (["--mask-share", 0.5], "--mask-share is not for translation"),
        (["--direction", " "], "the data has no direction that the model translates"),
        (["--name", "a/b"], "not a plain name"),
        (["--name", ".."], "not a plain name"),
        (["--name", "x" * 300], "not a plain name"),
        (["--name", "x.partial"], "not a plain name"),
    ],
)
def test_bad_input(
    store: Store,
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[object],
    message: str,
) -> None:
    arguments = command(store, model_folder, tmp_path / "run", "--run.steps", 2, *more)
    assert main([str(part) for part in arguments]) == 2
    *before, error = capsys.readouterr().err.splitlines()
    assert message in error
    assert [line for line in before if not line.startswith("learning an order for")] == []
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_is_refused(store: Store, tmp_path: Path) -> None:
    words = Vocabulary.from_merges(
        {**{name: i for i, name in enumerate(("<s>", "</s>", "<pad>", "<unk>", "<mask>"))}, "a</w>": 5}, []
    )
    with pytest.raises(InputError, match="wrong vocabulary"):
        translation_order_objective(store, tiny(words), ["de-en"], PolicyConfig(), RLConfig(), seed=1)


def test_a_model_may_know_more_languages_than_the_store(store: Store) -> None:
    model = tiny(store.vocabulary)
    config = replace(model.config, languages=("fr", "de", "en"))
    model = TranslationModel(config, store.vocabulary).eval()
    objective = translation_order_objective(
        store, model, ["de-en", "en-de"], PolicyConfig("hidden"), RLConfig(sentences=8, rollouts=2), seed=1
    )
    batch, _ = next(objective.batches(Cursor(), 0, 0, 1))
    assert set(batch.sentences.canvases.packed.languages.tolist()) == {1, 2}
    assert bool(objective.minibatches(batch, torch.device("cpu"))[0]["rollouts"].returns.isfinite().all())
    with pytest.raises(InputError, match="unknown language of the store 'fr'"):
        translation_order_objective(store, model, ["fr-en"], PolicyConfig("hidden"), RLConfig(), seed=1)

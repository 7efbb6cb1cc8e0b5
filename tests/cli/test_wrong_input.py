"""Wrong numbers, damaged files and places that cannot be written: one line, exit code 2, nothing left behind."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from anyorder.data.store import Store
from anyorder.models.native.translation_model import TranslationModel
from anyorder.training.objective import weights_by_corpus
from tests.cli.conftest import Refused, run
from tests.conftest import toy_pairs, write_pairs

SMALL = [
    "--transformer.hidden-size",
    "32",
    "--transformer.num-layers",
    "1",
    "--transformer.num-heads",
    "2",
    "--transformer.max-positions",
    "64",
    "--run.device",
    "cpu",
    "--run.batch-tokens",
    "500",
    "--run.warmup",
    "2",
]
STEPS = ["--run.steps", 2]


@pytest.fixture(scope="module")
def wrong_files(folder: Path) -> Path:
    """Files and a model that cannot be used, beside those that can."""
    for name, german, english in (
        ("short", "", "one line\n"),
        ("empty", "", ""),
        ("long", "Hund\n" + "Hund " * 90 + "\n", "dog\ndog\n"),
        ("uneven", "a\n" * 3, "a\n" * 2),
    ):
        (folder / f"{name}.de").write_text(german)
        (folder / f"{name}.en").write_text(english)
    (folder / "latin.de").write_bytes("schön\n".encode("latin-1"))
    (folder / "latin.en").write_text("nice\n")
    shutil.copytree(folder / "model", folder / "broken")
    (folder / "broken" / "model.safetensors").write_bytes(b"\x08\x00\x00\x00")
    return folder


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("prepare --languages de,en --out {place}/out --train {folder}/uneven.% --workers 1", "uneven.de has 3 lines but"),
        ("prepare --languages de,en --out {place}/out --train {folder}/latin.% --workers 1", "latin.de, line 1: invalid UTF-8"),
        ("prepare --languages de,en --out {place}/out --train {folder}/empty.% --workers 1", "'train' is empty"),
        ("prepare --languages de,en --out {place}/out --workers 1", "nothing to prepare"),
        ("prepare --languages de,en --out {place}/out --train {folder}/no.% --workers 1", "no.de: no such file"),
        ("prepare --languages de,en --out {place}/out --train file.de --workers 1", "with % for the language"),
        ("prepare --languages de,english --out {place}/out --train x.% --workers 1", "unknown language 'english': did you mean 'en'"),
        ("prepare --languages de,de --out {place}/out --train x.% --workers 1", "names a language twice"),
        ("prepare --languages de,en --out {place}/out --train {folder}/test.% --vocabulary 20 --workers 1", "is too small"),
        ("translate {model} --order margn {folder}/test.de --json {place}/out", "unknown order 'margn': did you mean 'margin'"),
        ("translate --model {folder}/model --direction de-fr hallo --json {place}/out", "unknown direction 'de-fr'"),
        ("translate {model} --strict {folder}/long.de --json {place}/out", "long.de, line 2:"),
        ("translate {model} --strict {folder}/latin.de --json {place}/out", "latin.de, line 1: invalid UTF-8"),
        ("translate --model {folder}/broken --direction de-en hallo --json {place}/out", "damaged, it does not match"),
        ("translate --model de-eng --direction de-en hallo --json {place}/out", "unknown model 'de-eng'"),
        ("translate {model} missing.txt --json {place}/out", "missing.txt: no such file"),
        ("translate {model} --length gold hallo --json {place}/out", "--length gold and --reference FILE go together"),
        ("translate {model} --schedule zero hallo --json {place}/out", "unknown schedule 'zero'"),
        ("evaluate {model} --source {folder}/test.de --reference {folder}/short.en --json {place}/out", "test.de has 9 lines but"),
        ("evaluate {model} --source {folder}/test.de --json {place}/out", "--source and --reference go together"),
        ("evaluate {model} --json {place}/out", "comes without a sample"),
        ("evaluate {model} {test} --max-length thirty --json {place}/out", "--max-length 'thirty'"),
        ("evaluate {model} {test} --table {folder}/table.doc --json {place}/out", "expected a name that ends in .tex or .md"),
        ("evaluate {model} {test} --max-length 1 --json {place}/out", "no pair has at most 1"),
        ("evaluate {model} {test} --orders margin --against l2r --json {place}/out", "--against 'l2r': is not one of the systems (margin)"),
        ("train --data {folder} --out {place}/out --run.steps 1", "not a prepared store"),
        ("train --data {folder} --out {place}/out", "say how long to train"),
        ("train --data {folder} --out {place}/out --transformer.hidden-size wide", "--transformer.hidden-size: expected int"),
        ("train --data {folder} --out {place}/out --run.steps 1 --transformer.hidden-size 30", "30 is not a multiple of 8 heads"),
        ("train --data {folder} --out {place}/out --run.stops 1", "unrecognized arguments: --run.stops 1"),
        ("trane", "unknown verb 'trane': did you mean 'train'"),
        ("translate {model} --dtype int8 hallo", "--dtype: expected auto, float32, bfloat16, float16. Got value: int8"),
    ],
)  # fmt: skip
def test_wrong_commands(refused: Refused, wrong_files: Path, place: Path, command: str, expected: str) -> None:
    model = "--model {folder}/model --direction de-en --device cpu"
    test = "--source {folder}/test.de --reference {folder}/test.en"
    filled = command.replace("{model}", model).replace("{test}", test)
    refused(expected, *filled.format(folder=wrong_files, place=place).split())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--run.steps", -1], "--run.steps -1: expected a number of at least 1"),
        (["--run.steps", 0], "--run.steps 0"),
        (["--run.minutes", -1], "--run.minutes -1.0: expected a number of more than 0"),
        (["--run.minutes", ".nan"], "--run.minutes nan"),
        (["--run.minutes", ".inf"], "--run.minutes inf"),
        ([*STEPS, "--run.minutes", 1], "a run ends by the clock or by its steps"),
        ([*STEPS, "--run.max-grad-norm", -1], "--run.max-grad-norm -1.0: expected"),
        ([*STEPS, "--run.ema", 1], "--run.ema 1.0: expected a number of at least 0 and less than 1"),
        ([*STEPS, "--run.ema", -1], "--run.ema -1"),
        ([*STEPS, "--run.decay-from", 2], "--run.decay-from 2"),
        ([*STEPS, "--run.decay-from", -1], "--run.decay-from -1"),
        ([*STEPS, "--run.warmup", -1], "--run.warmup -1"),
        ([*STEPS, "--run.weight-decay", -1], "--run.weight-decay -1"),
        ([*STEPS, "--run.log-every", 0], "--run.log-every 0"),
        ([*STEPS, "--run.save-every", -1], "--run.save-every -1"),
        ([*STEPS, "--run.validate-every", -1], "--run.validate-every -1"),
        ([*STEPS, "--run.learning-rate", -1], "--run.learning-rate -1"),
        ([*STEPS, "--run.learning-rate", ".nan"], "--run.learning-rate nan"),
        ([*STEPS, "--run.batches-per-step", 0], "--run.batches-per-step 0"),
        ([*STEPS, "--run.batch-tokens", 3], "--run.batch-tokens 3"),
        ([*STEPS, "--run.seed", -1], "--run.seed -1"),
        ([*STEPS, "--run.seed", 10**30], "--run.seed 1000"),
        ([*STEPS, "--transformer.num-heads", 0], "--transformer.num-heads 0"),
        ([*STEPS, "--transformer.hidden-size", 0], "--transformer.hidden-size 0"),
        ([*STEPS, "--transformer.hidden-size", -32], "--transformer.hidden-size -32"),
        ([*STEPS, "--transformer.num-layers", 0], "--transformer.num-layers 0"),
        ([*STEPS, "--transformer.max-positions", 0], "--transformer.max-positions 0"),
        ([*STEPS, "--transformer.dropout", 1], "--transformer.dropout 1.0"),
        ([*STEPS, "--masking.label-smoothing", -1], "--masking.label-smoothing -1.0: expected"),
        ([*STEPS, "--masking.label-smoothing", 2], "--masking.label-smoothing 2.0: expected"),
        ([*STEPS, "--masking.validation-sentences", 0], "--masking.validation-sentences 0"),
        ([*STEPS, "--masking.validation-length", -1], "--masking.validation-length -1"),
        ([*STEPS, "--masking.validation-length", 1], "no pair of the split 'dev' has at most 1 subwords"),
        ([*STEPS, "--masking.weights", "{train: 0}"], "less than one sentence in an epoch"),
        ([*STEPS, "--masking.weights", "{train: 1e-9}"], "less than one sentence in an epoch"),
        ([*STEPS, "--masking.weights", "{train: -1}"], "the weight of corpus 'train' is -1"),
        ([*STEPS, "--masking.weights", "{train: .nan}"], "the weight of corpus 'train' is nan"),
        ([*STEPS, "--masking.weights", "{train: .inf}"], "the weight of corpus 'train' is inf"),
        ([*STEPS, "--transformer", "3"], "--transformer: is a group of options, give them one by one"),
    ],
)
def test_training_settings(refused: Refused, store: Store, place: Path, options: list[object], expected: str) -> None:
    refused(expected, "train", "--data", store.path, "--out", place / "run", *SMALL, *options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--mlm.probability", 0], "--mlm.probability 0.0: expected"),
        (["--mlm.probability", 2], "--mlm.probability 2.0: expected"),
        (["--mlm.mask-replace-prob", 2], "--mlm.mask-replace-prob 2.0: expected"),
        (["--mlm.random-replace-prob", -1], "--mlm.random-replace-prob -1.0: expected"),
        (
            ["--mlm.mask-replace-prob", 0.8, "--mlm.random-replace-prob", 0.3],
            "--mlm.random-replace-prob 0.3: with mask_replace_prob 0.8 it is more than 1",
        ),
    ],
)
def test_pretraining_settings(
    refused: Refused, store: Store, place: Path, options: list[object], expected: str
) -> None:
    arguments = ["pretrain", "--data", store.path, "--out", place / "run", *SMALL, *STEPS]
    refused(expected, *arguments, *options)


def test_one_corpus_of_several_may_have_weight_zero() -> None:
    weights = weights_by_corpus(["a", "b"], np.array([0, 1, 0]), {"a": 0})
    assert weights is not None
    assert weights.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--limit", 0], "--limit 0: expected a number of at least 1"),
        (["--limit", -1], "--limit -1"),
        (["--samples", 0], "--samples 0: expected a number of at least 20"),
        (["--samples", 1], "--samples 1"),
        (["--batch-tokens", 0], "--batch-tokens 0"),
        (["--seed", 10**100], "--seed 1000"),
        (["--json", "{place}/missing/out.json"], "out.json: cannot be written (No such file or directory)"),
        (["--json", "{place}"], "is a folder, expected a file to write"),
        (["--json", "/proc/out.json"], "/proc/out.json: cannot be written"),
        (["--orders", "outer-in:width=2"], "it has no such option (only stride)"),
        (["--source", "{folder}/blank.de", "--reference", "{folder}/blank.en"], "no pair has text on both sides"),
    ],
)
def test_evaluation_settings(refused: Refused, folder: Path, place: Path, options: list[object], expected: str) -> None:
    test = ["--source", folder / "test.de", "--reference", folder / "test.en"]
    options = [str(option).format(place=place, folder=folder) for option in options]
    common = ["--model", folder / "model", "--direction", "de-en", "--device", "cpu", *test, "--orders", "margin"]
    refused(expected, "evaluate", *common, *options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--batch-tokens", -1, "Hund"], "--batch-tokens -1"),
        (["--json", "{place}/missing/out.json", "Hund"], "out.json: cannot be written (No such file or directory)"),
        (["--json", "{place}", "Hund"], "is a folder, expected a file to write"),
        (["{place}"], "is a folder, expected a text file or a sentence"),
        (["--length", "gold", "--reference", "{folder}/test.en", "Hund"], "input has fewer lines than"),
        (["--model", "{folder}/run", "Hund"], "run: is the folder of a run; its model is {folder}/run/model"),
        (["--model", "{folder}/config-folder", "Hund"], "config.json: cannot be read (Is a directory)"),
        (
            ["--model", "{folder}/heads", "Hund"],
            "config.json: transformer.num_heads 0: expected a number of at least 1",
        ),
        (["--model", "{folder}/no-lengths", "--length", "table:2", "Hund"], "table of lengths is empty for de-en"),
        (
            ["--model", "{folder}/bad-lengths", "--length", "table:2", "Hund"],
            'lengths.json: de-en: {{"one": 2}}, key: expected a whole number',
        ),
        (["--model", "{folder}/lengths-folder", "Hund"], "lengths.json: cannot be read (Is a directory)"),
    ],
)
def test_translation_settings(
    refused: Refused, folder: Path, place: Path, options: list[object], expected: str
) -> None:
    _damaged_models(folder)
    filled = [str(option).format(place=place, folder=folder) for option in options]
    common = ["--model", folder / "model", "--direction", "de-en", "--device", "cpu"]
    refused(expected.format(folder=folder), "translate", *common, *filled)


def _damaged_models(folder: Path) -> None:
    if (folder / "run").exists():
        return
    shutil.copytree(folder / "model", folder / "run" / "model")
    for name in ("config-folder", "heads", "no-lengths", "bad-lengths", "lengths-folder"):
        shutil.copytree(folder / "model", folder / name)
    (folder / "config-folder" / "config.json").unlink()
    (folder / "config-folder" / "config.json").mkdir()
    config = json.loads((folder / "model" / "config.json").read_text())
    for name in ("heads", "no-lengths", "bad-lengths", "lengths-folder"):
        (folder / name / "checksums.json").unlink()  # what lies behind them is checked, too
    config["transformer"]["num_heads"] = 0
    (folder / "heads" / "config.json").write_text(json.dumps(config))
    (folder / "no-lengths" / "lengths.json").write_text("{}")
    (folder / "bad-lengths" / "lengths.json").write_text('{"de-en": {"one": 2}}')
    (folder / "lengths-folder" / "lengths.json").mkdir()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--workers", 0], "--workers 0: expected a number of at least 1"),
        (["--workers", -1], "--workers -1"),
        (["--workers", "x"], "--workers: expected int. Got value: x"),
        (["--filters.max-ratio", -1], "--filters.max-ratio -1"),
        (["--filters.max-ratio", 0.5], "expected 0 or a number of at least 1"),
        (["--filters.min-length", -5], "--filters.min-length -5"),
        (
            ["--filters.min-length", 5, "--filters.max-length", 4],
            "--filters.max-length 4: expected a number of at least 5",
        ),
        (["--splits", "{train: d.%}"], "split 'train' is named twice"),
        (["--splits", "{a/b: d.%}"], "'a/b' cannot be the name of a split"),
        (["--splits", "{mono: d.%}"], "'mono' cannot be the name of a split"),
        (["--hold-out", "train=test:1"], "split 'train' is named twice"),
        (["--hold-out", "order"], "--hold-out 'order': expected SPLIT=CORPUS:NUMBER"),
        (["--hold-out", "order=test:-1"], "--hold-out 'order=test:-1': expected SPLIT=CORPUS:NUMBER"),
        (["--hold-out", "order=test:1,order=test:2"], "split 'order' takes pairs of 'test' twice"),
        (["--hold-out", "order=tset:1"], "unknown corpus 'tset': did you mean 'test'"),
        (["--tokenizer", "de-eng"], "unknown model 'de-eng': did you mean 'de-en'"),
        (["--tokenizer", "no.json"], "no.json: no such file"),
        (["--out", "/proc/store"], "/proc/store: cannot be written"),
    ],
)
def test_preparation_settings(
    refused: Refused, folder: Path, place: Path, options: list[object], expected: str
) -> None:
    common = ["--languages", "de,en", "--out", place / "store", "--train", f"{folder}/test.%", "--workers", 1]
    refused(expected, "prepare", *common, "--vocabulary", 100, *options)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (b"languages: de,en\ntrain: \xe4\n", "recipe.yaml: invalid UTF-8"),
        (b"languages: de,en\nfilters: 3\n", "recipe.yaml: filters is 3, expected a group of options (max_length,"),
        (b"languages: de,en\nfilters:\n", "recipe.yaml: filters is None"),
        (b"languages: de,en\nfilters: {max_lenght: 3}\n", "recipe.yaml: unknown option of filters 'max_lenght'"),
        (b"languages: de,en\nfilters: {max_length: x}\n", "recipe.yaml: --filters.max-length: expected int"),
        (b"languages: de,en\ntrian: x\n", "recipe.yaml: unknown option 'trian': did you mean 'train'"),
        (b"languages: [\n", "recipe.yaml: "),
        (b"- 1\n", "recipe.yaml: "),
        (b"languages: !!int x\n", "recipe.yaml: "),
        (b"languages: " + b"[" * 100_000, "recipe.yaml: "),
        (b"languages: de,en\nfilters: {max_ratio: ~}\n", "--filters.max-ratio null: expected a value"),
    ],
)
def test_recipes(refused: Refused, tmp_path: Path, place: Path, recipe: bytes, expected: str) -> None:
    (tmp_path / "recipe.yaml").write_bytes(recipe)
    refused(expected, "prepare", "--config", tmp_path / "recipe.yaml", "--out", place / "store")


def test_a_bundled_model_lends_its_vocabulary(folder: Path, tmp_path: Path) -> None:
    common = ["--languages", "de,en", "--train", f"{folder}/test.%", "--workers", 1]
    assert run("prepare", *common, "--out", tmp_path / "store", "--tokenizer", "de-en") == 0
    assert (
        Store(tmp_path / "store").vocabulary.fingerprint
        == TranslationModel.from_pretrained("de-en").vocabulary.fingerprint
    )


def _altered(store: Store, folder: Path, **manifest: object) -> Path:
    """A copy of a store with another manifest."""
    shutil.copytree(store.path, folder)
    (folder / "checksums.json").unlink()
    altered = json.loads((folder / "manifest.json").read_text()) | manifest
    (folder / "manifest.json").write_text(json.dumps(altered))
    return folder


def test_damaged_stores(refused: Refused, store: Store, tmp_path: Path, place: Path) -> None:
    ids = _altered(store, tmp_path / "ids")
    content = bytearray((ids / "train.en.ids.bin").read_bytes())
    content[-2:] = b"\xff\xff"
    (ids / "train.en.ids.bin").write_bytes(content)
    tokenizer = _altered(store, tmp_path / "tokenizer")
    shutil.copy(
        Path(str(TranslationModel.from_pretrained("de-en").path)) / "tokenizer.json", tokenizer / "tokenizer.json"
    )
    for damaged, expected in (
        (ids, "train.en.ids.bin: the store is damaged (the id 65535 is not one of the vocabulary's"),
        (tokenizer, "wrong vocabulary: tokenizer.json is"),
        (
            _altered(store, tmp_path / "dtype", dtype="float7"),
            "manifest.json: dtype: \"float7\", expected 'uint16' or 'uint32'",
        ),
        (_altered(store, tmp_path / "none", vocabulary=None), "manifest.json: vocabulary: null, expected an object"),
    ):
        for verb in ("train", "pretrain"):
            refused(expected, verb, "--data", damaged, "--out", place / "run", *SMALL, *STEPS)


def test_places_for_a_run(refused: Refused, store: Store, tmp_path: Path, place: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    for out, more, expected in (
        (tmp_path / "file", [], "is a file, expected a folder"),
        (tmp_path / "file" / "run", [], "is a file, expected a folder"),
        ("/proc/run", [], "/proc/run: "),
        (store.path, [], "already exists"),
        (store.path, ["--resume"], "is not the folder of a run"),
        (tmp_path / "other", ["--resume"], "is not the folder of a run"),
    ):
        refused(expected, "train", "--data", store.path, "--out", out, *SMALL, *STEPS, *more)


def test_a_tracker_that_does_not_start(
    refused: Refused, store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr("accelerate.Accelerator.init_trackers", fail)
    train = ["train", "--data", store.path, "--out", place / "run", *SMALL, *STEPS]
    expected = "--run.track tensorboard: cannot be started (No API key configured.)"
    refused(expected, *train, "--run.track", "tensorboard")
    monkeypatch.setattr("anyorder.training.config.find_spec", lambda name: None)
    refused("--run.track wandb: needs wandb", *train, "--run.track", "wandb")


def test_resuming_with_other_settings(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyorder.progress.console.width", 200)
    train = ["train", "--data", store.path, "--out", tmp_path / "run", *SMALL, "--masking.validation-sentences", 2]
    assert run(*train, *STEPS) == 0
    assert run(*train, *STEPS, "--resume") == 0
    assert "already finished at step 2" in capsys.readouterr().err
    for option, value, expected in (
        ("--masking.label-smoothing", 0.2, "masking.label_smoothing was 0.1, now it is 0.2"),
        ("--masking.weights", "{train: 2}", "masking.weights was {}, now it is {'train': 2.0}"),
        ("--transformer.dropout", 0.3, "transformer.dropout was 0.1, now it is 0.3"),
    ):
        assert run(*train, *STEPS, "--resume", option, value) == 2
        assert f"cannot resume: {expected}\n" in capsys.readouterr().err
    assert run(*train, "--run.steps", 3, "--resume", "--run.learning-rate", 0.01, "--run.log-every", 1) == 0
    error = capsys.readouterr().err
    assert "changed: learning_rate was 0.001, now it is 0.01" in error
    assert "finished" not in error
    assert run(*train, "--run.steps", 3, "--resume", "--run.learning-rate", 0.01) == 0
    assert "changed" not in capsys.readouterr().err


def test_wrong_vocabulary(folder: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(tmp_path, "other", toy_pairs(40, seed=9))
    assert run("prepare", "--languages", "de,en", "--train", f"{tmp_path}/other.%", "--out", tmp_path / "s",
               "--vocabulary", 90, "--workers", 1) == 0  # fmt: skip
    capsys.readouterr()
    arguments = ["train", "--data", tmp_path / "s", "--out", tmp_path / "run", "--init", folder / "model"]
    assert run(*arguments, "--run.steps", 1) == 2
    assert "wrong vocabulary" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

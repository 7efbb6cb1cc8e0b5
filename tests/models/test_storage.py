import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from anyorder.data.vocabulary import Vocabulary
from anyorder.device import shapes_only
from anyorder.errors import InputError
from anyorder.models.native.translation_model import LengthTable, TranslationModel
from tests.conftest import tiny


def weights(model: TranslationModel) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


def test_float32_comes_back_bit_by_bit(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    model.length_table = LengthTable({"de-en": {3: [4, 3], 1: [1]}, "en-de": {4: [3]}})
    model.save_pretrained(tmp_path / "m")
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "checksums.json", "config.json", "lengths.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    again = TranslationModel.from_pretrained(tmp_path / "m")
    assert again.config == model.config
    assert again.length_table == model.length_table
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(model).items())


def test_int8_is_a_quarter_of_the_size_and_close(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    for storage in ("float32", "int8"):
        model.save_pretrained(tmp_path / storage, storage)
    size = {kind: (tmp_path / kind / "model.safetensors").stat().st_size for kind in ("float32", "int8")}
    assert size["int8"] < 0.3 * size["float32"]
    again = weights(TranslationModel.from_pretrained(tmp_path / "int8"))
    for name, tensor in weights(model).items():
        if tensor.dim() == 2:
            groups = tensor.unflatten(1, (-1, 64))
            step = groups.abs().amax(-1, keepdim=True) / 127
            off = (again[name].unflatten(1, (-1, 64)) - groups).abs()
            assert bool((off <= 0.51 * step + 127 * 5e-4 * step).all()), name
        else:
            assert torch.equal(again[name], tensor)


def test_saving_again_replaces_the_model(tmp_path: Path, vocabulary: Vocabulary) -> None:
    tiny(vocabulary, seed=1).save_pretrained(tmp_path / "m")
    second = tiny(vocabulary, seed=2)
    second.save_pretrained(tmp_path / "m")
    again = TranslationModel.from_pretrained(tmp_path / "m")
    assert torch.equal(again.output_bias, second.output_bias)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_model_in_the_hub_cache(tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub client itself finds it, in the layout that it writes."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--some--model"
    tiny(vocabulary).save_pretrained(_made(repository / "snapshots") / revision)
    _made(repository / "refs").joinpath("main").write_text(revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert torch.equal(TranslationModel.from_pretrained("some/model").output_bias, tiny(vocabulary).output_bias)
    with pytest.raises(
        InputError, match="some/other: there is no such folder, and it could not be fetched from the hub"
    ):
        TranslationModel.from_pretrained("some/other")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_damaged_weights(tmp_path: Path, vocabulary: Vocabulary) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="model.safetensors: damaged, it does not match checksums.json"):
        TranslationModel.from_pretrained(tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    with pytest.raises(InputError, match="model.safetensors: damaged"):
        TranslationModel.from_pretrained(tmp_path / "m")


def test_weights_that_are_not_numbers(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    with torch.no_grad():
        model.output_bias[3] = float("nan")
    for storage in ("float32", "bfloat16", "int8"):
        model.save_pretrained(tmp_path / storage, storage)
        with pytest.raises(InputError, match="output_bias holds numbers that are not finite"):
            TranslationModel.from_pretrained(tmp_path / storage)


@pytest.mark.parametrize("damage", ["no scale", "another shape", "one dimension"])
def test_int8_weights_without_a_scale_that_fits(tmp_path: Path, vocabulary: Vocabulary, damage: str) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "m", "int8")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    name = next(name.removesuffix(".int8") for name in tensors if name.endswith(".int8"))
    if damage == "no scale":
        del tensors[f"{name}.scale"]
    elif damage == "another shape":
        tensors[f"{name}.scale"] = tensors[f"{name}.scale"][:-1].clone()
    else:
        tensors[f"{name}.int8"] = tensors[f"{name}.int8"].flatten()
    save_file(tensors, file)
    (tmp_path / "m" / "checksums.json").unlink()
    with pytest.raises(InputError, match=f"model.safetensors: {name}.int8 has no scale that fits it"):
        TranslationModel.from_pretrained(tmp_path / "m")


def test_weights_that_do_not_fit(tmp_path: Path, vocabulary: Vocabulary) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "a")
    tiny(vocabulary, hidden_size=128).save_pretrained(tmp_path / "b")
    (tmp_path / "a" / "model.safetensors").write_bytes((tmp_path / "b" / "model.safetensors").read_bytes())
    (tmp_path / "a" / "checksums.json").unlink()
    with pytest.raises(InputError, match="does not fit its config.json"):
        TranslationModel.from_pretrained(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hidden_size": 10**9},
            "transformer.hidden_size 1000000000: expected a number of at least 1 and at most 65536",
        ),
        ({"hidden_size": 65_536}, "does not fit its config.json"),
        ({"num_layers": None}, "transformer.num_layers: null, expected a whole number"),
        ({"num_layers": 200}, "does not fit its config.json: lacks transformer.layers.10"),
        ({"max_positions": 1 << 24}, "does not fit its config.json"),
        ({"dropout": "much"}, 'transformer.dropout: "much", expected a number'),
        ({"width": 3}, "transformer.width: no such field"),
    ],
)
def test_absurd_sizes_ask_for_no_memory(
    tmp_path: Path, vocabulary: Vocabulary, change: dict[str, object], message: str
) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["transformer"] |= change
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        TranslationModel.from_pretrained(tmp_path / "m")


def test_pickled_weights_are_never_opened(tmp_path: Path, vocabulary: Vocabulary) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(InputError, match="pytorch_model.bin is pickled and will not be opened"):
        TranslationModel.from_pretrained(tmp_path / "m")


def test_another_vocabulary(tmp_path: Path, vocabulary: Vocabulary) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "m")
    Vocabulary.learn({"abc": 50, "bcd": 40}, 20).save(tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    with pytest.raises(InputError, match="wrong vocabulary"):
        TranslationModel.from_pretrained(tmp_path / "m")


def test_what_is_not_a_model_is_told_apart(tmp_path: Path, vocabulary: Vocabulary) -> None:
    """A misspelled name, a folder that is not there, one without a model, and the folder of a run."""
    with pytest.raises(InputError, match="unknown model 'de-enn': did you mean 'de-en'"):
        TranslationModel.from_pretrained("de-enn")
    with pytest.raises(InputError, match=f"{tmp_path}/nothing: no such folder"):
        TranslationModel.from_pretrained(tmp_path / "nothing")
    with pytest.raises(InputError, match="no model in this folder"):
        TranslationModel.from_pretrained(tmp_path)
    tiny(vocabulary).save_pretrained(tmp_path / "run" / "model")
    with pytest.raises(InputError, match=f"is the folder of a run; its model is {tmp_path}/run/model"):
        TranslationModel.from_pretrained(tmp_path / "run")


@pytest.mark.parametrize("content", ["", "[]", '{"model_type": "bert"}', '{"model_type": "anyorder"}'])
def test_damaged_config(tmp_path: Path, vocabulary: Vocabulary, content: str) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(content)
    with pytest.raises(InputError):
        TranslationModel.from_pretrained(tmp_path / "m")


def test_directions(vocabulary: Vocabulary) -> None:
    config = tiny(vocabulary).config
    assert config.direction("en-de") == (1, 0)
    for wrong in ("de-fr", "de", "de-de", "deen"):
        with pytest.raises(InputError, match="this model translates de-en, en-de"):
            config.direction(wrong)


def test_predicted_lengths_do_not_depend_on_the_batch(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    sources = [np.arange(10, 10 + n) for n in (3, 30, 12, 1, 17)]
    together = model.predict_lengths(sources, "de-en", 4)
    assert together == [model.predict_lengths([one], "de-en", 4)[0] for one in sources]
    assert all(len(set(lengths)) == 4 and min(lengths) >= 1 for lengths in together)


def test_loading_initializes_nothing(tmp_path: Path, vocabulary: Vocabulary) -> None:
    """Neither the model that only gives its shapes nor the one that gets the weights."""
    tiny(vocabulary).save_pretrained(tmp_path / "m")
    before = torch.get_rng_state()
    model = TranslationModel.from_pretrained(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    with shapes_only():
        assert torch.nn.Linear(10**6, 10**6).weight.is_meta

"""Models on disk and on the hub: config.json, model.safetensors, tokenizer.json. Nothing is ever unpickled.

`int8` storage keeps a scale for every 64 weights of a row; loading gives float32 back, the same on every machine.
"""

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError, unknown
from anyorder.files import atomic_folder, read_json, read_tensors, write_json
from anyorder.models.length import LengthTable
from anyorder.models.transformer import TransformerConfig
from anyorder.models.translation import ModelConfig, TranslationModel

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
LENGTHS = "lengths.json"
STORAGE = ("float32", "bfloat16", "int8")
GROUP = 64
BUNDLED = Path(str(files("anyorder") / "bundled"))
"""The models that come with this package, each in a folder of its name."""


def load(name: str | Path) -> TranslationModel:
    """A model in float32 on the CPU, from a folder, a bundled name or a hub id."""
    folder = find(name)
    model = _load(folder)
    model.path = folder
    return model


def _load(folder: Path) -> TranslationModel:
    config = read_json(folder / CONFIG)
    if config.get("model_type") == "xlm":
        from anyorder.models.xlm import load_xlm

        return load_xlm(folder, config)
    if config.get("model_type") != "anyorder":
        raise InputError(f"{folder / CONFIG}: model_type {config.get('model_type')!r}, expected 'anyorder' or 'xlm'")
    if "shape" in config:
        raise InputError(f"{folder / CONFIG}: was written by version 0.1.0; CHANGELOG.md says how to convert it")
    vocabulary = Vocabulary.load(folder, config.get("vocab_size"))
    if config.get("vocabulary") != vocabulary.fingerprint:
        raise InputError(
            f"{folder}: wrong vocabulary: tokenizer.json is {vocabulary.fingerprint}, "
            f"the model was trained with {config.get('vocabulary')}"
        )
    try:
        model_config = ModelConfig(
            transformer=TransformerConfig(**config["transformer"]),
            vocab_size=config["vocab_size"],
            languages=tuple(config["languages"]),
            text=TextConfig(**config["text"]),
            activation=config["activation"],
            language_embeddings=config["language_embeddings"],
            predicts_length=config["predicts_length"],
            trained_directions=tuple(config.get("trained_directions", ())),
        )
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise InputError(f"{folder / CONFIG}: damaged ({error})") from None
    model = TranslationModel(model_config, vocabulary)
    load_weights(model, _unpack(read_tensors(folder / WEIGHTS)), folder / WEIGHTS)
    if (folder / LENGTHS).exists():
        model.length_table = _length_table(folder / LENGTHS)
    return model


def _length_table(file: Path) -> LengthTable:
    seen = read_json(file)
    try:
        return LengthTable(
            {name: {int(s): [int(t) for t in targets] for s, targets in rows.items()} for name, rows in seen.items()}
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{file}: damaged ({error})") from None


def save(model: TranslationModel, folder: Path, storage: str = "float32") -> None:
    """Write a model; a folder that holds one already is replaced as a whole."""
    if storage not in STORAGE:
        raise unknown("storage", storage, STORAGE)
    config = {"model_type": "anyorder", "vocabulary": model.vocabulary.fingerprint, **asdict(model.config)}
    with atomic_folder(folder) as partial:
        write_json(partial / CONFIG, config)
        model.vocabulary.save(partial)
        if model.length_table:
            (partial / LENGTHS).write_text(json.dumps(model.length_table.seen, separators=(",", ":")), encoding="utf-8")
        save_file(_pack(model.state_dict(), storage), partial / WEIGHTS)
        (partial / WEIGHTS).chmod(0o644)  # safetensors writes files that only their owner may read


def find(name: str | Path) -> Path:
    """The folder of a model: as given, bundled with this package, or fetched from the hub into its cache."""
    path = Path(name)
    if (BUNDLED / path / CONFIG).exists() and not (path / CONFIG).exists():
        return BUNDLED / path
    if path.is_dir():
        return _check_model_folder(path)
    if str(name).startswith((".", "/", "~")) or str(name).count("/") > 1:
        raise InputError(f"{name}: no such folder")
    if "/" not in str(name):
        raise unknown("model", str(name), bundled_models())
    return _fetch(str(name))


def bundled_models() -> list[str]:
    """Names of the models that come with this package."""
    return [file.parent.name for file in sorted(BUNDLED.glob(f"*/{CONFIG}"))]


def _check_model_folder(folder: Path) -> Path:
    """An `InputError` for a folder that holds no model."""
    if not (folder / CONFIG).exists():
        if (folder / "model" / CONFIG).exists():
            raise InputError(f"{folder}: is the folder of a run; its model is {folder / 'model'}")
        raise InputError(f"{folder}: no model in this folder (it has no {CONFIG})")
    return folder


def _fetch(name: str) -> Path:
    """The folder in the hub's cache that holds a model of that id."""
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "merges.txt"]  # `*` reaches into folders: learned orders come along
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub client raises its own, the network's and the file system's errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{name}: there is no such folder, and it could not be fetched from the hub ({reason})"
        ) from None


def load_weights(model: TranslationModel, weights: dict[str, Tensor], file: Path) -> None:
    """Load weights, with one line instead of a list of keys when they are not this model's."""
    expected = model.state_dict()
    missing, surplus = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or surplus:
        detail = f"lacks {missing[0]}" if missing else f"has unknown {surplus[0]}"
        raise InputError(f"{file}: does not fit its config.json: {detail}")
    for key, tensor in weights.items():
        if tensor.shape != expected[key].shape:
            shapes = f"{tuple(tensor.shape)}, expected {tuple(expected[key].shape)}"
            raise InputError(f"{file}: does not fit its config.json: {key} is {shapes}")
    model.load_state_dict(weights)


def _pack(weights: dict[str, Tensor], storage: str) -> dict[str, Tensor]:
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        weight = weight.detach().float().cpu().contiguous()
        if storage == "int8" and weight.dim() == 2 and weight.shape[1] % GROUP == 0:
            packed[f"{name}.int8"], packed[f"{name}.scale"] = _quantize(weight)
        else:
            packed[name] = weight.to(torch.bfloat16) if storage == "bfloat16" else weight
    return packed


def _unpack(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for name, tensor in packed.items():
        if name.endswith(".int8"):
            name = name.removesuffix(".int8")
            scale = packed.get(f"{name}.scale")
            if scale is not None:
                weights[name] = (tensor.float().unflatten(1, (-1, GROUP)) * scale.float()[..., None]).flatten(1)
        elif not name.endswith(".scale"):
            weights[name] = tensor.float()
    return weights


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    groups = weight.unflatten(1, (-1, GROUP))
    scale = (groups.abs().amax(-1) / 127).clamp(min=torch.finfo(torch.float16).tiny).half()
    steps = (groups / scale.float()[..., None]).round().clamp(-127, 127)
    return steps.flatten(1).to(torch.int8), scale

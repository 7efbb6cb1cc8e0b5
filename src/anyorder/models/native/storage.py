"""Models on disk and on the hub: config.json, model.safetensors, tokenizer.json. Nothing is ever unpickled.

`int8` storage keeps one scale per 64 weights of a row; loading restores float32, identically on every machine. Hugging
Face's XLM models (`FacebookAI/xlm-mlm-ende-1024` and its kin) load, too.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from torch import Tensor

from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import FILE as VOCABULARY
from anyorder.data.vocabulary import Vocabulary
from anyorder.device import Uninitialized, shapes_only
from anyorder.errors import InputError, unknown
from anyorder.files import atomic_folder, read_whole, verify, write_json, write_tensors
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import LengthTable, ModelConfig, TranslationModel
from anyorder.records import Record, check_shapes, read_record, read_tensors

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
LENGTHS = "lengths.json"
STORAGE = ("float32", "bfloat16", "int8")
GROUP = 64
BUNDLED = Path(str(files("anyorder") / "bundled"))
"""The models that come with this package, each in a folder named after it."""


def load(name: str | Path) -> TranslationModel:
    """A model in float32 on the CPU, from a folder, a bundled name or a hub id."""
    folder = find(name)
    model = read_whole(folder, _load)
    model.path = folder
    return model


def _load(folder: Path) -> TranslationModel:
    record = read_record(folder / CONFIG)
    kind = record.text("model_type", default="")
    if kind == "xlm":
        return load_xlm(folder, record)
    if kind != "anyorder":
        raise InputError(
            f"{folder / CONFIG}: model_type '{kind}' does not translate, expected 'anyorder' or 'xlm'; "
            "masked language models are for infill and generate"
        )
    if "shape" in record:
        raise InputError(f"{folder / CONFIG}: was written by version 0.1.0; CHANGELOG.md says how to convert it")
    verify(folder, CONFIG, VOCABULARY, WEIGHTS, LENGTHS)
    expected_vocabulary = record.text("vocabulary")
    settings = {name: value for name, value in record.values.items() if name not in ("model_type", "vocabulary")}
    config = Record(record.where, settings).config(ModelConfig)
    vocabulary = Vocabulary.load(folder, config.vocab_size)
    if expected_vocabulary != vocabulary.fingerprint:
        raise InputError(
            f"{folder}: wrong vocabulary: {VOCABULARY} is {vocabulary.fingerprint}, "
            f"the model was trained with {expected_vocabulary}"
        )
    model = build(config, vocabulary, _unpack(read_tensors(folder / WEIGHTS), folder / WEIGHTS), folder / WEIGHTS)
    if (folder / LENGTHS).exists():
        lengths = read_record(folder / LENGTHS)
        model.length_table = LengthTable({direction: lengths.take(direction, _Lengths) for direction in lengths})
    return model


_Length = Annotated[int, msgspec.Meta(ge=1, lt=10**9)]
_Lengths = dict[_Length, Annotated[list[_Length], msgspec.Meta(min_length=1)]]
"""Target lengths by source length."""


def save(model: TranslationModel, folder: Path, storage: str = "float32") -> None:
    """Write a model; an existing model folder is replaced as a whole."""
    if storage not in STORAGE:
        raise unknown("storage", storage, STORAGE)
    config = {"model_type": "anyorder", "vocabulary": model.vocabulary.fingerprint, **asdict(model.config)}
    with atomic_folder(folder) as partial:
        write_json(partial / CONFIG, config)
        model.vocabulary.save(partial)
        if model.length_table:
            (partial / LENGTHS).write_text(json.dumps(model.length_table.seen, separators=(",", ":")), encoding="utf-8")
        write_tensors(partial / WEIGHTS, _pack(model.state_dict(), storage))


def find(name: str | Path, vocabularies: Sequence[str] = ("merges.txt",), only_here: bool = True) -> Path:
    """The folder of a model: as given, bundled with this package, or fetched from the hub into its cache.

    A hub id may name a branch, tag or commit: `name@revision`.

    vocabularies: files to fetch besides JSON and weights. only_here: whether a name without a slash can only be that of
    a bundled model.
    """
    path = local_folder(name)
    if (path / CONFIG).exists():
        return path
    if (path / "model" / CONFIG).exists():
        raise InputError(f"{path}: is the folder of a run; its model is {path / 'model'}")
    if path.is_dir():
        raise InputError(f"{path}: no model in this folder (it has no {CONFIG})")
    name, at, revision = str(name).partition("@")
    if at and not revision:
        raise InputError(f"{name}@: expected a branch, tag or commit after the @")
    if at and name in bundled_models():
        raise InputError(f"{name}@{revision}: comes with this package, so it has no branches, tags or commits")
    if not name or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"{name}: no such folder")
    if only_here and "/" not in name:
        raise unknown("model", name, bundled_models())
    from huggingface_hub import snapshot_download

    # `*` matches in subfolders: includes learned orders. Chat templates are .jinja files.
    patterns = ["*.json", "*.safetensors", "*.jinja", *vocabularies]
    with as_input_error(f"{name}{at}{revision}: there is no such folder, and it could not be fetched from the hub"):
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))


def local_folder(name: str | Path) -> Path:
    """The folder with that name, or that of the bundled model with that name."""
    path = Path(name)
    return BUNDLED / path if (BUNDLED / path / CONFIG).exists() and not (path / CONFIG).exists() else path


def bundled_models() -> list[str]:
    """Names of the models that come with this package."""
    return [file.parent.name for file in sorted(BUNDLED.glob(f"*/{CONFIG}"))]


@contextmanager
def as_input_error(message: str) -> Iterator[None]:
    """The hub client, Transformers, tokenizers and safetensors raise errors of all kinds."""
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(f"{message} ({reason})") from None


def build(
    config: ModelConfig, vocabulary: Vocabulary, weights: Mapping[str, Tensor], file: Path, ignore: str | None = None
) -> TranslationModel:
    """A model with the weights of a file. Memory is allocated only once their names and shapes are known to fit.

    Weights whose names start with `ignore` are not in the file; they keep their initial values.
    """
    with shapes_only():
        shapes = {name: value.shape for name, value in TranslationModel(config, vocabulary).state_dict().items()}
    expected = {name: tuple(shape) for name, shape in shapes.items() if ignore is None or not name.startswith(ignore)}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    check_shapes(f"{file}: does not fit its {CONFIG}", found, expected)
    with Uninitialized() if ignore is None else nullcontext():
        model = TranslationModel(config, vocabulary)
    model.load_state_dict(weights, strict=ignore is None)
    return model


def _pack(weights: dict[str, Tensor], storage: str) -> dict[str, Tensor]:
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        weight = weight.detach().float().cpu().contiguous()
        if storage == "int8" and weight.dim() == 2 and weight.shape[1] % GROUP == 0:
            packed[f"{name}.int8"], packed[f"{name}.scale"] = _quantize(weight)
        else:
            packed[name] = weight.to(torch.bfloat16) if storage == "bfloat16" else weight
    return packed


def _unpack(packed: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for name, tensor in packed.items():
        if name.endswith(".int8"):
            name = name.removesuffix(".int8")
            scale = packed.get(f"{name}.scale")
            if scale is None or tensor.dim() != 2 or scale.shape != (len(tensor), tensor.shape[1] / GROUP):
                raise InputError(f"{file}: {name}.int8 has no scale that fits it")
            weights[name] = (tensor.float().unflatten(1, (-1, GROUP)) * scale.float()[..., None]).flatten(1)
        elif not name.endswith(".scale"):
            weights[name] = tensor.float()
    return weights


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    groups = weight.unflatten(1, (-1, GROUP))
    # At least the smallest normal half: a group of zeros would divide by zero. Steps are of the scale as it is stored.
    scale = (groups.abs().amax(-1) / 127).clamp(min=torch.finfo(torch.float16).tiny).half()
    steps = (groups / scale.float()[..., None]).round().clamp(-127, 127)
    return steps.flatten(1).to(torch.int8), scale


def load_xlm(folder: Path, config: Record) -> TranslationModel:
    """An XLM model as one of ours, with XLM's attention and its own vocabulary."""
    for key, plain in (("causal", False), ("asm", False), ("is_encoder", True)):
        if config.boolean(key, default=plain) != plain:
            raise config.error(key, f"is {not plain}; only masked XLM models are undirected")
    weights = _rename(read_tensors(folder / WEIGHTS))
    if "transformer.tokens.weight" not in weights:
        raise InputError(f"{folder / WEIGHTS}: does not fit its config.json: lacks transformer.embeddings.weight")
    # XLM's tokenizer lowercases and strips accents unless its configuration says otherwise.
    tokenizer = folder / "tokenizer_config.json"
    settings = read_record(tokenizer) if tokenizer.exists() else Record("", {})
    lowercase = settings.boolean("do_lowercase_and_remove_accent", default=True)
    model_config = ModelConfig(
        transformer=TransformerConfig(
            hidden_size=config.integer("emb_dim"),
            num_layers=config.integer("n_layers", at_least=1, at_most=1024),
            num_heads=config.integer("n_heads"),
            max_positions=config.integer("max_position_embeddings"),
            dropout=config.number("dropout", default=0.1),
            source_sees_target=True,
        ),
        vocab_size=weights["transformer.tokens.weight"].shape[0],
        languages=_languages(config),
        text=TextConfig(lowercase=lowercase),
        activation="gelu" if config.boolean("gelu_activation", default=True) else "relu",
        language_embeddings="transformer.languages.weight" in weights,
        predicts_length=False,
    )
    vocabulary = _vocabulary(folder, model_config.vocab_size)
    return build(model_config, vocabulary, weights, folder / WEIGHTS, ignore="length.")


_NAMES = {
    r"embeddings": "tokens",
    r"position_embeddings": "positions",
    r"lang_embeddings": "languages",
    r"layer_norm_emb": "norm",
    r"attentions\.(\d+)\.q_lin": r"layers.\1.query",
    r"attentions\.(\d+)\.k_lin": r"layers.\1.key_value",
    r"attentions\.(\d+)\.out_lin": r"layers.\1.attended",
    r"layer_norm1\.(\d+)": r"layers.\1.norm_attention",
    r"ffns\.(\d+)\.lin1": r"layers.\1.inner",
    r"ffns\.(\d+)\.lin2": r"layers.\1.outer",
    r"layer_norm2\.(\d+)": r"layers.\1.norm_feedforward",
}


def _rename(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """XLM's names to ours; keys and values share a matrix here. Weights of other parts are dropped."""
    found = {"output_bias": weights["pred_layer.proj.bias"]} if "pred_layer.proj.bias" in weights else {}
    for name, weight in weights.items():
        stem, _, kind = name.removeprefix("transformer.").rpartition(".")
        if stem.endswith(".k_lin"):
            value = weights.get(name.replace(".k_lin.", ".v_lin."))
            if value is None or value.shape != weight.shape:
                continue
            weight = torch.cat([weight, value])
        for theirs, ours in _NAMES.items():
            if re.fullmatch(theirs, stem):
                found[f"transformer.{re.sub(theirs, ours, stem)}.{kind}"] = weight
    return {name: tensor.float() for name, tensor in found.items()}


def _languages(config: Record) -> tuple[str, ...]:
    table = config.record("lang2id") if config.values.get("lang2id") else Record(config.where, {})
    numbers = {language: table.integer(language) for language in table}
    ordered = tuple(sorted(numbers, key=numbers.__getitem__))
    count = config.integer("n_langs", at_least=1, at_most=10_000, default=max(1, len(ordered)))
    if [numbers[language] for language in ordered] != list(range(count)):
        return tuple(f"language{i}" for i in range(count))
    return ordered


def _vocabulary(folder: Path, tokens: int) -> Vocabulary:
    if (folder / VOCABULARY).exists():
        return Vocabulary.load(folder, tokens)
    listed = read_record(folder / "vocab.json")
    numbers = {piece: listed.integer(piece) for piece in listed}
    if len(numbers) != tokens:
        raise InputError(f"{folder / 'vocab.json'}: wrong vocabulary: {len(numbers)} entries, the model has {tokens}")
    with as_input_error(f"{folder / 'merges.txt'}: cannot be read"):
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [(parts[0], parts[1]) for line in lines if len(parts := line.split()) >= 2 and line[0] != "#"]
    # Pieces that exist only to be merged into longer ones are not in XLM's dictionary; they get ids past its end.
    for left, right in merges:
        for piece in (left, right, left + right):
            numbers.setdefault(piece, len(numbers))
    return Vocabulary.from_merges(numbers, merges, tokens)

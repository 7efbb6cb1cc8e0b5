"""Checkpoints as people have them, converted once into a folder that `load_transformers` reads.

Pickles are opened by torch's restricted unpickler, which makes tensors and plain containers and runs no code of theirs;
fairseq's also hold an `argparse.Namespace`, which is one. A pickle that needs anything else is refused. What is missing
or does not fit is collected, so that one message names all of it.
"""

import argparse
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.device import shapes_only
from anyorder.errors import InputError, unknown
from anyorder.files import atomic_folder, write_json, write_tensors
from anyorder.models.base import Canvas
from anyorder.models.hf.families import FAMILIES, Family, family_of, same_config
from anyorder.models.hf.pretrained import (
    TransformersModel,
    attempt,
    class_of,
    load_tokenizer,
    load_transformers,
    quiet,
)
from anyorder.models.hf.vocabularies import AUTO, make_tokenizer, read_vocabulary
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.models.native.storage import CONFIG, WEIGHTS, as_input_error
from anyorder.records import Record, check_finite, read_record, read_tensors

_WEIGHTS = (WEIGHTS, "pytorch_model.bin")
"""What the weights are called; `.index.json` behind it lists the files that share them."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.")
"""Files that training leaves beside the weights."""
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Where training programs put the weights in what they save."""
_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_MAX_LAYERS = 1024
_NAMED = 4
"""A message names at most this many weights."""


@dataclass(frozen=True)
class Conversion:
    """What was made."""

    folder: Path
    model_type: str
    parameters: int
    vocab_size: int
    """Number of tokens that its tokenizer knows."""
    mask_token: str
    reads: str
    """How its tokenizer reads text."""
    left_out: tuple[str, ...]
    """Weights of other parts, such as a pooling layer, which filling masks does not need."""
    prediction: str
    """What it fills in where there is nothing but a mask."""


def convert(
    source: Path,
    out: Path,
    family: str | None = None,
    vocabulary: Path | None = None,
    lowercase: bool | None = None,
    split: str | None = None,
) -> Conversion:
    """Convert a checkpoint into a folder with all that a model needs. It is written whole or not at all.

    Args:
        source: A folder, or the file in it that has the weights: safetensors, or a pickle of PyTorch or fairseq.
        out: The folder to write; it must not exist.
        family: Its `model_type`, if its config.json does not say.
        vocabulary: Its vocabulary, if that is elsewhere: vocab.txt, fairseq's dict.txt, or a tokenizer.json.
        lowercase: How to read text; see `make_tokenizer`.
        split: Likewise.
    """
    if family is not None and family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    if out.exists():
        raise InputError(f"{out}: already exists; remove it or choose another place")
    problems: list[str] = []
    folder = source if source.is_dir() else source.parent
    files = _weight_files(source)
    with quiet():
        theirs = attempt(problems, _read_weights, files)
        record = attempt(problems, _config, folder, theirs, family)
        kind = record and attempt(problems, family_of, record)
        fitted = theirs and record and kind and attempt(problems, _fitted, theirs.tensors, record, kind, problems)
        tokenizer = attempt(problems, _tokenizer, folder, vocabulary, theirs, kind, lowercase, split)
        if record is not None and tokenizer is not None:
            room = record.values.get("vocab_size")
            if isinstance(room, int) and room < tokenizer.size:
                problems.append(f"{tokenizer.file}: has {tokenizer.size:,} tokens, but the model {room:,}")
        if problems:
            listed = [problem.removeprefix(f"{folder}/") for problem in problems]
            raise InputError(f"{source}: cannot be converted: {'; '.join(listed)}")
        assert record  # or there is a problem
        assert fitted
        assert tokenizer
        tensors, left_out = fitted
        with atomic_folder(out, replace=False) as partial:
            write_json(partial / CONFIG, record.values)
            write_tensors(partial / WEIGHTS, tensors)
            tokenizer.write(partial)
            try:
                model = load_transformers(partial)
            except InputError as error:
                found = str(error).replace(str(partial), str(source)).replace(partial.name, out.name)
                raise InputError(found) from None
            return Conversion(
                out,
                record.text("model_type"),
                sum(weight.numel() for weight in model.network.parameters()),
                len(model.tokenizer),
                str(model.tokenizer.convert_ids_to_tokens(model.mask_token)),
                tokenizer.reads,
                left_out,
                _prediction(model),
            )


def _prediction(model: TransformersModel) -> str:
    """What the model fills in where there is nothing but a mask."""
    batch = model.pack([Canvas(np.array([model.mask_token]))])
    at = QueryPositions(torch.from_numpy(batch.starts), Segments.of(batch.lengths))
    with torch.inference_mode():
        logits = model.logits(model.context(batch).hidden(torch.from_numpy(batch.packed.tokens), at))[0]
    check_finite(model.name, [("its prediction", logits)])
    best = logits.masked_fill(~torch.from_numpy(model.allowed_tokens), -torch.inf).argmax()
    return model.to_tokens([int(best)])[0]


# Weights


@dataclass
class _Weights:
    tensors: dict[str, Tensor]
    settings: Mapping[str, Any] | None = None
    """fairseq's settings of the model."""


def _weight_files(source: Path) -> list[Path]:
    if source.is_file():
        return _shards(source) if source.name.endswith(".index.json") else [source]
    if not source.is_dir():
        raise InputError(f"{source}: no such file or folder")
    for name in _WEIGHTS:
        file, index = source / name, source / f"{name}.index.json"
        if file.is_file():
            return [file]
        if index.is_file():
            return _shards(index)
    files = sorted(file for file in source.iterdir() if file.suffix in (*_PICKLES, ".safetensors") and file.is_file())
    files = [file for file in files if not _NOT_WEIGHTS.match(file.name)]
    if len(files) > 1:
        raise InputError(f"{source}: has several checkpoints, give one of them: {_listed([f.name for f in files])}")
    return files


def _shards(index: Path) -> list[Path]:
    """The files that an index names."""
    names = sorted(set(read_record(index).take("weight_map", dict[str, str]).values()))
    files = [index.with_name(name) for name in names if re.fullmatch(r"[\w.-]+", name)]
    if not names or len(files) < len(names):
        raise InputError(f"{index}: expected the names of files beside it")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise InputError(f"{index.parent}: lacks {_listed(missing)}, which {index.name} names")
    return files


def _read_weights(files: list[Path]) -> _Weights:
    tensors: dict[str, Tensor] = {}
    if not files:
        raise InputError(f"no weights ({', '.join(_WEIGHTS)}, or a file that ends in .bin, .pt, .pth or .ckpt)")
    for file in files:
        if file.suffix == ".safetensors":
            tensors |= read_tensors(file)
            continue
        opened = _unpickled(file)
        settings = _fairseq_settings(opened)
        found = _state_dict(opened, file)
        if settings is not None and any("sentence_encoder." in name for name in found):
            return _Weights(_fairseq_weights(found, file), settings)
        tensors |= found
    return _Weights(tensors)


def _unpickled(file: Path) -> Any:
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except (MemoryError, InputError):
        raise
    except Exception as error:  # of any kind: the file may hold anything
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise InputError(f"{file}: its pickle needs {refused[1]}, more than weights, so it is not opened") from None
        raise InputError(f"{file}: is damaged, or no checkpoint of PyTorch") from None


def _state_dict(opened: Any, file: Path) -> dict[str, Tensor]:
    """The weights in what a program saved."""
    for name in _WRAPPERS:
        inner = opened.get(name) if isinstance(opened, Mapping) else None
        if isinstance(inner, Mapping) and any(isinstance(value, Tensor) for value in inner.values()):
            opened = inner
    found = opened.items() if isinstance(opened, Mapping) else ()
    tensors = {name: tensor for name, tensor in found if isinstance(name, str) and isinstance(tensor, Tensor)}
    if not tensors:
        raise InputError(f"{file}: holds no weights by name")
    for name, tensor in tensors.items():
        is_plain = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
        if not is_plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise InputError(f"{file}: {name} is not a plain tensor")
    check_finite(file, tensors.items())
    return tensors


def _fitted(
    tensors: Mapping[str, Tensor], record: Record, family: Family, problems: list[str]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The weights by their native names, and the names of those that are not needed.

    What is missing or has another shape is added to the problems.
    """
    if family.renames or family.converts or family.native_config is not same_config:
        return dict(tensors), ()  # loading renames and checks them
    where = record.where
    with as_input_error(f"{where}: does not describe a {family.class_name}"):
        network_class = class_of(family)
        config = network_class.config_class.from_dict(same_config(record))
        if config.num_hidden_layers > _MAX_LAYERS:
            raise InputError(f"{where}: has {config.num_hidden_layers:,} layers, expected at most {_MAX_LAYERS:,}")
        with shapes_only():
            network = network_class(config)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    body = f"{network_class.base_model_prefix}."
    renamed = _renamed(tensors, expected.keys(), body)
    found = {renamed[name]: tensor for name, tensor in tensors.items() if renamed[name] in expected}
    tied = {name: other for name, other in (network._tied_weights_keys or {}).items() if other in expected}
    for name, other in tied.items():
        if other not in found and name in found:
            found[other] = found[name]
        if other in found and name in found and found[name].shape == found[other].shape:
            is_tied = found[name].data_ptr() == found[other].data_ptr() or torch.equal(found[name], found[other])
            if not is_tied and name.endswith("weight"):
                record.values["tie_word_embeddings"] = False
            elif is_tied:
                del found[name]
    if record.values.get("tie_word_embeddings", True) is False:
        found |= {name: found[other] for name, other in tied.items() if name not in found and other in found}
    missing = [name for name in expected if name not in found and tied.get(name) not in found]
    if missing:
        heads = all(not name.startswith(body) for name in missing)
        part = ", its output layer: it cannot fill masks" if heads else ""
        problems.append(
            f"{where}: the weights of a {family.class_name} are not all there, lacking {_listed(missing)}{part}"
        )
    for name, tensor in found.items():
        if tuple(tensor.shape) != expected[name]:
            shapes = " but ".join("x".join(map(str, shape)) or "one number" for shape in (tensor.shape, expected[name]))
            problems.append(f"{where}: {name} has the shape {shapes} by this file")
    unused = [name for name in tensors if renamed[name] not in expected]
    kinds = {re.sub(r"\d+", "#", name) for name in expected}
    more = [name for name in unused if re.search(r"\d", name) and re.sub(r"\d+", "#", renamed[name]) in kinds]
    if more:
        problems.append(f"{where}: says {config.num_hidden_layers} layers, but there is {more[0]}")
    return found, tuple(name for name in unused if not name.endswith("position_ids"))


def _renamed(names: Mapping[str, Any], expected: Any, body: str) -> dict[str, str]:
    """The native name of each weight: without what a program put before it, and with the name of the body.

    Of all prefixes that the names have, the one is taken without which most are known.
    """
    modern = {name: re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)) for name in names}
    prefixes = {""} | {name[: dot.end()] for name in modern.values() for dot in re.finditer(r"\.", name)}

    def native(name: str, prefix: str) -> str:
        short = name.removeprefix(prefix)
        return body + short if short not in expected and body + short in expected else short

    def known(prefix: str) -> tuple[int, int]:
        return sum(native(name, prefix) in expected for name in modern.values()), -len(prefix)

    # A prefix that is part of native names, such as `bert.encoder.`, makes fewer names known.
    best = max(sorted(prefixes, key=len)[:64], key=known)
    return {name: native(new, best) for name, new in modern.items()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# Settings


def _config(folder: Path, theirs: _Weights | None, family: str | None) -> Record:
    """config.json with its model type and class."""
    if theirs is not None and theirs.settings is not None:
        values = _fairseq_config(theirs, folder)
        where = f"{folder}"
    else:
        record = read_record(folder / CONFIG)
        values, where = dict(record.values), record.where
    kind = family or values.get("model_type") or _guessed_type(values, theirs)
    if kind is None:
        raise InputError(f"{where}: does not say its model_type: give its family, such as bert")
    values["model_type"] = kind
    if isinstance(kind, str) and kind in FAMILIES and FAMILIES[kind].native_config is same_config:
        values["architectures"] = [FAMILIES[kind].class_name]
    return Record(where, values)


def _guessed_type(values: Mapping[str, Any], theirs: _Weights | None) -> str | None:
    """The model type that the class in config.json has, or whose name is before those of the weights."""
    named = values.get("architectures")
    for kind, family in FAMILIES.items():
        if isinstance(named, list) and family.class_name in named:
            return kind
    first = {part for name in (theirs.tensors if theirs else ()) for part in name.split(".")[:3]}
    return next((kind for kind in FAMILIES if kind in first), None)


# fairseq


_FAIRSEQ_NAMES = {
    r"embed_tokens": "roberta.embeddings.word_embeddings",
    r"embed_positions": "roberta.embeddings.position_embeddings",
    r"(emb_layer_norm|layernorm_embedding)": "roberta.embeddings.LayerNorm",
    r"layers\.(\d+)\.self_attn\.q_proj": r"roberta.encoder.layer.\1.attention.self.query",
    r"layers\.(\d+)\.self_attn\.k_proj": r"roberta.encoder.layer.\1.attention.self.key",
    r"layers\.(\d+)\.self_attn\.v_proj": r"roberta.encoder.layer.\1.attention.self.value",
    r"layers\.(\d+)\.self_attn\.out_proj": r"roberta.encoder.layer.\1.attention.output.dense",
    r"layers\.(\d+)\.self_attn_layer_norm": r"roberta.encoder.layer.\1.attention.output.LayerNorm",
    r"layers\.(\d+)\.fc1": r"roberta.encoder.layer.\1.intermediate.dense",
    r"layers\.(\d+)\.fc2": r"roberta.encoder.layer.\1.output.dense",
    r"layers\.(\d+)\.final_layer_norm": r"roberta.encoder.layer.\1.output.LayerNorm",
}
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_fast": "gelu_pytorch_tanh", "gelu_accurate": "gelu_pytorch_tanh"}


def _fairseq_settings(opened: Any) -> Mapping[str, Any] | None:
    """The settings of the model in a checkpoint of fairseq, old (`args`) or new (`cfg`)."""
    if not isinstance(opened, Mapping) or not isinstance(opened.get("model"), Mapping):
        return None
    configuration = opened.get("cfg")
    if isinstance(configuration, Mapping):
        configuration = configuration.get("model")
    for settings in (opened.get("args"), configuration):
        if isinstance(settings, argparse.Namespace):
            return vars(settings)
        if isinstance(settings, Mapping):
            return settings
    return None


def _fairseq_weights(theirs: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """A RoBERTa of fairseq by native names."""
    found: dict[str, Tensor] = {}
    unknown_names = []
    for name, tensor in theirs.items():
        stem, _, kind = re.sub(r"^.*sentence_encoder\.", "", name).rpartition(".")
        if "lm_head." in name:
            last = name.rpartition("lm_head.")[2]
            found["lm_head.decoder.weight" if last == "weight" else f"lm_head.{last}"] = tensor
        elif stem.endswith("self_attn") and kind in ("in_proj_weight", "in_proj_bias") and len(tensor) % 3 == 0:
            for part, values in zip(("q", "k", "v"), tensor.chunk(3), strict=True):
                native = _fairseq_name(f"{stem}.{part}_proj")
                found[f"{native}.{kind.removeprefix('in_proj_')}"] = values
        elif native := _fairseq_name(stem):
            found[f"{native}.{kind}"] = tensor
        elif "sentence_encoder." in name and kind not in ("version", "_float_tensor"):
            unknown_names.append(name)
    if unknown_names:
        raise InputError(f"{file}: is not a RoBERTa as published, it has {_listed(unknown_names)}")
    embeddings = found.get("roberta.embeddings.word_embeddings.weight")
    if embeddings is None or embeddings.dim() != 2:
        raise InputError(f"{file}: is not a RoBERTa of fairseq, it has no embed_tokens.weight")
    found["roberta.embeddings.token_type_embeddings.weight"] = embeddings.new_zeros(1, embeddings.shape[1])
    return found


def _fairseq_name(stem: str) -> str | None:
    for theirs, native in _FAIRSEQ_NAMES.items():
        if re.fullmatch(theirs, stem):
            return re.sub(theirs, native, stem)
    return None


def _fairseq_config(theirs: _Weights, folder: Path) -> dict[str, Any]:
    """The settings of a RoBERTa of fairseq; sizes are those of its weights."""
    settings = Record(f"{folder}", dict(theirs.settings or {}))
    tensors = theirs.tensors
    activation = settings.text("activation_fn", default="gelu")
    if activation not in _ACTIVATIONS:
        raise settings.error("activation_fn", f"'{activation}', expected one of {', '.join(_ACTIVATIONS)}")
    layers = {int(number[1]) for name in tensors if (number := re.search(r"encoder\.layer\.(\d{1,6})\.", name))}
    sizes = {
        "hidden_size": ("embeddings.word_embeddings.weight", 1),
        "vocab_size": ("embeddings.word_embeddings.weight", 0),
        "max_position_embeddings": ("embeddings.position_embeddings.weight", 0),
        "intermediate_size": ("encoder.layer.0.intermediate.dense.weight", 0),
    }
    values: dict[str, Any] = {}
    for key, (name, side) in sizes.items():
        tensor = tensors.get(f"roberta.{name}")
        if tensor is None or tensor.dim() != 2:
            raise InputError(f"{folder}: is not a RoBERTa of fairseq, it lacks {name}")
        values[key] = tensor.shape[side]
    return values | {
        "num_hidden_layers": max(layers) + 1,
        "num_attention_heads": settings.integer("encoder_attention_heads", at_least=1),
        "hidden_act": _ACTIVATIONS[activation],
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 1,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "model_type": "roberta",
    }


# The tokenizer


@dataclass(frozen=True)
class _Tokenizer:
    file: Path
    size: int
    reads: str
    write: Callable[[Path], object]


def _tokenizer(
    folder: Path,
    vocabulary: Path | None,
    theirs: _Weights | None,
    family: Family | None,
    lowercase: bool | None,
    split: str | None,
) -> _Tokenizer:
    """The checkpoint's own tokenizer, or one made from its vocabulary."""
    is_fairseq = theirs is not None and theirs.settings is not None
    names = ("dict.txt",) if is_fairseq else ("tokenizer.json", "vocab.txt")
    file = vocabulary or next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        others = [file for name in ("vocab.json", "*.model") for file in folder.glob(name)]
        if others and family is not None and not is_fairseq:
            tokenizer = load_tokenizer(folder, family)
            return _Tokenizer(others[0], len(tokenizer), f"as {others[0].name} says", tokenizer.save_pretrained)
        elsewhere = [folder.parent / name for name in names if (folder.parent / name).is_file()]
        hint = f"give {elsewhere[0]}, if that is it" if elsewhere else "give the file if it is elsewhere"
        raise InputError(f"no vocabulary ({', '.join(names)}): {hint}")
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    if file.suffix == ".json" and split is None and lowercase is None:
        copied = {file: "tokenizer.json"}
        copied |= {file.with_name(name): name for name in _TOKENIZER if file.with_name(name).is_file()}
        for one in copied:
            read_record(one)

        def copy(to: Path) -> None:
            for source, name in copied.items():
                shutil.copyfile(source, to / name)

        return _Tokenizer(file, 0, f"as {file.name} says", copy)
    tokens = read_vocabulary(file, folder, is_fairseq)
    with as_input_error(f"{file}: cannot be made a tokenizer"):
        tokenizer, reads = make_tokenizer(tokens, split or AUTO, lowercase)
    return _Tokenizer(file, max(tokens.ids.values()) + 1, reads, tokenizer.save_pretrained)

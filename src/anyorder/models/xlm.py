"""Weights and vocabulary of Hugging Face's XLM models (`FacebookAI/xlm-mlm-ende-1024` and its kin)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import FILE, Vocabulary
from anyorder.errors import InputError
from anyorder.files import read_json, read_tensors
from anyorder.models.storage import WEIGHTS, load_weights
from anyorder.models.transformer import TransformerConfig
from anyorder.models.translation import ModelConfig, TranslationModel


def load_xlm(folder: Path, config: dict[str, Any]) -> TranslationModel:
    """An XLM model as one of ours, with XLM's attention and its own vocabulary."""
    for key, plain in (("causal", False), ("asm", False), ("is_encoder", True)):
        if config.get(key, plain) != plain:
            raise InputError(f"{folder / 'config.json'}: {key} = {config[key]}; only masked XLM models are undirected")
    weights = _rename(read_tensors(folder / WEIGHTS), config["n_layers"])
    languages = _languages(config)
    model_config = ModelConfig(
        transformer=TransformerConfig(
            hidden_size=config["emb_dim"],
            num_layers=config["n_layers"],
            num_heads=config["n_heads"],
            max_positions=config["max_position_embeddings"],
            dropout=config.get("dropout", 0.1),
            source_sees_target=True,
        ),
        vocab_size=weights["transformer.tokens.weight"].shape[0],
        languages=languages,
        text=TextConfig(lowercase=_lowercase(folder)),
        activation="gelu" if config.get("gelu_activation", True) else "relu",
        language_embeddings="transformer.languages.weight" in weights,
        predicts_length=False,
    )
    vocabulary = _vocabulary(folder, model_config.vocab_size)
    model = TranslationModel(model_config, vocabulary)
    untrained = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("length.")}
    load_weights(model, {**weights, **untrained}, folder / WEIGHTS)
    return model


def _rename(weights: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """XLM's names to ours; keys and values lie in one matrix here."""
    names = {
        "embeddings.weight": "tokens.weight",
        "position_embeddings.weight": "positions.weight",
        "lang_embeddings.weight": "languages.weight",
        "layer_norm_emb.weight": "norm.weight",
        "layer_norm_emb.bias": "norm.bias",
    }
    for i in range(layers):
        for kind in ("weight", "bias"):
            names |= {
                f"attentions.{i}.q_lin.{kind}": f"layers.{i}.query.{kind}",
                f"attentions.{i}.out_lin.{kind}": f"layers.{i}.attended.{kind}",
                f"layer_norm1.{i}.{kind}": f"layers.{i}.norm_attention.{kind}",
                f"ffns.{i}.lin1.{kind}": f"layers.{i}.inner.{kind}",
                f"ffns.{i}.lin2.{kind}": f"layers.{i}.outer.{kind}",
                f"layer_norm2.{i}.{kind}": f"layers.{i}.norm_feedforward.{kind}",
            }
    found = {
        f"transformer.{ours}": weights[f"transformer.{xlm}"]
        for xlm, ours in names.items()
        if f"transformer.{xlm}" in weights
    }
    for i in range(layers):
        for kind in ("weight", "bias"):
            parts = [f"transformer.attentions.{i}.{part}_lin.{kind}" for part in ("k", "v")]
            if all(part in weights for part in parts):
                found[f"transformer.layers.{i}.key_value.{kind}"] = torch.cat([weights[part] for part in parts])
    if "pred_layer.proj.bias" in weights:
        found["output_bias"] = weights["pred_layer.proj.bias"]
    return {name: tensor.float() for name, tensor in found.items()}


def _languages(config: dict[str, Any]) -> tuple[str, ...]:
    numbers = config.get("lang2id") or {}
    ordered = tuple(sorted(numbers, key=numbers.__getitem__))
    if [numbers[language] for language in ordered] != list(range(config.get("n_langs", len(ordered)))):
        return tuple(f"language{i}" for i in range(config.get("n_langs", 1)))
    return ordered


def _lowercase(folder: Path) -> bool:
    """XLM's tokenizer lowers letters and drops accents unless its configuration says otherwise."""
    file = folder / "tokenizer_config.json"
    return bool(read_json(file).get("do_lowercase_and_remove_accent", True)) if file.exists() else True


def _vocabulary(folder: Path, tokens: int) -> Vocabulary:
    if (folder / FILE).exists():
        return Vocabulary.load(folder, tokens)
    numbers: dict[str, int] = {str(piece): int(i) for piece, i in read_json(folder / "vocab.json").items()}
    if len(numbers) != tokens:
        raise InputError(f"{folder / 'vocab.json'}: wrong vocabulary: {len(numbers)} entries, the model has {tokens}")
    try:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        raise InputError(f"{folder / 'merges.txt'}: no such file") from None
    merges = [(parts[0], parts[1]) for line in lines if len(parts := line.split()) >= 2 and line[0] != "#"]
    # Merges that only ever lead on to longer pieces are not in XLM's dictionary; they get numbers past its end.
    for left, right in merges:
        for piece in (left, right, left + right):
            numbers.setdefault(piece, len(numbers))
    return Vocabulary.from_merges(numbers, merges, tokens)

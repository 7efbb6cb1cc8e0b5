"""Weights and vocabulary of Hugging Face's XLM models (`FacebookAI/xlm-mlm-ende-1024` and its kin)."""

import re
from pathlib import Path

import torch
from torch import Tensor

from anyorder.data.text import TextConfig
from anyorder.data.vocabulary import FILE, Vocabulary
from anyorder.errors import InputError
from anyorder.models.native.storage import WEIGHTS, as_input_error, build
from anyorder.models.native.transformer import TransformerConfig
from anyorder.models.native.translation_model import ModelConfig, TranslationModel
from anyorder.records import Record, read_record, read_tensors


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
    if (folder / FILE).exists():
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

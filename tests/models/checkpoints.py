"""Tiny random Transformers checkpoints with their tokenizers, as other projects save them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from anyorder.data.packing import ranges
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.models.native.attention import QueryPositions, Segments

WORDS = [f"w{i}" for i in range(20)]
SPECIAL = ["[CLS]", "[PAD]", "[SEP]", "[MASK]", "[UNK]"]
VOCABULARY = [*WORDS[:7], *SPECIAL, *WORDS[7:]]  # special tokens are not the first ones
MASK, PAD = VOCABULARY.index("[MASK]"), VOCABULARY.index("[PAD]")
VOCAB_SIZE = len(VOCABULARY) + 3
"""The output layer is larger than the vocabulary, as it often is."""
HEADS, LAYERS, POSITIONS = 2, 2, 64


def tokenizer(delimiters: bool = True) -> PreTrainedTokenizerFast:
    """Words separated by spaces; `[CLS]` before and `[SEP]` after a text if it has delimiters."""
    words = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if delimiters:
        ids = [(token, VOCABULARY.index(token)) for token in ("[CLS]", "[SEP]")]
        words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    named = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    named["sep_token" if delimiters else "eos_token"] = "[SEP]"
    return PreTrainedTokenizerFast(tokenizer_object=words, **named)


_ENCODER = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 40, "max_position_embeddings": POSITIONS, "pad_token_id": PAD,
}  # fmt: skip
_DECODER = {**_ENCODER, "num_key_value_heads": 1, "eos_token_id": VOCABULARY.index("[SEP]"), "bos_token_id": None}
_DISTIL = {
    "vocab_size": VOCAB_SIZE, "dim": 24, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 40,
    "max_position_embeddings": POSITIONS, "pad_token_id": PAD,
}  # fmt: skip
_GPT2 = {
    "vocab_size": VOCAB_SIZE, "n_embd": 24, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS,
    "eos_token_id": VOCABULARY.index("[SEP]"), "bos_token_id": None,
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": _ENCODER,
    "DistilBertForMaskedLM": _DISTIL,
    "RobertaForMaskedLM": _ENCODER,
    "XLMRobertaForMaskedLM": _ENCODER,
    "ModernBertForMaskedLM": {**_ENCODER, "local_attention": 6, "global_attn_every_n_layers": 2},
    "EsmForMaskedLM": {
        **_ENCODER, "mask_token_id": MASK, "token_dropout": True, "position_embedding_type": "rotary",
    },
    "EuroBertForMaskedLM": {**_DECODER, "mask_token_id": MASK},
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _DECODER,
    "Qwen2ForCausalLM": _DECODER,
    "Qwen3ForCausalLM": {**_DECODER, "head_dim": 12},
    "GPT2LMHeadModel": _GPT2,
}
CLASSES = {**ENCODERS, **DECODERS}


def network(name: str) -> Any:
    """The plain Transformers class with random weights, undirected."""
    cls = getattr(transformers, name)
    config = cls.config_class(**CLASSES[name])
    if name in DECODERS:
        config.is_causal = False
    torch.manual_seed(len(name))
    model = cls(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    model.tie_weights()
    return model


def save(name: str, folder: Path) -> Any:
    """Write a checkpoint and return the network in it."""
    model = network(name)
    model.save_pretrained(folder)
    tokenizer(delimiters=name in ENCODERS).save_pretrained(folder)
    return model


def rewrite(folder: Path, config: dict[str, Any], rename: Callable[[str], str] = lambda name: name) -> None:
    """Give a checkpoint another config.json and other weight names."""
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    save_file({rename(key): value for key, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def logits_of(model: TransformersModel, *texts: list[int]) -> Tensor:
    """At all positions of all texts, end to end: (positions, vocab_size)."""
    batch = model.pack([Canvas(np.array(tokens)) for tokens in texts])
    at = QueryPositions(torch.from_numpy(ranges(batch.starts, batch.lengths)), Segments.of(batch.lengths))
    with torch.inference_mode():
        return model.logits(model.context(batch).hidden(torch.from_numpy(batch.packed.tokens), at))

"""A small Transformers encoder for puzzles (`BertForMaskedLM`), a token per cell, and its folder on disk.

The folder is a Transformers model like any other: config.json, model.safetensors and a character-level tokenizer.
Its config names the task.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from anyorder.errors import InputError, check_number
from anyorder.files import atomic_folder, write_tensors
from anyorder.models.hf.families import FAMILIES
from anyorder.models.hf.pretrained import TransformersModel, import_transformers
from anyorder.tasks.puzzles import PuzzleTask

if TYPE_CHECKING:
    from torch import nn
    from transformers import BertForMaskedLM, PreTrainedTokenizerFast

PAD, MASK, UNKNOWN = "[PAD]", "[MASK]", "[UNK]"
SPECIAL = (PAD, MASK, UNKNOWN)
"""The first ids; the task's symbols follow."""
MASK_ID, FIRST_SYMBOL = SPECIAL.index(MASK), len(SPECIAL)
TASK_KEY = "anyorder_task"
"""The entry of config.json that names the task."""


@dataclass(frozen=True)
class EncoderConfig:
    """Size of a puzzle model."""

    hidden_size: int = 256
    """Size of the hidden states."""
    num_layers: int = 8
    """Number of Transformer layers."""
    num_heads: int = 8
    """Number of attention heads; must divide the hidden size."""
    dropout: float = 0.0
    """Dropout on hidden states and attention; with generated puzzles, overfitting is rare."""

    def __post_init__(self) -> None:
        check_number("hidden_size", self.hidden_size, at_least=1, at_most=65_536, config=EncoderConfig)
        check_number("num_layers", self.num_layers, at_least=1, at_most=1000, config=EncoderConfig)
        check_number("num_heads", self.num_heads, at_least=1, at_most=65_536, config=EncoderConfig)
        check_number("dropout", self.dropout, at_least=0, below=1, config=EncoderConfig)
        if self.hidden_size % self.num_heads:
            message = f"{self.num_heads}: does not divide the hidden size {self.hidden_size}"
            raise InputError(message, "num_heads", EncoderConfig)


def new_encoder(task: PuzzleTask, encoder: EncoderConfig, seed: int) -> "BertForMaskedLM":
    """A model with random weights."""
    transformers = import_transformers()
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(task.symbols),
        hidden_size=encoder.hidden_size,
        num_hidden_layers=encoder.num_layers,
        num_attention_heads=encoder.num_heads,
        intermediate_size=4 * encoder.hidden_size,
        hidden_dropout_prob=encoder.dropout,
        attention_probs_dropout_prob=encoder.dropout,
        max_position_embeddings=task.cells,
        type_vocab_size=1,
        architectures=["BertForMaskedLM"],
        pad_token_id=SPECIAL.index(PAD),
        **{TASK_KEY: task.name},
    )
    torch.manual_seed(seed)
    return transformers.BertForMaskedLM(config)


def new_tokenizer(task: PuzzleTask) -> "PreTrainedTokenizerFast":
    """A character tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ids = {token: i for i, token in enumerate([*SPECIAL, *task.symbols])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, mask_token=MASK, unk_token=UNKNOWN, model_max_length=task.cells
    )


def as_model(network: "nn.Module", task: PuzzleTask) -> TransformersModel:
    """Wrap the network for the engine and freeze it."""
    return TransformersModel(network, new_tokenizer(task), FAMILIES["bert"], MASK_ID)


def save_encoder(model: "nn.Module", task: PuzzleTask, folder: Path) -> None:
    """Save a model; an existing one in the folder is replaced as a whole."""
    with atomic_folder(folder) as partial:
        model.config.save_pretrained(partial)  # type: ignore[union-attr, operator]
        write_tensors(partial / "model.safetensors", model.state_dict())
        new_tokenizer(task).save_pretrained(partial)

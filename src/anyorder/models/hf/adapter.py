"""A masked Transformers model as the decoding engine sees it. Finding and loading it happens elsewhere."""

import hashlib
import json
import re
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.data.packing import PackedBatch, ranges
from anyorder.errors import InputError
from anyorder.models.base import Canvas, CanvasBatch
from anyorder.models.hf.contexts import ROUND_CPU, BlockCausalContext, PaddedContext
from anyorder.models.hf.families import END_TOKENS, Family
from anyorder.models.hf.fixed_summation import sum_in_fixed_order

MASK = "[MASK]"
"""Marks a mask in texts, whatever the model's own mask token is."""


class TransformersModel:
    """A Transformers model and its tokenizer. `pretrained.load_transformers` loads one, and
    `pretrained.wrap_transformers` takes objects."""

    def __init__(
        self, network: Any, tokenizer: Any, family: Family, mask_token: int, path: Path | None = None, name: str = ""
    ):
        """network: an instance of the family's class. name: that of the folder if empty."""
        self.family = family
        self.tokenizer = tokenizer
        self.mask_token = mask_token
        self.is_shifted = family.is_shifted
        self.block_size = family.block_size
        self.path = path
        self.name = name or (path.name if path else "")
        self.network = network.eval().requires_grad_(False)
        sum_in_fixed_order(network)
        config = network.config
        if family.is_language_model:
            config.is_causal = False
        self.hidden_size: int = config.hidden_size
        self.vocab_size = len(network.get_output_embeddings().weight)
        padding = (config.pad_token_id, tokenizer.pad_token_id)
        self.padding_token: int = next((token for token in padding if token is not None), 0)
        self._mask_text = str(tokenizer.convert_ids_to_tokens(mask_token))
        self._mask_pattern = re.compile(f" *(?:{re.escape(MASK)}|{re.escape(self._mask_text)})")
        self._before, self._after = self._delimiters()
        reserved = config.pad_token_id + 1 if family.positions_after_padding else 0
        self.max_positions: int = config.max_position_embeddings - reserved
        """Maximum sequence length, delimiters included."""
        self.max_length = self.max_positions - len(self._before) - len(self._after)
        if not self.allowed_tokens.any():
            raise InputError(f"{self.name}: its tokenizer has no tokens but special ones")

    def generating(self) -> "TransformersModel":
        """The same model, allowed to end a text."""
        model = copy(self)
        model.allowed_tokens = self.allowed_tokens.copy()
        model.allowed_tokens[list(self.end_tokens)] = True
        model.allowed_tokens[self.mask_token] = False
        return model

    @property
    def device(self) -> torch.device:
        return self.network.device

    @cached_property
    def vocabulary_fingerprint(self) -> str:
        listed = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        return hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @cached_property
    def allowed_tokens(self) -> np.ndarray:
        """(vocab_size,) bool: the tokenizer's tokens, without special ones; `generating` adds end tokens."""
        allowed = np.zeros(self.vocab_size, bool)
        known = np.array(list(self.tokenizer.get_vocab().values()), np.int64)
        allowed[known[known < self.vocab_size]] = True
        added = self.tokenizer.added_tokens_decoder.items()
        special = {*self.tokenizer.all_special_ids, *(number for number, token in added if token.special)}
        allowed[[number for number in special if number < self.vocab_size]] = False
        allowed[self.mask_token] = False
        return allowed

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end a text. Encoders have none, unless their tokenizer names one that is not a delimiter, as
        in chat models."""
        numbers = [self.tokenizer.eos_token_id]
        if self.family.is_language_model:
            vocabulary, named = self.tokenizer.get_vocab(), self.network.config.eos_token_id
            numbers += named if isinstance(named, list) else [named]
            numbers += [vocabulary.get(token) for token in END_TOKENS]
        elif numbers[0] in [*self._before, *self._after]:
            return frozenset()
        return frozenset(number for number in numbers if number is not None and 0 <= number < self.vocab_size)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of texts in which `[MASK]` or the model's own mask token is a mask. No delimiters.

        A space before a mask is part of the masked token.
        """
        if not texts:
            return []
        marked = [self._mask_pattern.sub(lambda _: self._mask_text, text) for text in texts]
        encoded = self.tokenizer(marked, add_special_tokens=False)["input_ids"]
        return [np.array(ids, np.int64) for ids in encoded]

    def pack(self, canvases: Sequence[Canvas]) -> CanvasBatch:
        lengths = np.array([len(canvas.tokens) for canvas in canvases])
        sizes = lengths + len(self._before) + len(self._after)
        tokens = np.concatenate([part for canvas in canvases for part in (self._before, canvas.tokens, self._after)])
        packed = PackedBatch(tokens, ranges(np.zeros_like(sizes), sizes), np.zeros(len(tokens), np.int64), sizes)
        return CanvasBatch(packed, packed.starts + len(self._before), lengths)

    def context(self, batch: CanvasBatch) -> PaddedContext | BlockCausalContext:
        kind = PaddedContext if self.block_size is None else BlockCausalContext
        return kind(self, batch.packed.sizes)

    def logits(self, hidden: Tensor) -> Tensor:
        rows = len(hidden)
        states = F.pad(hidden, (0, 0, 0, -rows % ROUND_CPU))
        for name in self.family.head:
            states = getattr(self.network, name)(states)
        return states[:rows].float()

    def to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        return self.tokenizer.convert_ids_to_tokens([int(number) for number in ids])

    def to_text(self, ids: Sequence[int] | np.ndarray, task: str) -> str:
        hidden = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        text = self.tokenizer.decode([int(number) for number in ids if int(number) not in hidden])
        return text if self.family.has_spaces else "".join(text.split())

    def _delimiters(self) -> tuple[np.ndarray, np.ndarray]:
        """What the tokenizer puts before and after a text."""
        ids = self.tokenizer(self._mask_text)["input_ids"]
        if self.mask_token not in ids:
            raise InputError(f"{self.name}: its tokenizer does not read the mask token, '{self._mask_text}'")
        at = ids.index(self.mask_token)
        return np.array(ids[:at], np.int64), np.array(ids[at + 1 :], np.int64)

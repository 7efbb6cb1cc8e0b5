"""A masked model of Transformers as the decoding engine sees it. How it is found and read is not known here.

Sequences are padded on the right, and those of one padded length run together; those that need no padding run apart,
without an attention mask. On the CPU a sequence's result does not depend on its batch: its padded length and whether it
has a mask depend on the sequence alone, and linear layers sum in a fixed order.
"""

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
from torch import Tensor, nn

from anyorder.data.packing import PackedBatch, ranges, starts_of
from anyorder.errors import InputError
from anyorder.models.attention import QueryPositions, to_device
from anyorder.models.base import Canvas, CanvasBatch, Context
from anyorder.models.families import END_TOKENS, Family
from anyorder.models.transformer import rowwise_linear

MASK = "[MASK]"
"""What stands for a mask in texts, whatever the model calls its own."""
ROUND_CPU, ROUND_CUDA = 16, 64
"""Padded lengths are multiples of this. Elementwise kernels treat the last few numbers of a tensor differently; with
multiples of 16 rows there are none on the CPU. On CUDA few and large batches are faster."""


class TransformersModel:
    """A Transformers model and its tokenizer. Call `pretrained.load_transformers` for one on disk."""

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        family: Family,
        mask_token: int,
        is_shifted: bool = False,
        block_size: int | None = None,
        path: Path | None = None,
    ):
        """network: an instance of the family's class. is_shifted, block_size: see `Family`."""
        self.family = family
        self.tokenizer = tokenizer
        self.mask_token = mask_token
        self.is_shifted = is_shifted
        self.block_size = block_size
        self.path = path
        self._is_generating = False
        self.network = network.eval().requires_grad_(False)
        _sum_in_fixed_order(network)
        self._mask_text = str(tokenizer.convert_ids_to_tokens(mask_token))
        self._mask_pattern = re.compile(f" *(?:{re.escape(MASK)}|{re.escape(self._mask_text)})")
        self._before, self._after = self._delimiters()
        if not self.allowed_tokens.any():
            raise InputError(f"{self.name}: its tokenizer has no tokens but special ones")

    def generating(self) -> "TransformersModel":
        """The same model, allowed to end a text."""
        model = copy(self)
        model._is_generating = True
        model.__dict__.pop("allowed_tokens", None)
        return model

    @property
    def name(self) -> str:
        return self.path.name if self.path else ""

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def hidden_size(self) -> int:
        return self.network.config.hidden_size

    @property
    def vocab_size(self) -> int:
        return len(self.network.get_output_embeddings().weight)

    @cached_property
    def vocabulary_fingerprint(self) -> str:
        listed = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        return hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @cached_property
    def allowed_tokens(self) -> np.ndarray:
        """(vocab_size,) bool: what the tokenizer knows, without special tokens; with end tokens when generating."""
        allowed = np.zeros(self.vocab_size, bool)
        known = np.array(list(self.tokenizer.get_vocab().values()), np.int64)
        allowed[known[known < self.vocab_size]] = True
        added = self.tokenizer.added_tokens_decoder.items()
        special = {*self.tokenizer.all_special_ids, *(number for number, token in added if token.special)}
        allowed[[number for number in special if number < self.vocab_size]] = False
        if self._is_generating:
            allowed[list(self.end_tokens)] = True
        allowed[self.mask_token] = False
        return allowed

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end a text; none for models that do not generate texts."""
        if not self.family.is_language_model:
            return frozenset()
        vocabulary = self.tokenizer.get_vocab()
        named = self.network.config.eos_token_id
        numbers = [*(named if isinstance(named, list) else [named]), self.tokenizer.eos_token_id]
        numbers += [vocabulary.get(token) for token in END_TOKENS]
        return frozenset(number for number in numbers if number is not None and 0 <= number < self.vocab_size)

    @cached_property
    def max_positions(self) -> int:
        """How many tokens a sequence may have, delimiters included."""
        config = self.network.config
        reserved = config.pad_token_id + 1 if self.family.positions_after_padding else 0
        return config.max_position_embeddings - reserved

    @property
    def max_length(self) -> int:
        return self.max_positions - len(self._before) - len(self._after)

    @property
    def padding_token(self) -> int:
        config = self.network.config
        return next((one for one in (config.pad_token_id, self.tokenizer.pad_token_id) if one is not None), 0)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of texts in which `[MASK]`, or the model's own mask, stands for a mask. No delimiters.

        A space before a mask belongs to the token that is masked.
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

    def context(self, batch: CanvasBatch) -> "PaddedContext":
        return PaddedContext(self, batch.packed.sizes)

    def logits(self, hidden: Tensor) -> Tensor:
        rows = len(hidden)
        states = F.pad(hidden, (0, 0, 0, -rows % ROUND_CPU))
        for name in self.family.head:
            states = getattr(self.network, name)(states)
        return states[:rows].float()

    def to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        return self.tokenizer.convert_ids_to_tokens([int(number) for number in ids])

    def to_text(self, ids: Sequence[int] | np.ndarray, task: str) -> str:
        text = self.tokenizer.decode([int(number) for number in ids], skip_special_tokens=True)
        return text if self.family.has_spaces else "".join(text.split())

    def _delimiters(self) -> tuple[np.ndarray, np.ndarray]:
        """What the tokenizer puts before and after a text."""
        ids = self.tokenizer(self._mask_text)["input_ids"]
        if self.mask_token not in ids:
            raise InputError(f"{self.name}: its tokenizer does not read the mask token, '{self._mask_text}'")
        at = ids.index(self.mask_token)
        return np.array(ids[:at], np.int64), np.array(ids[at + 1 :], np.int64)


class PaddedContext(Context):
    """Sequences that run as a whole each time they are asked about, in groups of one padded length."""

    def __init__(self, model: TransformersModel, sizes: np.ndarray):
        """sizes: (B,) tokens of each sequence, delimiters included."""
        self._model = model
        self._plan(sizes)

    def _plan(self, sizes: np.ndarray) -> None:
        """Which sequences run together, and where their outputs lie."""
        model, device = self._model, self._model.device
        self._sizes = sizes
        self._groups: list[tuple[Tensor, Tensor, Tensor | None]] = []
        """Of each group, which packed tokens (B, L), which of them are real (B, L), and the attention mask."""
        starts = starts_of(sizes)
        step = ROUND_CUDA if device.type == "cuda" else ROUND_CPU
        padded = np.minimum(-(-sizes // step) * step, model.max_positions)
        groups = 2 * padded + (sizes < padded)
        row_of = np.zeros(int(sizes.sum()), np.int64)
        done = 0
        for group in np.unique(groups).tolist():
            members = np.flatnonzero(groups == group)
            column = np.arange(group // 2)
            real = column < sizes[members, None]
            take = starts[members, None] + np.where(real, column, 0)
            self._groups.append((to_device(take, device), to_device(real, device), self._attention_mask(real)))
            row_of[take[real]] = done + np.flatnonzero(real)
            done += real.size
        if model.is_shifted:  # the first token has no output before it and is predicted by its own
            before = np.arange(len(row_of)) - 1
            before[starts] += 1
            row_of = row_of[before]
        self._row_of = to_device(row_of, device)
        """(packed tokens,) where the output that predicts each lies among those of all groups."""

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        body = self._model.network.base_model
        options = {"use_cache": False} if self._model.family.is_language_model else {}
        outputs = []
        for take, real, mask in self._groups:
            ids = tokens[take].masked_fill(~real, self._model.padding_token)
            states = body(input_ids=ids, attention_mask=mask, **options).last_hidden_state
            outputs.append(states.flatten(0, 1))
        return torch.cat(outputs)[self._row_of[at.rows]]

    def _attention_mask(self, real: np.ndarray) -> Tensor | None:
        """(B, L), or (B, 1, L, L) for block-causal attention; None where everything sees everything."""
        if self._model.block_size is not None:
            block = np.arange(real.shape[1]) // self._model.block_size
            sees = (block <= block[:, None]) & real[:, None, None, :]
            return to_device(sees, self._model.device)
        return None if real.all() else to_device(real.astype(np.int64), self._model.device)

    def repeat(self, copies: int) -> "PaddedContext":
        return PaddedContext(self._model, np.repeat(self._sizes, copies))

    def keep_first(self, count: int) -> None:
        self._plan(self._sizes[:count])

    def select(self, canvases: np.ndarray) -> "PaddedContext":
        return PaddedContext(self._model, self._sizes[canvases])


class _Linear(nn.Linear):
    """A linear layer that sums in a fixed order on the CPU."""

    def forward(self, states: Tensor) -> Tensor:
        if states.is_cuda or states.dtype != torch.float32:
            return super().forward(states)
        return _rowwise(states, self.weight, self.bias)


class _OutputLinear(_Linear):
    """The output layer. Its results are float32 on CUDA too: half precision would tie the best tokens."""

    def forward(self, states: Tensor) -> Tensor:
        if not states.is_cuda or states.dtype == torch.float32:
            return super().forward(states)
        logits = torch.mm(states, self.weight.t(), out_dtype=torch.float32)
        return logits if self.bias is None else logits + self.bias.float()


def _sum_in_fixed_order(network: nn.Module) -> None:
    """Linear layers become those of this module, weights untouched."""
    from transformers.pytorch_utils import Conv1D

    class RowwiseConv1D(Conv1D):
        """GPT-2's linear layer, whose weights are transposed."""

        def forward(self, states: Tensor) -> Tensor:
            if states.is_cuda or states.dtype != torch.float32:
                return super().forward(states)
            return _rowwise(states, self.weight.t(), self.bias)

    output = network.get_output_embeddings()  # type: ignore[operator]
    for module in network.modules():
        if type(module) is nn.Linear:
            module.__class__ = _OutputLinear if module is output else _Linear
        elif type(module) is Conv1D:
            module.__class__ = RowwiseConv1D


def _rowwise(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """states: (..., in); weight: (out, in)"""
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return rowwise_linear(states.flatten(0, -2), weight, bias).unflatten(0, states.shape[:-1])

"""Contexts of Transformers models: sequences that run in full, or in blocks whose results are cached.

On the CPU a sequence's result does not depend on its batch: its padded length and whether it has a mask depend on the
sequence alone.
"""

from math import lcm
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import padded_rows, ranges, round_up, same_shapes, starts_of
from anyorder.device import to_device
from anyorder.models.base import Context
from anyorder.models.native.attention import QueryPositions, store

if TYPE_CHECKING:
    from anyorder.models.hf.pretrained import TransformersModel

ROUND_CPU, ROUND_CUDA = 16, 64
"""Padded lengths are multiples of this. Elementwise kernels handle the last few elements of a tensor differently; with
multiples of 16 rows there is no such remainder on the CPU. On CUDA, fewer and larger batches are faster."""


class PaddedContext(Context):
    """Right-padded sequences that are run in full on every call; those of the same padded length run together.

    Sequences that need no padding run separately, without an attention mask. Nothing is padded for models whose results
    would depend on it, or that run sequences one by one.
    """

    def __init__(self, model: "TransformersModel", sizes: np.ndarray):
        """sizes: (B,) length of each sequence, delimiters included."""
        self._model = model
        self._plan(sizes)

    def _plan(self, sizes: np.ndarray) -> None:
        """Group the sequences, and locate the output of each token."""
        model, device = self._model, self._model.device
        self._sizes = sizes
        self._groups: list[tuple[Tensor, Tensor, Tensor | None]] = []
        """Per group: indices of its packed tokens (B, L), which of them are real (B, L), and the attention mask."""
        starts = starts_of(sizes)
        step = ROUND_CUDA if device.type == "cuda" else ROUND_CPU
        alone = model.runs_alone
        is_padded = model.family.is_padded and not alone
        padded = np.minimum(round_up(sizes, step), model.max_positions) if is_padded else sizes
        apart = np.arange(len(sizes)) if alone else np.zeros_like(sizes)
        row_of = np.zeros(int(sizes.sum()), np.int64)
        done = 0
        for (width, has_padding, _), members in same_shapes(padded, sizes < padded, apart):
            take, real = padded_rows(starts[members], sizes[members], width)
            mask = to_device(real.astype(np.int64), device) if has_padding else None
            self._groups.append((to_device(take, device), to_device(real, device), mask))
            row_of[take[real]] = done + np.flatnonzero(real)
            done += real.size
        self._row_of = to_device(row_of[predicted_by(sizes, model.is_shifted)], device)
        """(packed tokens,) for each token, the index of the output that predicts it, among those of all groups."""

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        body = self._model.network.base_model
        options = {"use_cache": False} if self._model.family.is_language_model else {}
        outputs = []
        for take, real, mask in self._groups:
            ids = tokens[take].masked_fill(~real, self._model.padding_token)
            states = body(input_ids=ids, attention_mask=mask, **options).last_hidden_state
            outputs.append(states.flatten(0, 1))
        return torch.cat(outputs)[self._row_of[at.rows]]

    def keep_first(self, count: int) -> None:
        self._plan(self._sizes[:count])

    def select(self, canvases: np.ndarray) -> "PaddedContext":
        return PaddedContext(self._model, self._sizes[canvases])


def predicted_by(sizes: np.ndarray, is_shifted: bool) -> np.ndarray:
    """(packed tokens,) the token whose output predicts each one. sizes: (B,) length of each sequence"""
    rows = np.arange(int(sizes.sum()))
    if is_shifted:  # the first token has no output before it and is predicted by its own
        rows -= 1
        rows[starts_of(sizes)] += 1
    return rows


_UNKNOWN = -1
"""Marks positions where nothing is cached. No token has this id."""


class BlockCausalContext(Context):
    """Sequences of a block-causal model, with a cache of everything computed that is still valid.

    A position sees its own block and the blocks before it. So the keys, values and outputs of a block depend only on
    the tokens up to its end, and they stay valid until one of these tokens changes. Each call to `hidden` runs the
    blocks from the first with a changed token to the last that is needed. This is correct for every order, schedule and
    revision. It is fast if blocks are filled from left to right: then each step runs only the block that is being
    filled. Changes are detected by comparing tokens. The host waits for the device once per call, to learn which part
    of each sequence must run.

    On the CPU, sequences run in tiles that are always at the same positions and see the same number of keys. So a
    result is the same, bit for bit, whether the blocks before it were cached or recomputed.

    Cached tensors have one more row than there are tokens. It comes first; results for padding are written there.
    """

    def __init__(self, model: "TransformersModel", sizes: np.ndarray):
        """sizes: (B,) tokens of each sequence, delimiters included."""
        assert model.block_size is not None
        self._model, self._sizes, self._block = model, sizes, model.block_size
        device, count = model.device, int(sizes.sum())
        self._tile = lcm(self._block, ROUND_CPU) if _runs_in_tiles(device) else self._block
        """Runs start and stop at multiples of this."""
        owner, positions = np.repeat(np.arange(len(sizes)), sizes), ranges(np.zeros_like(sizes), sizes)
        self._owner, self._positions = to_device(owner, device), to_device(positions, device)
        """(packed tokens,) the sequence that each belongs to, and its position there."""
        self._predicted_by = to_device(predicted_by(sizes, model.is_shifted), device)
        self._known = torch.full((count,), _UNKNOWN, device=device)
        """(packed tokens,) the tokens from which the cached values were computed."""
        self._outputs = torch.empty(count + 1, model.hidden_size, dtype=model.network.dtype, device=device)
        self._cache: list[Tensor] = []
        """Per layer (packed tokens + 1, 2, heads, size): keys and values."""

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        asked = self._predicted_by[at.rows]
        starts, stops = self._missing(tokens, asked)
        run = self._run_tiles if _runs_in_tiles(tokens.device) else self._run_groups
        run(tokens, starts, stops)
        self._remember(tokens, starts, stops)
        return self._outputs[asked + 1]

    def _missing(self, tokens: Tensor, asked: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(B,) and (B,): where to start and stop in each sequence."""
        behind = len(tokens) + self._tile
        changed = torch.where(tokens != self._known, self._positions, behind)
        nowhere = tokens.new_full((len(self._sizes),), -1)
        first = nowhere.scatter_reduce(0, self._owner, changed, "amin", include_self=False)
        last = nowhere.scatter_reduce(0, self._owner[asked], self._positions[asked], "amax")
        first, last = torch.stack([first, last]).cpu().numpy() // self._tile
        stops = np.minimum((last + 1) * self._tile, self._sizes)
        return np.minimum(first * self._tile, stops), stops

    def _run_tiles(self, tokens: Tensor, starts: np.ndarray, stops: np.ndarray) -> None:
        """Tile by tile, each for all sequences that need it: its shape depends only on its position."""
        for start in range(int(starts.min()), int(stops.max()), self._tile):
            members = np.flatnonzero((starts <= start) & (start < stops))
            if len(members):
                stop, first = start + self._tile, np.full(len(members), start)
                self._run(tokens, members, first, np.minimum(stop, stops[members]), self._tile, stop)

    def _run_groups(self, tokens: Tensor, starts: np.ndarray, stops: np.ndarray) -> None:
        """Group sequences with the same padded lengths."""
        widths, seen = round_up(stops - starts, ROUND_CPU), round_up(stops, ROUND_CUDA)
        for (width, keys), members in same_shapes(widths, seen):
            if width:
                self._run(tokens, members, starts[members], stops[members], width, keys)

    def _run(
        self, tokens: Tensor, members: np.ndarray, starts: np.ndarray, stops: np.ndarray, width: int, seen: int
    ) -> None:
        """Run sequences through the network; cache the results.

        members, starts, stops: (B,) which sequences, and which of their positions. width, seen: the number of positions
        that run, and that are visible, in each; with padding.
        """
        device, stop = self._model.device, stops[:, None]
        rows = starts_of(self._sizes)[members, None]
        query, key = starts[:, None] + np.arange(width), np.arange(seen)
        positions = np.minimum(query, stop - 1)  # padding repeats the last one
        visible = (key // self._block <= positions[:, :, None] // self._block) & (key < stop)[:, None, :]
        kept = _KeptKeysValues(
            self._cache,
            len(self._outputs),
            written=to_device(np.where(query < stop, rows + query + 1, 0).reshape(-1), device),
            seen=to_device(rows + np.minimum(key, stop - 1) + 1, device),
        )
        states = self._model.network.base_model(
            input_ids=tokens[to_device(rows + positions, device)],
            attention_mask=to_device(visible[:, None], device),
            position_ids=to_device(positions, device),
            past_key_values=kept,
            use_cache=True,
        ).last_hidden_state
        self._outputs.index_copy_(0, kept.written, states.flatten(0, 1))

    def _remember(self, tokens: Tensor, starts: np.ndarray, stops: np.ndarray) -> None:
        """Record the tokens that the cache is based on. What comes after a changed block is invalidated."""
        starts = np.where(starts < stops, starts, self._sizes)
        start, stop = (to_device(one, tokens.device)[self._owner] for one in (starts, stops))
        now = torch.where(self._positions < stop, tokens, _UNKNOWN)
        self._known = torch.where(self._positions < start, self._known, now)

    def keep_first(self, count: int) -> None:
        self._sizes = self._sizes[:count]
        tokens = int(self._sizes.sum())
        for name in ("_owner", "_positions", "_predicted_by", "_known"):
            setattr(self, name, getattr(self, name)[:tokens])
        self._outputs = self._outputs[: tokens + 1]
        self._cache = [layer[: tokens + 1] for layer in self._cache]

    def select(self, canvases: np.ndarray) -> "BlockCausalContext":
        sizes = self._sizes[canvases]
        rows = to_device(ranges(starts_of(self._sizes)[canvases], sizes), self._model.device)
        kept = torch.cat([rows.new_zeros(1), rows + 1])
        chosen = BlockCausalContext(self._model, sizes)
        chosen._known = self._known[rows]
        chosen._outputs = self._outputs[kept]
        chosen._cache = [layer[kept] for layer in self._cache]
        return chosen


def _runs_in_tiles(device: torch.device) -> bool:
    """Many small runs, so that results agree bit for bit. On CUDA they do not; fewer, larger runs are faster."""
    return device.type == "cpu"


class _KeptKeysValues:
    """Passed to Transformers as a cache: stores new keys and values in their rows, and returns all visible ones."""

    def __init__(self, cache: list[Tensor], rows: int, written: Tensor, seen: Tensor):
        """rows: size of the cache; written: (B * Q,) rows of the queries; seen: (B, K) rows of the keys."""
        self._cache, self._rows = cache, rows
        self.written, self._seen = written, seen

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """keys, values: (B, heads, Q, size) of the queries; returns those of all visible positions."""
        new = torch.stack([keys.transpose(1, 2), values.transpose(1, 2)], 2).flatten(0, 1)  # (B * Q, 2, heads, size)
        if layer == len(self._cache):
            self._cache.append(new.new_zeros(self._rows, *new.shape[1:]))
        store(self._cache[layer], self.written, new)
        seen = self._cache[layer][self._seen]
        return seen[:, :, 0].transpose(1, 2), seen[:, :, 1].transpose(1, 2)

    def get_seq_length(self, layer: int = 0) -> int:
        """Positions are always given, so none are derived from this."""
        return 0

"""Prefix cache and dual cache of Fast-dLLM (Wu et al. 2025, arXiv 2505.22618), for full attention decoded in blocks.

When a block begins, the whole sequence runs. Until the block is finished, later passes run only the block (`prefix`:
and what comes after it), with the keys and values of everything else as they were when the block began. With full
attention these would change with every token that is filled, so results are approximate.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import ranges, round_up, same_shapes, starts_of
from anyorder.device import to_device
from anyorder.models.base import CanvasBatch, Context
from anyorder.models.hf.contexts import ROUND_CPU, ROUND_CUDA, predicted_by
from anyorder.models.native.attention import QueryPositions, store

if TYPE_CHECKING:
    from anyorder.models.hf.pretrained import TransformersModel


@dataclass(frozen=True)
class BlockCache:
    """What is kept between the passes of a block, and for how long."""

    kind: Literal["prefix", "dual"]
    """prefix: what comes before the block. dual: what comes after it, too."""
    block_size: int
    """Masked positions in a block, as in the schedule `blocks:B`."""
    passes: int | None = None
    """The whole sequence runs again after so many passes, too; None: only when a block begins."""

    @property
    def name(self) -> str:
        return self.kind if self.passes is None else f"{self.kind}:{self.passes}"


class BlockCacheContext(Context):
    """Sequences of which each call to `hidden` runs either the block that is being filled or everything.

    The current block is that of the leftmost position asked about. Everything runs when another block becomes the
    current one, when a token outside of it has changed (a revision), or after so many passes. Outputs of positions that
    do not run are those of an earlier pass. The host waits for the device once per call, to learn which block it is.

    On the CPU a sequence's result does not depend on its batch: the shapes that it runs in depend on itself alone.
    """

    def __init__(self, model: "TransformersModel", batch: CanvasBatch, cache: BlockCache):
        sizes, device = batch.packed.sizes, model.device
        self._model, self._cache, self._sizes = model, cache, sizes
        masked = batch.masked(model.mask_token)
        first, self._starts, self._stops = _blocks(masked, sizes, cache.block_size)
        lengths = self._stops - self._starts
        block_of = np.full(len(masked), _NONE)
        block_of[ranges(first, lengths)] = np.repeat(np.arange(len(lengths)), lengths)
        self._fillable, self._block_of = to_device(masked, device), to_device(block_of, device)
        """(packed tokens,) which were masked at first, and the block that each is in."""
        self._current, self._age = np.full(len(sizes), _NONE), np.zeros(len(sizes), np.int64)
        """(B,) the block for which each sequence has run as a whole, and the passes since, that one included."""
        self._known = to_device(batch.packed.tokens, device)
        """(packed tokens,) as of the last pass."""
        self._outputs = torch.empty(len(masked), model.hidden_size, dtype=model.network.dtype, device=device)
        padded = np.minimum(round_up(sizes, ROUND_CUDA if device.type == "cuda" else ROUND_CPU), model.max_positions)
        self._groups = [_Group(width, sizes, members) for (width, _), members in same_shapes(padded, sizes < padded)]
        self._lay_out()

    def _lay_out(self) -> None:
        """Where the sequences are in the packed tokens."""
        device, sizes = self._model.device, self._sizes
        self._begins = starts_of(sizes)
        self._owner = to_device(np.repeat(np.arange(len(sizes)), sizes), device)
        self._positions = to_device(ranges(np.zeros_like(sizes), sizes), device)
        self._predicted_by = to_device(predicted_by(sizes, self._model.is_shifted), device)

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        first, block, has_changed = self._asked(tokens, at.rows)
        anew = has_changed | (block != self._current)
        if self._cache.passes is not None:
            anew |= self._age >= self._cache.passes
        self._current, self._age, self._known = block, np.where(anew, 1, self._age + 1), tokens.clone()
        # In shifted models the block's first token is predicted by the output before the block.
        starts = np.minimum(self._starts[block], np.maximum(first - self._model.is_shifted, 0))
        stops = self._stops[block] if self._cache.kind == "dual" else self._sizes
        widths = round_up(stops - starts, ROUND_CPU)
        for group in self._groups:
            own = group.members
            if len(whole := np.flatnonzero(anew[own])):
                self._run(tokens, group, whole)
            if len(rest := np.flatnonzero(~anew[own])):
                for (width,), chosen in same_shapes(widths[own[rest]]):
                    slots = rest[chosen]
                    self._run(tokens, group, slots, (starts[own[slots]], stops[own[slots]], width))
        return self._outputs[self._predicted_by[at.rows]]

    def _asked(self, tokens: Tensor, rows: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B,) each: the leftmost position asked about, its block, and whether a token outside of that has changed."""
        asked = torch.where(self._fillable[rows], rows, len(tokens))  # some orders look at a delimiter, too
        first = rows.new_full((len(self._sizes),), len(tokens))
        first = first.scatter_reduce(0, self._owner[rows], asked, "amin")
        block = self._block_of[first]
        changed = (tokens != self._known) & (self._block_of != block[self._owner])
        has_changed = torch.zeros_like(first).index_add_(0, self._owner, changed.long())
        found: np.ndarray = torch.stack([self._positions[first], block, has_changed]).cpu().numpy()
        return found[0], found[1], found[2] > 0

    def _run(
        self, tokens: Tensor, group: "_Group", slots: np.ndarray, part: tuple[np.ndarray, np.ndarray, int] | None = None
    ) -> None:
        """Run sequences of a group, or only a part of each: where it starts, where it stops, and its padded length."""
        run = group.run(slots, part, tokens.device)
        states = self._model.network.base_model(
            input_ids=tokens[run.rows],
            attention_mask=run.mask,
            position_ids=run.positions,
            past_key_values=_FrozenKeysValues(group, run),
            use_cache=True,
        ).last_hidden_state
        self._outputs.index_copy_(0, run.real_rows, run.without_padding(states.flatten(0, 1)))

    def keep_first(self, count: int) -> None:
        self._sizes, self._current, self._age = self._sizes[:count], self._current[:count], self._age[:count]
        total = int(self._sizes.sum())
        for name in _BY_TOKEN:
            setattr(self, name, getattr(self, name)[:total])
        self._groups = [group.first(staying) for group in self._groups if (staying := (group.members < count).sum())]
        self._lay_out()

    def select(self, canvases: np.ndarray) -> "BlockCacheContext":
        chosen, sizes = copy(self), self._sizes[canvases]
        chosen._sizes, chosen._current, chosen._age = sizes, self._current[canvases], self._age[canvases]
        rows = to_device(ranges(self._begins[canvases], sizes), self._model.device)
        for name in _BY_TOKEN:
            setattr(chosen, name, getattr(self, name)[rows])
        chosen._groups = []
        for group in self._groups:
            if len(members := np.flatnonzero(np.isin(canvases, group.members))):
                slots = to_device(np.searchsorted(group.members, canvases[members]), self._model.device)
                layers = [group.sequences(layer)[slots].flatten(0, 1) for layer in group.layers]
                chosen._groups.append(_Group(group.width, sizes, members, layers))
        chosen._lay_out()
        return chosen


_NONE = -1
"""Marks tokens in no block, and sequences that have not run."""
_BY_TOKEN = ("_fillable", "_block_of", "_known", "_outputs")
"""What `BlockCacheContext` holds for every packed token."""


def _blocks(masked: np.ndarray, sizes: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(blocks,) each: the packed token that begins it, and where it begins and ends in its sequence.

    A block is so many masked positions and what is given between them, as in the schedule `blocks:B`.
    masked: (packed tokens,) bool
    """
    rows = np.flatnonzero(masked)
    owner = np.repeat(np.arange(len(sizes)), sizes)[rows]
    rank = ranges(np.zeros_like(sizes), np.bincount(owner, minlength=len(sizes)))
    begins = np.flatnonzero(rank % block_size == 0)
    ends = np.append(begins, len(rows))[1:] - 1
    offsets = starts_of(sizes)[owner[begins]]
    return rows[begins], rows[begins] - offsets, rows[ends] - offsets + 1


@dataclass(frozen=True)
class _Run:
    """What the network runs on: b sequences of w columns, or a part of each. Where padding is needed, the last real
    column repeats."""

    is_whole: bool
    rows: Tensor
    """(b, w) in the packed tokens"""
    positions: Tensor
    """(b, w) in the sequences"""
    mask: Tensor | None
    """(b, 1, w, keys) bool; None if no sequence is padded."""
    slots: Tensor | None
    """(b,) of the sequences in their group; None if they are all of it."""
    real: Tensor | None
    """(real columns,) indices in the flattened (b, w); None if there is no padding."""
    real_rows: Tensor
    """(real columns,) in the packed tokens"""
    written: Tensor
    """(real columns,) in the group's keys and values"""

    def without_padding(self, values: Tensor) -> Tensor:
        """(b * w, ...) to (real columns, ...)"""
        return values if self.real is None else values[self.real]


class _Group:
    """Sequences of the same padded length, and the keys and values of all their positions."""

    def __init__(self, width: int, sizes: np.ndarray, members: np.ndarray, layers: Sequence[Tensor] = ()):
        """sizes: of all sequences of the context; members: which of them are in this group, ascending."""
        self.width, self.members, self.layers = width, members, list(layers)
        """layers: (members * width, 2, heads, size) each. What is there for padding stays 0."""
        self._sizes, self._begins = sizes[members], starts_of(sizes)[members]
        self._last: tuple[bytes, _Run] | None = None

    def sequences(self, layer: Tensor) -> Tensor:
        """(members, width, 2, heads, size)"""
        return layer.view(-1, self.width, *layer.shape[1:])

    def first(self, count: int) -> "_Group":
        """The first sequences alone, whose keys and values do not move."""
        sizes, layers = self._sizes[:count], [layer[: count * self.width] for layer in self.layers]
        chosen = _Group(self.width, sizes, np.arange(count), layers)
        chosen.members, chosen._begins = self.members[:count], self._begins[:count]
        return chosen

    def run(self, slots: np.ndarray, part: tuple[np.ndarray, np.ndarray, int] | None, device: torch.device) -> _Run:
        """See `BlockCacheContext._run`. All passes of a block are alike, so the last answer is remembered."""
        starts, stops, width = part or (np.zeros_like(slots), self._sizes[slots], self.width)
        key = np.concatenate([slots, starts, stops, [width, part is None]]).tobytes()
        if self._last is None or self._last[0] != key:
            columns = starts[:, None] + np.arange(width)
            is_real = (columns < stops[:, None]).reshape(-1)
            positions = np.minimum(columns, stops[:, None] - 1)
            rows = self._begins[slots, None] + positions
            written = slots[:, None] * self.width + positions
            mask, visible = None, np.arange(self.width) < self._sizes[slots, None]
            if not visible.all():
                mask = to_device(visible, device)[:, None, None].expand(-1, 1, width, -1)
            self._last = (
                key,
                _Run(
                    is_whole=part is None,
                    rows=to_device(rows, device),
                    positions=to_device(positions, device),
                    mask=mask,
                    slots=None if len(slots) == len(self.members) else to_device(slots, device),
                    real=None if is_real.all() else to_device(np.flatnonzero(is_real), device),
                    real_rows=to_device(rows.reshape(-1)[is_real], device),
                    written=to_device(written.reshape(-1)[is_real], device),
                ),
            )
        return self._last[1]


class _FrozenKeysValues:
    """Passed to Transformers as a cache: stores what has been computed, and returns it with all that is kept."""

    def __init__(self, group: _Group, run: _Run):
        self._group, self._run = group, run

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """keys, values: (b, heads, w, size) of what runs; returns those of whole sequences, (b, heads, keys, size)."""
        group, run = self._group, self._run
        new = torch.stack([keys.transpose(1, 2), values.transpose(1, 2)], 2).flatten(0, 1)  # (b * w, 2, heads, size)
        if layer == len(group.layers):
            group.layers.append(new.new_zeros(len(group.members) * group.width, *new.shape[1:]))
        store(group.layers[layer], run.written, run.without_padding(new))
        if run.is_whole:
            return keys, values
        kept = group.sequences(group.layers[layer])
        kept = kept if run.slots is None else kept[run.slots]
        return kept[:, :, 0].transpose(1, 2), kept[:, :, 1].transpose(1, 2)

    def get_mask_sizes(self, query_length: int, layer: int) -> tuple[int, int]:
        """The number of keys, and the position of the first."""
        return self._group.width, 0

    def get_query_offset(self, layer: int = 0) -> int:
        """Positions are always given, so none are derived from this or the next."""
        return 0

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

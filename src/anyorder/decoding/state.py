"""Canvases being filled: packed for the model, padded (B, T) for orders, all on the device.

It tracks which positions are masked and writes tokens. It does not depend on any particular order, schedule or model
architecture. A position is an index into the flattened (B, T).
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import ranges
from anyorder.decoding.sampling import TokenSampler
from anyorder.device import to_device
from anyorder.models.base import AllowedTokens, Canvas, CanvasBatch, Context, Model, token_log_probability
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.orders.base import State


@dataclass(frozen=True)
class DecodeBatch:
    """Canvases to decode together, on the host, sorted by number of steps, most first."""

    canvases: CanvasBatch
    keys: np.ndarray
    """(B * copies,) see `Canvas.key`."""
    copies: int = 1
    """How often each canvas is filled; the copies of canvas i start at index i * copies."""

    @classmethod
    def of(cls, model: Model, canvases: Sequence[Canvas], copies: int = 1) -> "DecodeBatch":
        """Canvases whose copies all have their key."""
        keys = np.array([canvas.key for canvas in canvases], np.int64)
        return cls(model.pack(canvases).with_fillable(canvases, model.mask_token), keys.repeat(copies), copies)


@dataclass(frozen=True)
class Hypothesis:
    """A filled canvas, on the host. Given positions have step 0 and log-probability 0."""

    ids: np.ndarray
    """(T,)"""
    steps: np.ndarray
    """(T,) the step, from 1, at which each position was filled."""
    logprobs: np.ndarray
    """(T,) the model's log-probability of each token when it was filled."""
    writes: list[tuple[int, int, int, float]] | None = None
    """Every write as (position, step, id, log-probability), if positions were revised."""
    forwards: int = 0
    """Number of forward passes it took to decode; defaults to the last step, since every step writes something."""

    def __post_init__(self) -> None:
        if not self.forwards:
            last = self.writes[-1][1] if self.writes else self.steps.max(initial=0)
            object.__setattr__(self, "forwards", int(last))


class DecodeState:
    """The decoding state.

    All arrays keep their full size; `drop_finished` narrows the views that are worked on to the unfinished canvases.
    """

    def __init__(self, model: Model, batch: DecodeBatch, context: Context, sampler: TokenSampler | None = None):
        """context: of the canvases, which their copies share at first. sampler: None to write the best tokens."""
        canvases = batch.canvases
        if batch.copies > 1:
            copied = np.repeat(np.arange(len(canvases.lengths)), batch.copies)
            canvases, context = canvases.take(copied), context.select(copied)
        self.model, self.context, self.sampler, self._device = model, context, sampler, model.device
        device, packed, lengths = self._device, canvases.packed, canvases.lengths
        count, self.width = len(lengths), int(lengths.max())
        inside = np.arange(self.width) < lengths[:, None]
        masked = inside.copy()
        masked[inside] = canvases.masked(model.mask_token)[ranges(canvases.starts, lengths)]
        self.lengths = lengths
        """(all canvases,) on the host."""
        self.remaining = masked.sum(1)
        """(unfinished canvases,) on the host: masked positions."""
        self.total = self.remaining
        """(all canvases,) on the host: initially masked positions."""
        self.step = 0
        """The last step, from 1."""
        self.allowed = AllowedTokens(model.allowed_tokens, device)
        self._opening_size = to_device((canvases.starts - packed.starts)[:, None], device)
        self._lay_out(packed.sizes, canvases.starts - packed.starts)
        self._all_tokens = to_device(packed.tokens, device)
        self._masked = to_device(masked, device)
        self._fillable = None if masked.sum() == lengths.sum() else self._masked.clone()
        """(all canvases, T) what was initially masked; None if everything was."""
        self._steps = torch.zeros(count, self.width, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(count, self.width, device=device)
        self._length_tensor = to_device(lengths.astype(np.int64), device)
        self._keys = to_device(batch.keys, device)
        self._one_each = Segments.of(np.ones(count, np.int64), device)
        self.canvases = np.arange(count)
        """(all canvases,) on the host: the index of each in the batch."""
        self._writes: list[tuple[int, np.ndarray, Tensor, Tensor, Tensor]] | None = None
        """For revisions, what every step wrote: its number, `canvases`, positions, tokens and log-probabilities. They
        stay on the device until the end, so that the host waits only once."""

    def keep_history(self) -> None:
        """From now on, record what revisions need: all writes, and fields of the same names in `RevisionState`."""
        self._writes = []
        self.times_written = torch.zeros_like(self._masked, dtype=torch.int64)
        self.changed = torch.zeros_like(self._masked)
        self.times_complete = torch.zeros_like(self._length_tensor)

    def _lay_out(self, sizes: np.ndarray, offsets: np.ndarray) -> None:
        """Where canvases are in the packed tokens, from their sizes with delimiters and where in these they begin."""
        self._sizes, self._offsets, self._ends = sizes, offsets, np.cumsum(sizes)
        self._starts = self._ends - sizes + offsets
        self._segment_starts = to_device(self._ends - sizes, self._device)
        # Positions past the end of a short canvas belong to its neighbors and must not be queried.
        rows = np.minimum(self._starts[:, None] + np.arange(self.width), sizes.sum() - 1)
        self._row_of = to_device(rows.reshape(-1), self._device)

    @property
    def tokens(self) -> Tensor:
        """(packed tokens,) of unfinished canvases."""
        return self._all_tokens[: int(self._ends[len(self.remaining) - 1])]

    def view(self, **predictions: object) -> State:
        """What an order may look at in the next step."""
        now = len(self.remaining)
        return State(
            self._masked[:now],
            self._length_tensor[:now],
            self._keys[:now],
            self.step + 1,
            mask_token=self.model.mask_token,
            allowed=self.allowed,
            fillable=None if self._fillable is None else self._fillable[:now],
            opening_size=self._opening_size[:now],
            **predictions,  # type: ignore[arg-type]
        )

    def best_positions(self, scores: Tensor, counts: np.ndarray) -> Tensor:
        """The `counts[i]` positions of each canvas i with the highest scores, ascending; ties go left."""
        offsets = torch.arange(len(counts), device=self._device) * scores.shape[1]
        most = int(counts.max())
        if most == 1:
            return offsets + scores.argmax(1)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :most]
        positions = (offsets[:, None] + best).reshape(-1)
        if (counts < most).any():
            positions = positions[to_device(np.flatnonzero(np.arange(most) < counts[:, None]), self._device)]
        return positions.sort().values

    def masked_positions(self) -> Tensor:
        now = len(self.remaining)
        return torch.nonzero_static(self._masked[:now].flatten(), size=int(self.remaining.sum())).squeeze(1)

    def fillable_positions(self) -> Tensor:
        """Masked and filled (not given) positions; only for canvases chosen by `select`."""
        return torch.nonzero_static((self._masked | self.filled).flatten(), size=int(self.total.sum())).squeeze(1)

    def query(self, positions: Tensor, counts: np.ndarray) -> QueryPositions:
        """These positions in the packed tokens. counts: (B,) how many are in each canvas, at least one."""
        one_each = len(positions) == len(counts)
        segments = self._one_each.first(len(counts)) if one_each else Segments.of(counts, self._device)
        return QueryPositions(self._row_of[positions], segments)

    def query_with_openings(
        self, positions: Tensor, at: QueryPositions, counts: np.ndarray
    ) -> tuple[QueryPositions, Tensor, Tensor]:
        """These positions plus the delimiter before each canvas, and the indices of delimiters and positions."""
        canvases = torch.arange(len(self.remaining), device=self._device)
        openings = at.segments.cu_seqlens[:-1] + canvases
        inner = torch.arange(len(positions), device=self._device) + positions // self.width + 1
        rows = torch.empty(len(positions) + len(canvases), dtype=torch.int64, device=self._device)
        rows.index_copy_(0, openings, self._segment_starts[: len(canvases)])
        rows.index_copy_(0, inner, at.rows)
        return QueryPositions(rows, Segments.of(counts + 1, self._device)), openings, inner

    def padded_tokens(self) -> Tensor:
        """(B, T) current tokens; undefined past a canvas's end."""
        now = len(self.remaining) * self.width
        return self._all_tokens[self._row_of[:now]].view(-1, self.width)

    def fill(self, positions: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
        """Write tokens at masked positions: one step."""
        self.step += 1
        if self._writes is not None:
            changed = self._all_tokens[self._row_of[positions]] != tokens
            self.changed.view(-1).index_copy_(0, positions, changed)
            self.times_written.view(-1).index_add_(0, positions, torch.ones_like(positions))
            self._writes.append((self.step, self.canvases, positions, tokens, logprobs))
        # Assigning a number through an index would send it to the device and wait; index_fill_ does not.
        self._all_tokens.index_copy_(0, self._row_of[positions], tokens)
        self._masked.view(-1).index_fill_(0, positions, False)
        self._steps.view(-1).index_fill_(0, positions, self.step)
        self._logprobs.view(-1).index_copy_(0, positions, logprobs)

    def remask(self, positions: Tensor, hides_tokens: bool = True) -> None:
        """Mask filled positions again; unless hidden, the model sees the old tokens until overwritten."""
        if hides_tokens:
            self._all_tokens.index_fill_(0, self._row_of[positions], self.model.mask_token)
        self._masked.view(-1).index_fill_(0, positions, True)

    def adopt(self, parents: Tensor) -> None:
        """Each unfinished canvas copies the contents of another of its size. parents: (B,) the index of that one."""
        now, total = len(parents), len(self.tokens)
        shift = self._segment_starts[parents] - self._segment_starts[:now]
        sizes = to_device(self._sizes[:now], self._device)
        rows = torch.arange(total, device=self._device) + shift.repeat_interleave(sizes, output_size=total)
        self.tokens.copy_(self.tokens[rows])
        for values in (self._masked, self._steps, self._logprobs):
            values[:now].copy_(values[parents])

    def drop_finished(self, remaining: np.ndarray) -> None:
        """Keep only the unfinished canvases, which come first. remaining: (B,) still masked."""
        unfinished = int(np.count_nonzero(remaining))
        if 0 < unfinished < len(remaining):
            self.context.keep_first(unfinished)
        self.remaining = remaining[:unfinished]

    def select(self, canvases: np.ndarray) -> "DecodeState":
        """A copy with only these canvases, by index; all must be unfinished."""
        chosen, index, sizes = copy(self), to_device(canvases, self._device), self._sizes[canvases]
        chosen._lay_out(sizes, self._offsets[canvases])
        rows = to_device(ranges(self._ends[canvases] - sizes, sizes), self._device)
        chosen._all_tokens = self._all_tokens[rows]
        if len(canvases) < len(self.lengths):
            chosen.context = self.context.select(canvases)
        for name in _BY_CANVAS_ON_HOST:
            setattr(chosen, name, getattr(self, name)[canvases])
        for name in _BY_CANVAS + (() if self._writes is None else _HISTORY):
            values = getattr(self, name)
            setattr(chosen, name, None if values is None else values[index])
        return chosen

    def absorb(self, chosen: "DecodeState") -> None:
        """Copy a selection's canvases back."""
        index, inside = to_device(chosen.canvases, self._device), chosen._inside
        rows = self._row_of.view(-1, self.width)[index][inside]
        self._all_tokens.index_copy_(0, rows, chosen.padded_tokens()[inside])
        for name in ("_masked", "_steps", "_logprobs"):
            getattr(self, name).index_copy_(0, index, getattr(chosen, name))

    @property
    def _inside(self) -> Tensor:
        """(all canvases, T) bool: before the end of the canvas."""
        return torch.arange(self.width, device=self._device) < self._length_tensor[:, None]

    @property
    def filled(self) -> Tensor:
        """(all canvases, T) bool: filled, not given."""
        return (self._inside if self._fillable is None else self._fillable) & ~self._masked

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, steps and log-probabilities of all canvases: (B, T) on the device, undefined past the end."""
        return self._all_tokens[self._row_of].view(-1, self.width), self._steps, self._logprobs

    def choose(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens to write (the most likely ones without a sampler) and their log-probabilities: (N,), (N,)."""
        if self.sampler is None:
            return self.allowed.best(logits)
        keys = self._keys[positions // self.width]
        return self.sampler.choose(logits, self.allowed, keys, positions % self.width, self.step + 1)

    def sampled(self, logits: Tensor | None, positions: Tensor) -> Tensor | None:
        """(N,) the tokens that `choose` would write, if positions are ranked by them; None if by the best ones."""
        if logits is None or self.sampler is None or self.sampler.rank_by == "best":
            return None
        return self.choose(logits, positions)[0]

    def token_logprobs(self, positions: Tensor, logits: Tensor) -> Tensor:
        """(B, T) the log-probability of the current token at each of these positions; 0 elsewhere."""
        tokens = self._all_tokens[self._row_of[positions]]
        found = token_log_probability(logits, tokens)
        return torch.zeros_like(self._logprobs).view(-1).index_copy_(0, positions, found).view_as(self._logprobs)

    def hypotheses(self) -> list[Hypothesis]:
        """The results on the host, by canvas."""
        packed = self._all_tokens.cpu().numpy()
        steps, logprobs = self._steps.cpu().numpy(), self._logprobs.cpu().numpy()
        writes: list[list[tuple[int, int, int, float]]] = [[] for _ in self.lengths]
        for step, canvases, *written in self._writes or ():
            for at, token, logprob in zip(*(values.tolist() for values in written), strict=True):
                row, position = divmod(at, self.width)
                writes[canvases[row]].append((position, step, token, logprob))
        return [
            Hypothesis(
                packed[start : start + length],
                steps[i, :length],
                logprobs[i, :length],
                None if self._writes is None else writes[i],
            )
            for i, (start, length) in enumerate(zip(self._starts.tolist(), self.lengths.tolist(), strict=True))
        ]


# What `DecodeState` holds for every canvas.
_BY_CANVAS_ON_HOST = ("canvases", "lengths", "remaining", "total")
_BY_CANVAS = ("_masked", "_fillable", "_steps", "_logprobs", "_length_tensor", "_keys", "_opening_size")
_HISTORY = ("times_written", "changed", "times_complete")

"""The decoding loop: start from masks, score, fill, until nothing is masked. One forward pass a step.

Sentences of any lengths go through together. They are sorted so that those that finish first lie at the end, and leave.
The host knows beforehand how many positions every step fills, so it never waits for the device inside the loop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyorder.data.batch import Row, pack_sentences
from anyorder.data.ragged import ranges, starts_of
from anyorder.decoding.budget import Budget
from anyorder.model.attention import Places, Segments, to_device
from anyorder.model.conditional import condition
from anyorder.model.model import Model
from anyorder.orders import Order, State


@dataclass(frozen=True)
class Request:
    """A source and how long its target shall be."""

    source: np.ndarray
    """Ids without delimiters."""
    length: int
    key: int = 0
    """Belongs to the sentence and the seed; orders that draw lots draw by it."""


@dataclass(frozen=True)
class Filled:
    """A finished target."""

    ids: np.ndarray
    steps: np.ndarray
    """The step, from 1, at which each position was filled."""
    logprobs: np.ndarray


def decode(
    model: Model,
    requests: Sequence[Request],
    direction: str,
    order: Order,
    budget: Budget,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> list[Filled]:
    """Fill every request's target; results come in the order of the requests.

    `batch_tokens` bounds the target tokens that are under way together; results do not depend on it.
    """
    batch_tokens = batch_tokens or default_batch_tokens(model)
    results: list[Filled | None] = [None] * len(requests)
    for chosen in _batches(requests, batch_tokens):
        filled = _decode_batch(model, [requests[i] for i in chosen], direction, order, budget)
        for i, one in zip(chosen, filled, strict=True):
            results[i] = one
        advance(len(chosen))
    return [one for one in results if one is not None]


def default_batch_tokens(model: Model) -> int:
    """As many as keep the device busy while the logits of all of them fit in about 4 GB."""
    usual = 24_576 if model.device.type == "cuda" else 2_048
    return min(usual, (1 << 30) // model.config.tokens)


def _batches(requests: Sequence[Request], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of requests of similar length, longest first, within the bound."""
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(requests)), key=lambda i: -requests[i].length):
        size = requests[i].length + 2
        if batch and tokens + size > batch_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += size
    if batch:
        yield batch


@torch.inference_mode()
def _decode_batch(model: Model, requests: list[Request], direction: str, order: Order, budget: Budget) -> list[Filled]:
    """`requests` are sorted by length, longest first, so that the unfinished ones are always the first ones."""
    source_language, target_language = model.config.direction(direction)
    vocabulary = model.vocabulary
    count = len(requests)
    sources = pack_sentences([request.source for request in requests], np.full(count, source_language), vocabulary.eos)
    canvas = _Canvas(
        np.array([request.length for request in requests]),
        np.array([request.key for request in requests], np.int64),
        target_language,
        vocabulary.eos,
        vocabulary.mask,
        model.device,
    )
    asked = condition(model, sources, canvas.row)
    step = 0
    while len(canvas.remaining):
        step += 1
        fills = budget.fills(canvas.remaining)
        if order.needs == "nothing":
            where = canvas.pick(order.scores(canvas.state(step)), fills)
            hidden = asked.hidden(canvas.tokens, canvas.places(where, fills))
            tokens, logprobs = _best(model.logits(hidden), vocabulary.first_word)
        else:
            where, tokens, logprobs = _look_then_pick(model, asked.hidden, canvas, order, fills, step)
        canvas.fill(where, tokens, logprobs, step)
        left = canvas.remaining - fills
        unfinished = int(np.count_nonzero(left))
        canvas.keep(left[:unfinished])
        if 0 < unfinished < len(left):
            asked.keep(unfinished)
    return canvas.filled()


def _look_then_pick(
    model: Model,
    hidden_at: Callable[[Tensor, Places], Tensor],
    canvas: "_Canvas",
    order: Order,
    fills: np.ndarray,
    step: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of an order that needs the model: where it fills, and with which tokens and log-probabilities."""
    masked = canvas.masked_places()
    hidden = hidden_at(canvas.tokens, canvas.places(masked, canvas.remaining))
    first_word = model.vocabulary.first_word
    about = {"where": masked, "mask": model.vocabulary.mask, "first_word": first_word}
    if order.needs == "hidden":
        where = canvas.pick(order.scores(canvas.state(step, hidden=hidden, **about)), fills)
        tokens, logprobs = _best(model.logits(hidden[canvas.index_among(masked, where)]), first_word)
        return where, tokens, logprobs
    logits = model.logits(hidden)
    where = canvas.pick(order.scores(canvas.state(step, logits=logits, **about)), fills)
    tokens, logprobs = _best(logits[canvas.index_among(masked, where)], first_word)
    return where, tokens, logprobs


def _best(logits: Tensor, first_word: int) -> tuple[Tensor, Tensor]:
    """The most likely word at each place and its log-probability."""
    best, index = logits[:, first_word:].max(-1)
    return index + first_word, best - logits.logsumexp(-1)


class _Canvas:
    """Targets under way. Packed for the model, padded (B, T) for orders; a place is an index into the flattened (B, T).

    All arrays keep their full size; `keep` narrows the views that are worked on to the unfinished sentences.
    """

    def __init__(self, lengths: np.ndarray, keys: np.ndarray, language: int, eos: int, mask: int, device: torch.device):
        count, widest = len(lengths), int(lengths.max())
        self._lengths = lengths
        self._device = device
        sizes = lengths + 2
        self._ends = np.cumsum(sizes)
        tokens = np.full(int(sizes.sum()), eos, np.int64)
        tokens[ranges(starts_of(sizes) + 1, lengths)] = mask
        self.row = Row(tokens, ranges(np.zeros_like(sizes), sizes), np.full(len(tokens), language), sizes)
        self.remaining = lengths
        """(B,) on the host: positions still masked."""
        self._all_tokens = to_device(tokens, device)
        self.tokens = self._all_tokens
        """(tokens,) packed."""
        begins = starts_of(sizes)
        self._row_of = to_device((begins[:, None] + 1 + np.arange(widest)).reshape(-1), device)
        self._masked = to_device(np.arange(widest) < lengths[:, None], device)
        self._steps = torch.zeros(count, widest, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(count, widest, device=device)
        self._length_tensor = to_device(lengths.astype(np.int64), device)
        self._keys = to_device(keys, device)
        self._one_each = Segments.of(np.ones(count, np.int64), device)

    def state(self, step: int, **seen: object) -> State:
        now = len(self.remaining)
        return State(self._masked[:now], self._length_tensor[:now], self._keys[:now], step, **seen)  # type: ignore[arg-type]

    def pick(self, scores: Tensor, fills: np.ndarray) -> Tensor:
        """The `fills[i]` best masked positions of each sentence i as places, ascending."""
        masked = self._masked[: len(fills)]
        scores = scores.masked_fill(~masked, -torch.inf)
        sentences = torch.arange(len(fills), device=self._device) * masked.shape[1]
        most = int(fills.max())
        if most == 1:
            return sentences + scores.argmax(1)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :most]
        places = (sentences[:, None] + best).reshape(-1)
        if (fills < most).any():
            places = places[to_device(np.flatnonzero(np.arange(most) < fills[:, None]), self._device)]
        return places.sort().values

    def masked_places(self) -> Tensor:
        now = len(self.remaining)
        return torch.nonzero_static(self._masked[:now].flatten(), size=int(self.remaining.sum())).squeeze(1)

    def places(self, where: Tensor, counts: np.ndarray) -> Places:
        """The same places in the packed row; counts: (B,) how many lie in each sentence."""
        one_each = len(where) == len(counts)
        segments = self._one_each.first(len(counts)) if one_each else Segments.of(counts, self._device)
        return Places(self._row_of[where], segments)

    def index_among(self, places: Tensor, some: Tensor) -> Tensor:
        """Where `some` of the `places` stand among them."""
        return torch.searchsorted(places, some)

    def fill(self, where: Tensor, tokens: Tensor, logprobs: Tensor, step: int) -> None:
        # Assigning a number through an index would send it to the device and wait; index_fill_ does not.
        self._all_tokens.index_copy_(0, self._row_of[where], tokens)
        self._masked.view(-1).index_fill_(0, where, False)
        self._steps.view(-1).index_fill_(0, where, step)
        self._logprobs.view(-1).index_copy_(0, where, logprobs)

    def keep(self, remaining: np.ndarray) -> None:
        """Go on with the first sentences only, in which so much remains."""
        self.remaining = remaining
        self.tokens = self._all_tokens[: int(self._ends[len(remaining) - 1])] if len(remaining) else self.tokens

    def filled(self) -> list[Filled]:
        packed = self._all_tokens.cpu().numpy()
        steps, logprobs = self._steps.cpu().numpy(), self._logprobs.cpu().numpy()
        begins = starts_of(self._lengths + 2) + 1
        return [
            Filled(packed[begin : begin + length], steps[i, :length], logprobs[i, :length])
            for i, (begin, length) in enumerate(zip(begins.tolist(), self._lengths.tolist(), strict=True))
        ]

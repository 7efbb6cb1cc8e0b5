"""The decoding loop: start from masks, score, fill, until nothing is masked. One forward pass a step.

Sentences of any lengths go through together. They are sorted so that those that finish first lie at the end, and leave.
The host knows beforehand how many positions every step fills, so it never waits for the device inside the loop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyorder.data.packing import PackedBatch, pack_sentences, ranges, starts_of
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.schedules import Schedule
from anyorder.models.attention import QueryPositions, Segments, to_device
from anyorder.models.context import Context, condition
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order, State


@dataclass(frozen=True)
class Request:
    """A source and how long its target shall be."""

    source: np.ndarray
    """Ids without delimiters."""
    length: int
    key: int = 0
    """Belongs to the sentence and the seed; orders that draw hash_uniform draw by it."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished target."""

    ids: np.ndarray
    steps: np.ndarray
    """The step, from 1, at which each position was filled."""
    logprobs: np.ndarray


def decode(
    model: TranslationModel,
    requests: Sequence[Request],
    direction: str,
    order: Order,
    budget: Schedule,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> list[Hypothesis]:
    """Fill every request's target; results come in the order of the requests.

    `batch_tokens` bounds the target tokens that are under way together; results do not depend on it.
    """
    batch_tokens = batch_tokens or default_batch_tokens(model)
    results: list[Hypothesis | None] = [None] * len(requests)
    for chosen in _batches(requests, batch_tokens):
        filled = _decode_batch(model, [requests[i] for i in chosen], direction, order, budget)
        for i, one in zip(chosen, filled, strict=True):
            results[i] = one
        advance(len(chosen))
    return [one for one in results if one is not None]


def default_batch_tokens(model: TranslationModel) -> int:
    """As many as keep the device busy while the logits of all of them fit in about 4 GB."""
    usual = 24_576 if model.device.type == "cuda" else 2_048
    return min(usual, (1 << 30) // model.config.vocab_size)


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


def _decode_batch(
    model: TranslationModel, requests: list[Request], direction: str, order: Order, budget: Schedule
) -> list[Hypothesis]:
    """`requests` are sorted by length, longest first."""
    return fill(model, DecodeBatch.of(model, requests, direction), order, budget).filled()


@dataclass(frozen=True)
class DecodeBatch:
    """Sentences that go through together, longest target first, so that the unfinished ones are always the first."""

    sources: PackedBatch
    lengths: np.ndarray
    """(sentences,) of the targets."""
    languages: np.ndarray
    """(sentences,) of the targets."""
    keys: np.ndarray
    """(sentences * copies,)"""
    copies: int = 1
    """How many targets are filled for each sentence; those of sentence i are number i * copies and the next ones."""

    @classmethod
    def of(cls, model: TranslationModel, requests: Sequence[Request], direction: str) -> "DecodeBatch":
        """`requests` are sorted by length, longest first."""
        source_language, target_language = model.config.direction(direction)
        count, sources = len(requests), [request.source for request in requests]
        return cls(
            pack_sentences(sources, np.full(count, source_language), model.vocabulary.eos),
            np.array([request.length for request in requests]),
            np.full(count, target_language),
            np.array([request.key for request in requests], np.int64),
        )


@torch.inference_mode()
def fill(
    model: TranslationModel,
    work: DecodeBatch,
    order: Order,
    budget: Schedule,
    steps: int | None = None,
    begun: "Canvas | None" = None,
) -> "Canvas":
    """The loop. It ends when all is filled, or after step number `steps`; what an order needs may change between steps.

    begun: a canvas for the same work to go on with.
    """
    canvas = begun or Canvas(work, model.vocabulary, model.device)
    once = condition(model, work.sources, canvas.once)
    asked = once.repeated(work.copies) if work.copies > 1 else once
    step = canvas.step
    while len(canvas.remaining) and step != steps:
        step += 1
        fills = budget.fills(canvas.remaining)
        if order.needs != "nothing":
            hidden_at = _first_look(once, work, order, model) if step == 1 and work.copies > 1 else asked.hidden
            where, tokens, logprobs = _look_then_pick(model, hidden_at, canvas, order, fills, step)
        else:
            where = canvas.pick(order.scores(canvas.state(step)), fills)
            hidden = asked.hidden(canvas.tokens, canvas.places(where, fills))
            tokens, logprobs = _best(model.logits(hidden), model.vocabulary.first_word)
        canvas.fill(where, tokens, logprobs, step)
        left = canvas.remaining - fills
        unfinished = int(np.count_nonzero(left))
        canvas.keep(left[:unfinished])
        if 0 < unfinished < len(left):
            asked.keep(unfinished)
    return canvas


HiddenAt = Callable[[Tensor, QueryPositions], Tensor]


def _first_look(once: Context, work: DecodeBatch, order: Order, model: TranslationModel) -> HiddenAt:
    """While all is masked the copies of a sentence are alike: run it once, and let every copy see the result."""
    counts = work.lengths + order.wants_opening
    begins = starts_of(work.lengths + 2) + (not order.wants_opening)
    at = QueryPositions(to_device(ranges(begins, counts), model.device), Segments.of(counts, model.device))
    copied = ranges(np.repeat(starts_of(counts), work.copies), np.repeat(counts, work.copies))
    masks = to_device(masked_targets(work, model.vocabulary).tokens, model.device)
    seen = once.hidden(masks, at)[to_device(copied, model.device)]
    return lambda tokens, places: seen


def _look_then_pick(
    model: TranslationModel, hidden_at: HiddenAt, canvas: "Canvas", order: Order, fills: np.ndarray, step: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of an order that needs the model: where it fills, and with which tokens and log-probabilities."""
    masked = canvas.masked_places()
    at = canvas.places(masked, canvas.remaining)
    if order.wants_opening:
        everything, openings, words = canvas.with_openings(masked, at)
        seen = hidden_at(canvas.tokens, everything)
        hidden, opening = seen[words], seen[openings]
    else:
        hidden, opening = hidden_at(canvas.tokens, at), None
    logits = None if order.needs == "hidden" else model.logits(hidden)
    first_word = model.vocabulary.first_word
    state = canvas.state(
        step,
        where=masked,
        segments=at.segments,
        tokens=canvas.padded_tokens(),
        hidden=None if order.needs == "logits" else hidden,
        logits=logits,
        opening=opening,
        mask=model.vocabulary.mask,
        first_word=first_word,
    )
    where = canvas.pick(order.scores(state), fills)
    chosen = canvas.index_among(masked, where)
    return where, *_best(model.logits(hidden[chosen]) if logits is None else logits[chosen], first_word)


def _best(logits: Tensor, first_word: int) -> tuple[Tensor, Tensor]:
    """The most likely word at each place and its log-probability."""
    best, index = logits[:, first_word:].max(-1)
    return index + first_word, best - logits.logsumexp(-1)


def masked_targets(work: DecodeBatch, vocabulary: Vocabulary) -> PackedBatch:
    """The targets at the start, one of each: masks between two delimiters."""
    sizes = work.lengths + 2
    tokens = np.full(int(sizes.sum()), vocabulary.eos, np.int64)
    tokens[ranges(starts_of(sizes) + 1, work.lengths)] = vocabulary.mask
    return PackedBatch(tokens, ranges(np.zeros_like(sizes), sizes), np.repeat(work.languages, sizes), sizes)


class Canvas:
    """Targets under way. Packed for the model, padded (B, T) for orders; a place is an index into the flattened (B, T).

    All arrays keep their full size; `keep` narrows the views that are worked on to the unfinished sentences.
    """

    def __init__(self, work: DecodeBatch, vocabulary: Vocabulary, device: torch.device):
        self.once = masked_targets(work, vocabulary)
        """The targets at the start, without their copies."""
        row = self.once.repeated(work.copies) if work.copies > 1 else self.once
        lengths = row.sizes - 2
        count, self._widest = len(lengths), int(lengths.max())
        self.lengths = lengths
        """(all targets,) on the host."""
        self.remaining = lengths
        """(targets under way,) on the host: positions still masked."""
        self.step = 0
        """The last one, from 1."""
        self._device = device
        self._ends = np.cumsum(row.sizes)
        self._all_tokens = to_device(row.tokens, device)
        self.tokens = self._all_tokens
        """(tokens,) packed."""
        begins = starts_of(row.sizes)
        self._begins = to_device(begins, device)
        # QueryPositions behind the end of a short sentence belong to its neighbours; nobody may ask for them.
        row_of = np.minimum(begins[:, None] + 1 + np.arange(self._widest), len(row.tokens) - 1)
        self._row_of = to_device(row_of.reshape(-1), device)
        self._masked = to_device(np.arange(self._widest) < lengths[:, None], device)
        self._steps = torch.zeros(count, self._widest, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(count, self._widest, device=device)
        self._length_tensor = to_device(lengths.astype(np.int64), device)
        self._keys = to_device(work.keys, device)
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

    def places(self, where: Tensor, counts: np.ndarray) -> QueryPositions:
        """The same places in the packed row; counts: (B,) how many lie in each sentence."""
        one_each = len(where) == len(counts)
        segments = self._one_each.first(len(counts)) if one_each else Segments.of(counts, self._device)
        return QueryPositions(self._row_of[where], segments)

    def with_openings(self, masked: Tensor, at: QueryPositions) -> tuple[QueryPositions, Tensor, Tensor]:
        """Those places and the delimiter before each target, and where the delimiters and the words then stand."""
        sentences = torch.arange(len(self.remaining), device=self._device)
        openings = at.segments.cu_seqlens[:-1] + sentences
        words = torch.arange(len(masked), device=self._device) + masked // self._widest + 1
        rows = torch.empty(len(masked) + len(sentences), dtype=torch.int64, device=self._device)
        rows.index_copy_(0, openings, self._begins[: len(sentences)])
        rows.index_copy_(0, words, at.rows)
        return QueryPositions(rows, Segments.of(self.remaining + 1, self._device)), openings, words

    def padded_tokens(self) -> Tensor:
        """(B, T) what stands where; anything behind a sentence's end."""
        now = len(self.remaining) * self._widest
        return self._all_tokens[self._row_of[:now]].view(-1, self._widest)

    def index_among(self, places: Tensor, some: Tensor) -> Tensor:
        """Where `some` of the `places` stand among them."""
        return torch.searchsorted(places, some)

    def fill(self, where: Tensor, tokens: Tensor, logprobs: Tensor, step: int) -> None:
        self.step = step
        # Assigning a number through an index would send it to the device and wait; index_fill_ does not.
        self._all_tokens.index_copy_(0, self._row_of[where], tokens)
        self._masked.view(-1).index_fill_(0, where, False)
        self._steps.view(-1).index_fill_(0, where, step)
        self._logprobs.view(-1).index_copy_(0, where, logprobs)

    def keep(self, remaining: np.ndarray) -> None:
        """Go on with the first sentences only, in which so much remains."""
        self.remaining = remaining
        self.tokens = self._all_tokens[: int(self._ends[len(remaining) - 1])] if len(remaining) else self.tokens

    def finished(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, steps and log-probabilities of all targets: (B, T) on the device, anything behind an end."""
        return self._all_tokens[self._row_of].view(-1, self._widest), self._steps, self._logprobs

    def filled(self) -> list[Hypothesis]:
        packed = self._all_tokens.cpu().numpy()
        steps, logprobs = self._steps.cpu().numpy(), self._logprobs.cpu().numpy()
        begins = starts_of(self.lengths + 2) + 1
        return [
            Hypothesis(packed[begin : begin + length], steps[i, :length], logprobs[i, :length])
            for i, (begin, length) in enumerate(zip(begins.tolist(), self.lengths.tolist(), strict=True))
        ]

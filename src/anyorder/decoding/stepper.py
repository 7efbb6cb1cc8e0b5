"""Filling by hand: the caller chooses positions and optionally tokens; the model predicts the rest. For example::

    decoder = anyorder.load("de-en", task="de-en")
    canvas = decoder.canvas("Guten Morgen, Welt!", length=6)
    state = step(decoder.model, canvas, [5, Fill(4, "world")], order="margin", num_candidates=10)
    state.tokens, state.next, state.candidates[state.next]

Each step is the engine's: `OrderByHand` is an order like any other, which ranks the given position first. After the
last of them, one more forward pass predicts everything that is still masked. `step_callback` shows the steps of
ordinary decoding in the same terms. Nothing here depends on text, HTTP or a particular model.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from anyorder.data.vocabulary import CONTINUES
from anyorder.decoding.engine import (
    StepCallback,
    StepOutput,
    forward_step,
    predict_first_ranked,
    ranking_scores,
)
from anyorder.decoding.schedules import ONE
from anyorder.decoding.state import DecodeBatch, DecodeState, Hypothesis
from anyorder.errors import InputError, check_number
from anyorder.models.base import AllowedTokens, Canvas, Model, log_probability
from anyorder.orders import Order, State, make_order
from anyorder.orders.learned import LearnedOrder

T = TypeVar("T")
NUM_CANDIDATES = 5


@dataclass(frozen=True)
class Candidate:
    """A candidate token for a masked position."""

    token: str
    probability: float
    """The model's."""


@dataclass(frozen=True)
class Fill:
    """One position to fill."""

    position: int
    """From 0."""
    token: str | None = None
    """A token as `Model.to_tokens` shows it (`@@` if the word continues); None for the model's best."""


@dataclass(frozen=True)
class StepState:
    """A canvas of T positions after some of them were filled by hand."""

    ids: np.ndarray
    """(T,) int64: the mask token where a position is masked."""
    tokens: list[str | None]
    """T tokens; None where masked."""
    steps: list[int | None]
    """The step, from 1, at which each was filled; None where masked or given."""
    logprobs: list[float | None]
    """The model's log-probability of each token when filled, even if the caller chose it; None as in `steps`."""
    given: list[bool]
    """True where the caller chose the token or gave it in the canvas."""
    next: int | None
    """The position that the order would fill next; None without an order or if nothing is masked."""
    scores: list[float | None]
    """The softmax of the order's scores over the masked positions; None where filled or without an order."""
    is_policy: bool
    """Whether the order was learned. If so, `scores` are its probabilities; otherwise they only rank."""
    candidates: list[list[Candidate] | None]
    """The model's most probable tokens at each masked position, best first; None where filled."""


def step(
    model: Model,
    canvas: Canvas,
    fills: Sequence[int | Fill] = (),
    order: str | Order | None = None,
    num_candidates: int = NUM_CANDIDATES,
    cache: "StepCache | None" = None,
) -> StepState:
    """Fill positions of a canvas one by one, then predict what is still masked.

    Filling the positions that an order chose, one per step, reproduces what it wrote; on the CPU, bit for bit.

    Args:
        model: Predicts the tokens.
        canvas: What to fill, such as `TranslationModel.blank_canvas(...)`. Random orders use its key.
        fills: Positions in the order in which they are filled, each at most once. A `Fill` may choose the token;
            otherwise the model's best is used.
        order: The order that chooses the next position and scores the masked ones.
        num_candidates: Number of candidates at each masked position.
        cache: Earlier results of this model, so that continuing a sentence costs one forward pass.
    """
    check_number("num_candidates", num_candidates, at_least=1, whole=True)
    moves = check_fills(model, canvas, fills)
    order = None if order is None else make_order(order).bind(model, canvas.task)  # type: ignore[arg-type]
    by_hand = OrderByHand(moves, order)
    cache = StepCache() if cache is None else cache
    source = None if canvas.source is None else canvas.source.tobytes()
    key = (canvas.task, source, canvas.tokens.tobytes(), canvas.is_delimited, by_hand.needs)
    known = cache.find(key, moves)
    next_position: int | None = None
    scores: list[float] = []
    candidates: list[list[Candidate]] = []
    with torch.inference_mode():
        batch = DecodeBatch.of(model, [canvas])
        state = DecodeState(model, batch, model.context(batch.canvases))
        for move, written in zip(moves, known, strict=False):
            state.fill(*(torch.tensor([value], device=model.device) for value in (move.position, *written)))
        state.drop_finished(state.remaining - len(known))
        for move in moves[len(known) :]:
            position, logits = predict_first_ranked(state, by_hand, ONE, np.array([1]))
            if move.token is None:
                state.fill(position, *state.allowed.best(logits))
            else:
                state.fill(
                    position, torch.full_like(position, move.token), log_probability(logits, logits[:, move.token])
                )
            state.drop_finished(state.remaining - 1)
        if len(state.remaining):
            output = forward_step(state, by_hand, with_logits=True)
            assert output.logits is not None
            candidates = top_candidates(model, output.logits, state.allowed, num_candidates)
            if order is not None:
                ranking = ranking_scores(order, ONE, output.view)
                next_position = int(state.best_positions(ranking, np.array([1])))
                scores = ranking[0, output.masked].cpu().double().softmax(0).tolist()
    [hypothesis] = state.hypotheses()
    cache.add(key, moves, hypothesis)
    filled = hypothesis.steps > 0
    masked = canvas.masked(model.mask_token) & ~filled
    given = ~canvas.masked(model.mask_token)
    given[[move.position for move in moves if move.token is not None]] = True
    return StepState(
        ids=hypothesis.ids,
        tokens=_where(~masked, model.to_tokens(hypothesis.ids[~masked])),
        steps=_where(filled, hypothesis.steps[filled].tolist()),
        logprobs=_where(filled, hypothesis.logprobs[filled].tolist()),
        given=given.tolist(),
        next=next_position,
        scores=_where(masked, scores),
        is_policy=isinstance(order, LearnedOrder),
        candidates=_where(masked, candidates),
    )


def _where(present: np.ndarray, values: Sequence[T]) -> list[T | None]:
    """Values put back where they are present; None elsewhere, and everywhere if there are no values."""
    each = iter(values)
    return [next(each, None) if here else None for here in present]


@dataclass(frozen=True)
class _Move:
    """A fill with the token's id; None for the model's best."""

    position: int
    token: int | None


def check_fills(model: Model, canvas: Canvas, fills: Sequence[int | Fill]) -> list[_Move]:
    """The fills with token ids; an `InputError` for a position or a token that cannot be filled in."""
    length, taken = len(canvas.tokens), set(np.flatnonzero(~canvas.masked(model.mask_token)).tolist())
    moves: list[_Move] = []
    for fill in (Fill(fill) if isinstance(fill, int) else fill for fill in fills):
        if not 0 <= fill.position < length:
            raise InputError(
                f"{fill.position}: a target of length {length} has positions 0 to {length - 1}", "position"
            )
        if fill.position in taken:
            raise InputError(f"{fill.position} is already filled", "position")
        taken.add(fill.position)
        moves.append(_Move(fill.position, None if fill.token is None else find_token(model, fill.token)))
    return moves


def find_token(model: Model, text: str) -> int:
    """The id of a token as a reader sees it; an `InputError` if the model has no such token, or may not emit it."""
    if model not in _TOKEN_IDS:
        ids = np.flatnonzero(model.allowed_tokens)
        shown = model.to_tokens(ids)
        # If two tokens look alike, the first id wins.
        _TOKEN_IDS[model] = dict(zip(reversed(shown), reversed(ids.tolist()), strict=True))
    token_ids = _TOKEN_IDS[model]
    if text not in token_ids:
        similar = [token for token in token_ids if token[:1].lower() == text[:1].lower()]
        near = get_close_matches(text, similar, n=3, cutoff=0.5)
        is_marked = any(token.endswith(CONTINUES) for token in token_ids)
        rule = f"a subword inside a word ends in {CONTINUES}" if is_marked else "see the candidates"
        hint = f"did you mean {', '.join(near)}?" if near else rule
        raise InputError(f"'{text}': the model's vocabulary has no such subword ({hint})", "token")
    return token_ids[text]


_TOKEN_IDS: WeakKeyDictionary[Model, dict[str, int]] = WeakKeyDictionary()


class OrderByHand(Order):
    """Fills the given positions, one after another. It needs what `order` does: the results are bit-identical."""

    name = "by hand"

    def __init__(self, moves: Sequence[_Move], order: Order | None):
        self._moves = moves
        if order is not None:
            self.needs, self.needs_opening = order.needs, order.needs_opening

    def scores(self, state: State) -> Tensor:
        return (state.positions == self._moves[state.step - 1].position).float()[None]


Written = tuple[int, float]
"""A token and its log-probability."""


class StepCache:
    """Recent results of one model. It holds tokens, not tensors, and drops the oldest."""

    def __init__(self, size: int = 4096):
        self._size = size
        self._written: OrderedDict[tuple[Hashable, tuple[_Move, ...]], Written] = OrderedDict()

    def find(self, canvas: Hashable, moves: Sequence[_Move]) -> list[Written]:
        """What the longest cached prefix of the moves wrote."""
        known: list[Written] = []
        for count in range(1, len(moves) + 1):
            key = canvas, tuple(moves[:count])
            if key not in self._written:
                break
            self._written.move_to_end(key)
            known.append(self._written[key])
        return known

    def add(self, canvas: Hashable, moves: Sequence[_Move], hypothesis: Hypothesis) -> None:
        """Remember what each move wrote."""
        for count, move in enumerate(moves, 1):
            written = int(hypothesis.ids[move.position]), float(hypothesis.logprobs[move.position])
            self._written[canvas, tuple(moves[:count])] = written
        while len(self._written) > self._size:
            self._written.popitem(last=False)


@dataclass(frozen=True)
class Step:
    """One step of one sentence."""

    sentence: int
    """The index of the sentence in the input."""
    length: int
    """Length of the canvas: with several length candidates, a sentence is decoded once for each."""
    step: int
    """From 1."""
    filled: dict[int, Candidate]
    """What was written, by position."""
    candidates: dict[int, list[Candidate]]
    """The most probable tokens at every position that was masked before the step, best first."""


def step_callback(
    model: Model,
    canvases: Sequence[Canvas],
    sentences: Sequence[int],
    on_step: Callable[[Step], None],
    num_candidates: int = NUM_CANDIDATES,
) -> StepCallback:
    """An engine callback that calls the user's. sentences: the index of each canvas's sentence."""

    def report(chosen: np.ndarray, output: StepOutput, filled: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
        view = output.view
        steps = [Step(sentences[i], len(canvases[i].tokens), view.step, {}, {}) for i in chosen.tolist()]
        assert output.logits is not None
        candidates = top_candidates(model, output.logits, view.allowed, num_candidates)
        for position, ranked in zip(output.masked.tolist(), candidates, strict=True):
            canvas, at = divmod(position, view.masked.shape[1])
            steps[canvas].candidates[at] = ranked
        written = zip(filled.tolist(), model.to_tokens(tokens.tolist()), logprobs.exp().tolist(), strict=True)
        for position, token, probability in written:
            canvas, at = divmod(position, view.masked.shape[1])
            steps[canvas].filled[at] = Candidate(token, probability)
        for step in steps:
            on_step(step)

    return report


def top_candidates(model: Model, logits: Tensor, allowed: AllowedTokens, num_candidates: int) -> list[list[Candidate]]:
    """The most probable allowed tokens of each row, best first. logits: (M, vocab_size)"""
    best = allowed.restrict(logits).topk(min(num_candidates, int(model.allowed_tokens.sum())))
    probabilities = log_probability(logits, best.values).exp()
    return [
        [Candidate(token, probability) for token, probability in zip(model.to_tokens(ids), row, strict=True)]
        for ids, row in zip((best.indices + allowed.first).tolist(), probabilities.tolist(), strict=True)
    ]

"""The engine against a plain decoder that runs one canvas at a time, one whole pair at every step."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.engine import StepOutput, decode
from anyorder.decoding.revision import Revision, RevisionState
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.state import Hypothesis
from anyorder.errors import InputError
from anyorder.models.base import AllowedTokens, Canvas
from anyorder.models.native.attention import FullAttention, Segments, SourceIsolated
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import Order, State, make_order
from anyorder.orders.base import function_order
from tests.conftest import tiny

ORDERS = [
    "uniform", "left-to-right", "right-to-left", "outer-in:stride=1", "outer-in:stride=2", "outer-in:stride=3",
    "least-to-most", "easy-first", "easy-first:logp=1,negent=0.9", "entropy", "max-prob", "margin",
]  # fmt: skip
ALL = [*ORDERS, "hidden-sum"]
SCHEDULES = ["one", "3", "threshold:0.3", "threshold:0.05"]


class HiddenSum(Order):
    """An order that reads hidden states, as a learned one does."""

    needs = "hidden"
    name = "hidden-sum"

    def scores(self, state: State) -> Tensor:
        assert state.hidden is not None
        return state.spread(state.hidden.sum(-1))


class RedoLeastLikely(Revision):
    """Masks the least likely filled position of each canvas again after the first three steps."""

    name = "redo"

    def last_step(self, length: int) -> int:
        return 3

    def remask(self, state: RevisionState) -> Tensor:
        logprobs = state.logprobs.masked_fill(~state.filled, torch.inf)
        return torch.zeros_like(state.filled).scatter_(1, logprobs.argmin(1, keepdim=True), True)


def order_by_name(name: str) -> Order:
    return HiddenSum() if name == "hidden-sum" else make_order(name)


def canvases_of(
    lengths: list[tuple[int, int]], vocabulary: Vocabulary, seed: int = 0, direction: str = "de-en", given: float = 0.0
) -> list[Canvas]:
    """Random sources and masked targets; a share of the target's positions is given."""
    rng = np.random.default_rng(seed)
    canvases = []
    for source, target in lengths:
        ids = rng.integers(vocabulary.first_word, len(vocabulary), source)
        key = int(rng.integers(1 << 60))
        tokens = np.full(target, vocabulary.mask)
        known = rng.random(target) < given
        tokens[known] = rng.integers(vocabulary.first_word, len(vocabulary), int(known.sum()))
        canvases.append(Canvas(tokens, ids, direction, key))
    return canvases


MIXED = [(int(s), int(t)) for s, t in np.random.default_rng(8).integers(1, 31, (64, 2))]


@cache
def predict_plainly(model: TranslationModel, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Hidden states and logits of the target: the whole pair, by itself. Orders and schedules meet again in many states."""
    eos = model.vocabulary.eos
    tokens = torch.tensor([eos, *source, eos, eos, *target, eos])
    first, second = len(source) + 2, len(target) + 2
    positions = torch.tensor([*range(first), *range(second)])
    languages = torch.tensor([0] * first + [1] * second)
    pair = Segments.of(np.array([first + second]))
    if model.config.transformer.source_sees_target:
        pattern = FullAttention(pair)
    else:
        pattern = SourceIsolated(pair, Segments.of(np.array([first, second])), languages == 1)  # type: ignore[assignment]
    hidden = model.transformer(tokens, positions, languages, pattern)[first + 1 : first + second - 1]
    return hidden, model.logits(hidden)


@torch.no_grad()
def decode_plainly(
    model: TranslationModel, canvas: Canvas, order: Order, schedule: str, revision: Revision | None = None
) -> Hypothesis:
    """What the paper describes, without batches, caches or packing."""
    vocabulary, length = model.vocabulary, len(canvas.tokens)
    mask = vocabulary.mask
    target = canvas.tokens.tolist()
    fillable = [token == mask for token in target]
    steps, logprobs, writes = [0] * length, [0.0] * length, []
    assert canvas.source is not None
    step = 0
    while mask in target:
        step += 1
        hidden, logits = predict_plainly(model, tuple(canvas.source.tolist()), tuple(target))
        masked = torch.tensor([[token == mask for token in target]])
        where = masked[0].nonzero().squeeze(1)
        state = State(
            masked, torch.tensor([length]), torch.tensor([canvas.key]), step,
            where=where, hidden=hidden[where], logits=logits[where], mask_token=mask,
            allowed=AllowedTokens(model.allowed_tokens, torch.device("cpu")),
        )  # fmt: skip
        scores = order.scores(state)[0].masked_fill(~masked[0], -torch.inf)
        ranked = sorted(where.tolist(), key=lambda i: (-float(scores[i]), i))
        if schedule.startswith("threshold:"):
            probabilities = logits.softmax(-1)[:, vocabulary.first_word :].amax(-1)
            confident = [i for i in ranked if float(probabilities[i]) >= float(schedule.partition(":")[2])]
            chosen = confident or ranked[:1]
        else:
            chosen = ranked[: 1 if schedule == "one" else int(schedule)]
        for position in sorted(chosen):
            words = logits[position, vocabulary.first_word :]
            target[position] = int(words.argmax()) + vocabulary.first_word
            steps[position] = step
            logprobs[position] = float(logits[position].log_softmax(-1)[target[position]])
            writes.append((position, step, target[position], logprobs[position]))
        if revision and step <= revision.last_step(length):
            filled = [may and token != mask for may, token in zip(fillable, target, strict=True)]
            worst = min((i for i in range(length) if filled[i]), key=lambda i: logprobs[i])
            target[worst] = mask
    return Hypothesis(np.array(target), np.array(steps), np.array(logprobs), writes if revision else None)


def assert_same(found: Hypothesis, expected: Hypothesis) -> None:
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.steps.tolist() == expected.steps.tolist()
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ALL)
def test_the_engine_does_what_the_plain_decoder_does(model: TranslationModel, name: str, schedule: str) -> None:
    order = order_by_name(name)
    canvases = canvases_of([(5, 7), (12, 3), (1, 1), (9, 12), (20, 5)], model.vocabulary)
    found = decode(model, canvases, order, make_schedule(schedule))
    for canvas, hypothesis in zip(canvases, found, strict=True):
        assert_same(hypothesis, decode_plainly(model, canvas, order, schedule))


@pytest.mark.parametrize("schedule", ["one", "3", "threshold:0.1"])
@pytest.mark.parametrize("name", ["outer-in", "margin", "hidden-sum"])
def test_given_positions_stay_as_they_are(model: TranslationModel, name: str, schedule: str) -> None:
    order = order_by_name(name)
    canvases = canvases_of(MIXED[:8], model.vocabulary, given=0.4)
    canvases.append(Canvas(np.full(4, model.vocabulary.first_word), canvases[0].source, "de-en"))  # nothing to fill
    found = decode(model, canvases, order, make_schedule(schedule))
    for canvas, hypothesis in zip(canvases, found, strict=True):
        was_given = canvas.tokens != model.mask_token
        assert (hypothesis.ids[was_given] == canvas.tokens[was_given]).all()
        assert (hypothesis.steps[was_given] == 0).all()
        assert (hypothesis.steps[~was_given] > 0).all()
        assert_same(hypothesis, decode_plainly(model, canvas, order, schedule))


@pytest.mark.parametrize("schedule", ["one", "3", "threshold:0.1"])
@pytest.mark.parametrize("name", ["left-to-right", "margin", "hidden-sum"])
def test_what_is_revised_is_recorded(model: TranslationModel, name: str, schedule: str) -> None:
    order, revision = order_by_name(name), RedoLeastLikely()
    canvases = canvases_of([(5, 7), (12, 3), (9, 12), (4, 2), (3, 6)], model.vocabulary)
    found = decode(model, canvases, order, make_schedule(schedule), revision)
    for canvas, hypothesis in zip(canvases, found, strict=True):
        expected = decode_plainly(model, canvas, order, schedule, revision)
        assert_same(hypothesis, expected)
        assert hypothesis.writes is not None
        assert expected.writes is not None
        assert [write[:3] for write in hypothesis.writes] == [write[:3] for write in expected.writes]
        assert len(hypothesis.writes) == len(canvas.tokens) + 3


@pytest.mark.parametrize("schedule", ["one", "threshold:0.1"])
@pytest.mark.parametrize("name", ALL)
def test_a_sentence_does_not_depend_on_its_batch(model: TranslationModel, name: str, schedule: str) -> None:
    """Alone, among 20 of mixed lengths, in small batches: the same tokens, steps and log-probabilities, bit by bit."""
    order, how_many = order_by_name(name), make_schedule(schedule)
    canvases = canvases_of([pair for pair in MIXED if pair[1] <= 18][:20], model.vocabulary)
    together = decode(model, canvases, order, how_many)
    small = decode(model, canvases, order, how_many, batch_tokens=150)
    number = ALL.index(name) + (schedule == "one")  # every order decodes another one alone
    alone = decode(model, [canvases[number]], order, how_many)
    for one, other in zip([*together, together[number]], [*small, *alone], strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.steps.tolist() == other.steps.tolist()
        assert one.logprobs.tolist() == other.logprobs.tolist()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["left-to-right", "margin"])
def test_nor_does_it_with_two_threads(vocabulary: Vocabulary, name: str) -> None:
    model, order, schedule = tiny(vocabulary, hidden_size=256), make_order(name), make_schedule("one")
    canvases = canvases_of(MIXED[5:10], vocabulary)
    for canvas, hypothesis in zip(canvases, decode(model, canvases, order, schedule), strict=True):
        alone = decode(model, [canvas], order, schedule)[0]
        assert hypothesis.steps.tolist() == alone.steps.tolist()
        assert hypothesis.logprobs.tolist() == alone.logprobs.tolist()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=6),
    st.sampled_from(ALL),
    st.integers(1, 5),
)
def test_every_position_is_filled_once(vocabulary: Vocabulary, lengths: list, name: str, size: int) -> None:
    model = tiny(vocabulary)
    canvases = canvases_of(lengths, vocabulary, direction="en-de")
    found = decode(model, canvases, order_by_name(name), make_schedule(size))
    for (_, length), hypothesis in zip(lengths, found, strict=True):
        fills = np.bincount(hypothesis.steps)[1:].tolist()
        assert len(hypothesis.ids) == length
        assert fills == [size] * (length // size) + [length % size] * (length % size > 0)
        assert hypothesis.ids.min() >= vocabulary.first_word


def test_special_tokens_are_never_emitted(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    with torch.no_grad():
        model.output_bias[: vocabulary.first_word] += 50
    for name in ORDERS:
        for hypothesis in decode(model, canvases_of(MIXED[:4], vocabulary), make_order(name), make_schedule("one")):
            assert hypothesis.ids.min() >= vocabulary.first_word
            assert hypothesis.logprobs.max() < -5  # the probability is the model's own, not one without these tokens


def test_any_tokens_may_be_forbidden(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be emitted is a boolean vector, not a prefix of the vocabulary."""
    model = tiny(vocabulary)
    canvases = canvases_of(MIXED[:10], vocabulary)
    free = decode(model, canvases, make_order("margin"), make_schedule("one"))
    allowed = model.allowed_tokens
    allowed[[int(ids[0]) for ids in (one.ids for one in free)]] = False
    monkeypatch.setattr(TranslationModel, "allowed_tokens", property(lambda self: allowed))
    for name in ("margin", "max-prob", "left-to-right"):
        for hypothesis in decode(model, canvases, make_order(name), make_schedule("one")):
            assert allowed[hypothesis.ids].all()


def test_restricting_by_slice_and_by_vector_agree() -> None:
    logits = torch.randn(5, 12)
    allowed = np.arange(12) >= 4
    by_slice = AllowedTokens(allowed, torch.device("cpu"))
    by_vector = AllowedTokens(allowed, torch.device("cpu"))
    by_vector.first, by_vector.blocked = 0, torch.from_numpy(~allowed)
    assert by_slice.blocked is None
    for a, b in zip(by_slice.best(logits), by_vector.best(logits), strict=True):
        assert a.tolist() == b.tolist()


def test_one_forward_pass_a_step(model: TranslationModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = type(model.transformer).forward

    def counting(self: torch.nn.Module, *args: object, **options: object) -> object:
        calls.append(args[-1].rows.shape[0])  # type: ignore[union-attr,attr-defined]
        return forward(self, *args, **options)

    monkeypatch.setattr(type(model.transformer), "forward", counting)
    canvases = canvases_of([(4, 5), (4, 3), (6, 9)], model.vocabulary)
    decode(model, canvases, make_order("left-to-right"), make_schedule("one"))
    assert calls == [3, 3, 3, 2, 2, 1, 1, 1, 1]  # only what is filled; finished sentences have left
    calls.clear()
    decode(model, canvases, make_order("margin"), make_schedule("one"))
    assert calls == [17, 14, 11, 8, 6, 4, 3, 2, 1]  # only what is still masked


def test_directions_differ(model: TranslationModel) -> None:
    order, schedule = make_order("left-to-right"), make_schedule("one")
    there, back = (
        decode(model, canvases_of([(6, 9)], model.vocabulary, direction=direction), order, schedule)[0].ids.tolist()
        for direction in ("de-en", "en-de")
    )
    assert there != back


@pytest.mark.parametrize("schedule", ["one", "threshold:0.1"])
@pytest.mark.parametrize("name", ["left-to-right", "margin"])
def test_a_callback_sees_every_step(model: TranslationModel, name: str, schedule: str) -> None:
    canvases = canvases_of([(5, 7), (12, 3), (9, 12)], model.vocabulary)
    plain = decode(model, canvases, make_order(name), make_schedule(schedule))
    filled = [[0] * len(canvas.tokens) for canvas in canvases]

    def watch(chosen: np.ndarray, output: StepOutput, positions: Tensor, *written: Tensor) -> None:
        assert output.logits is not None
        assert len(output.logits) == len(output.masked)
        for position in positions.tolist():
            row, at = divmod(position, output.view.masked.shape[1])
            filled[chosen[row]][at] = output.view.step

    watched = decode(model, canvases, make_order(name), make_schedule(schedule), on_step=watch, batch_tokens=16)
    for before, after, told in zip(plain, watched, filled, strict=True):
        assert before.ids.tolist() == after.ids.tolist()
        assert before.logprobs.tolist() == after.logprobs.tolist()
        assert told == after.steps.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("schedule", ["one", "3", "threshold:0.9"])
def test_scores_that_are_not_finite_leave_no_mask(vocabulary: Vocabulary, value: float, schedule: str) -> None:
    class Odd(Order):
        name = "odd"

        def scores(self, state: State) -> Tensor:
            return torch.where(state.positions % 2 == 0, value, -state.positions.float()).expand(state.masked.shape)

    model = tiny(vocabulary)
    for one in decode(model, canvases_of([(5, 7), (3, 1), (4, 12)], vocabulary), Odd(), make_schedule(schedule)):
        assert (one.steps >= 1).all()
        assert (one.ids != model.vocabulary.mask).all()


@pytest.mark.parametrize(("scores", "found"), [([1.0], "list"), (torch.zeros(3), r"shape \(3,\)")])
def test_what_is_not_a_score(vocabulary: Vocabulary, scores: object, found: str) -> None:
    order = function_order(lambda state: scores, "nothing")()  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match=f"order '.*': returned {found}, expected scores of shape"):
        decode(tiny(vocabulary), canvases_of([(5, 4)], vocabulary), order, make_schedule("one"))


def test_whole_numbers_are_scores_too(vocabulary: Vocabulary) -> None:
    class Last(Order):
        name = "last"

        def scores(self, state: State) -> Tensor:
            return state.positions.expand(state.masked.shape)

    [found] = decode(tiny(vocabulary), canvases_of([(5, 4)], vocabulary), Last(), make_schedule("one"))
    assert found.steps.tolist() == [4, 3, 2, 1]

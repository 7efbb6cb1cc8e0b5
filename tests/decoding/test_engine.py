"""The engine against a plain decoder that runs one sentence at a time, one whole pair at every step."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.engine import Hypothesis, Request, decode
from anyorder.decoding.schedules import make_schedule
from anyorder.errors import InputError
from anyorder.models.attention import FullAttention, Segments, SourceIsolated
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order, State, make_order
from tests.conftest import tiny

ORDERS = [
    "uniform", "left-to-right", "right-to-left", "outer-in:stride=1", "outer-in:stride=2", "outer-in:stride=3",
    "least-to-most", "easy-first", "easy-first:logp=1,negent=0.9", "entropy", "max-prob", "margin",
]  # fmt: skip


class LeastSurprising(Order):
    """An order that reads hidden states, as a learned one will."""

    needs = "hidden"
    name = "hidden-sum"

    def scores(self, state: State) -> Tensor:
        assert state.hidden is not None
        return state.spread(state.hidden.sum(-1))


def order_by_name(name: str) -> Order:
    return LeastSurprising() if name == "hidden-sum" else make_order(name)


def requests_of(lengths: list[tuple[int, int]], vocabulary: Vocabulary, seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [
        Request(rng.integers(vocabulary.first_word, len(vocabulary), source), target, int(rng.integers(1 << 60)))
        for source, target in lengths
    ]


MIXED = [(int(s), int(t)) for s, t in np.random.default_rng(8).integers(1, 31, (64, 2))]


@torch.no_grad()
def decode_plainly(model: TranslationModel, request: Request, order: Order, budget: int) -> Hypothesis:
    """What the paper describes, without batches, caches or packing."""
    vocabulary, length = model.vocabulary, request.length
    eos, mask = vocabulary.eos, vocabulary.mask
    target = [mask] * length
    steps, logprobs = [0] * length, [0.0] * length
    source = [eos, *request.source.tolist(), eos]
    step = 0
    while mask in target:
        step += 1
        tokens = torch.tensor([*source, eos, *target, eos])
        first, second = len(source), length + 2
        positions = torch.tensor([*range(first), *range(second)])
        languages = torch.tensor([0] * first + [1] * second)
        pair = Segments.of(np.array([first + second]))
        if model.config.transformer.source_sees_target:
            pattern = FullAttention(pair)
        else:
            pattern = SourceIsolated(pair, Segments.of(np.array([first, second])), languages == 1)  # type: ignore[assignment]
        hidden = model.transformer(tokens, positions, languages, pattern).last[first + 1 : first + 1 + length]
        logits = model.logits(hidden)
        masked = torch.tensor([[token == mask for token in target]])
        where = masked[0].nonzero().squeeze(1)
        state = State(
            masked, torch.tensor([length]), torch.tensor([request.key]), step,
            where=where, hidden=hidden[where], logits=logits[where], mask=mask, first_word=vocabulary.first_word,
        )  # fmt: skip
        scores = order.scores(state)[0].masked_fill(~masked[0], -torch.inf)
        ranked = sorted(where.tolist(), key=lambda i: (-float(scores[i]), i))
        for position in ranked[:budget]:
            words = logits[position, vocabulary.first_word :]
            target[position] = int(words.argmax()) + vocabulary.first_word
            steps[position] = step
            logprobs[position] = float(logits[position].log_softmax(-1)[target[position]])
    return Hypothesis(np.array(target), np.array(steps), np.array(logprobs))


@pytest.mark.parametrize("budget", [1, 3])
@pytest.mark.parametrize("name", [*ORDERS, "hidden-sum"])
def test_the_engine_does_what_the_plain_decoder_does(model: TranslationModel, name: str, budget: int) -> None:
    order = order_by_name(name)
    requests = requests_of([(5, 7), (12, 3), (1, 1), (9, 12), (20, 11), (3, 6)], model.vocabulary)
    found = decode(model, requests, "de-en", order, make_schedule(budget))
    for request, one in zip(requests, found, strict=True):
        plain = decode_plainly(model, request, order, budget)
        assert one.ids.tolist() == plain.ids.tolist()
        assert one.steps.tolist() == plain.steps.tolist()
        assert one.logprobs == pytest.approx(plain.logprobs, abs=1e-4)


@pytest.mark.parametrize("name", [*ORDERS, "hidden-sum"])
def test_a_sentence_does_not_depend_on_its_batch(model: TranslationModel, name: str) -> None:
    """Alone, among 64 of mixed lengths, in small batches: the same tokens, steps and log-probabilities, bit by bit."""
    order, budget = order_by_name(name), make_schedule("one")
    requests = requests_of(MIXED, model.vocabulary)
    together = decode(model, requests, "de-en", order, budget)
    small = decode(model, requests, "de-en", order, budget, batch_tokens=100)
    for i, (a, b) in enumerate(zip(together, small, strict=True)):
        others = [b, decode(model, [requests[i]], "de-en", order, budget)[0]] if i % 4 == 0 else [b]
        for other in others:
            assert a.ids.tolist() == other.ids.tolist()
            assert a.steps.tolist() == other.steps.tolist()
            assert a.logprobs.tolist() == other.logprobs.tolist()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["left-to-right", "margin"])
def test_nor_does_it_with_two_threads(vocabulary: Vocabulary, name: str) -> None:
    model, order, budget = tiny(vocabulary, hidden_size=256), make_order(name), make_schedule("one")
    requests = requests_of(MIXED[:20], vocabulary)
    for request, one in zip(requests, decode(model, requests, "de-en", order, budget), strict=True):
        alone = decode(model, [request], "de-en", order, budget)[0]
        assert one.steps.tolist() == alone.steps.tolist()
        assert one.logprobs.tolist() == alone.logprobs.tolist()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=6),
    st.sampled_from([*ORDERS, "hidden-sum"]),
    st.integers(1, 5),
)
def test_every_position_is_filled_once(vocabulary: Vocabulary, lengths: list, name: str, budget: int) -> None:
    model = tiny(vocabulary)
    for (_, length), one in zip(
        lengths,
        decode(model, requests_of(lengths, vocabulary), "en-de", order_by_name(name), make_schedule(budget)),
        strict=True,
    ):
        fills = np.bincount(one.steps)[1:].tolist()
        assert len(one.ids) == length
        assert fills == [budget] * (length // budget) + [length % budget] * (length % budget > 0)
        assert one.ids.min() >= vocabulary.first_word


def test_special_tokens_are_never_emitted(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    with torch.no_grad():
        model.output_bias[: vocabulary.first_word] += 50
    for name in ORDERS:
        for one in decode(model, requests_of(MIXED[:10], vocabulary), "de-en", make_order(name), make_schedule("one")):
            assert one.ids.min() >= vocabulary.first_word
            assert one.logprobs.max() < -5  # and the probability is the model's own, not one made up without them


def test_one_forward_pass_a_step(model: TranslationModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = type(model.transformer).forward

    def counting(self: torch.nn.Module, *args: object, **options: object) -> object:
        calls.append(args[-1].rows.shape[0])  # type: ignore[union-attr,attr-defined]
        return forward(self, *args, **options)

    monkeypatch.setattr(type(model.transformer), "forward", counting)
    requests = requests_of([(4, 5), (4, 3), (6, 9)], model.vocabulary)
    decode(model, requests, "de-en", make_order("left-to-right"), make_schedule("one"))
    assert calls == [3, 3, 3, 2, 2, 1, 1, 1, 1]  # only what is filled; finished sentences have left
    calls.clear()
    decode(model, requests, "de-en", make_order("margin"), make_schedule("one"))
    assert calls == [17, 14, 11, 8, 6, 4, 3, 2, 1]  # only what is still masked


def test_directions_differ(model: TranslationModel) -> None:
    requests = requests_of([(6, 9)], model.vocabulary)
    order, budget = make_order("left-to-right"), make_schedule("one")
    there, back = (decode(model, requests, way, order, budget)[0].ids.tolist() for way in ("de-en", "en-de"))
    assert there != back


@pytest.mark.parametrize("name", ["0", "two", "-1", "1.5", "", "²"])
def test_wrong_budgets(name: str) -> None:
    with pytest.raises(InputError, match="unknown budget"):
        make_schedule(name)


def test_budgets_tell_their_steps() -> None:
    assert [make_schedule(3).steps(n) for n in (1, 3, 4, 9)] == [1, 1, 2, 3]
    assert (make_schedule("one").name, make_schedule("4").name) == ("one", "4")

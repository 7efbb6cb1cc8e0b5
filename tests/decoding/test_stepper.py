"""Filling by hand does what the engine does: the order that `decode` chose, given by hand, writes the same bits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.engine import Hypothesis, Request, decode
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.stepper import CANDIDATES, Memory, step
from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order, State, make_order
from anyorder.orders.learned import LearnedOrder, PolicyConfig, PolicyNetwork, save_order
from anyorder.translator import sentence_key
from tests.conftest import tiny

NAMES = [
    "uniform", "left-to-right", "right-to-left", "outer-in:stride=2",
    "least-to-most", "easy-first", "entropy", "max-prob", "margin",
]  # fmt: skip
LEARNED = ["learned hidden", "learned features", "learned features attention", "opening"]
LENGTHS = [(1, 1), (5, 7), (12, 19)]


class Opening(Order):
    """An order that also wants the delimiter before the target."""

    needs = "hidden"
    wants_opening = True
    name = "opening"

    def scores(self, state: State) -> Tensor:
        assert state.hidden is not None
        assert state.opening is not None
        return state.spread(state.hidden @ state.opening[0])


def scorer(model: TranslationModel, kind: str, attention: int) -> PolicyNetwork:
    torch.manual_seed(4)
    made = PolicyNetwork(PolicyConfig(kind, size=64, attention=attention), model.config.transformer.hidden_size)  # type: ignore[arg-type]
    torch.nn.init.normal_(made.out)
    return made.eval()


def order_by_name(name: str, model: TranslationModel) -> Order:
    if name == "opening":
        return Opening()
    if name.startswith("learned"):
        return LearnedOrder(scorer(model, name.split()[1], name.count("attention")))
    return make_order(name)


def source_of(model: TranslationModel, size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(model.vocabulary.first_word, len(model.vocabulary), size)


def decoded(model: TranslationModel, source: np.ndarray, length: int, order: Order) -> Hypothesis:
    request = Request(source, length, sentence_key(1, source, length))
    return decode(model, [request], "de-en", order, make_schedule("one"))[0]


@pytest.mark.parametrize("name", NAMES + LEARNED)
def test_the_order_that_decode_chose_given_by_hand(model: TranslationModel, name: str) -> None:
    order = order_by_name(name, model)
    for size, length in LENGTHS:
        source = source_of(model, size)
        whole = decoded(model, source, length, order)
        chosen = np.argsort(whole.steps).tolist()
        for count in range(length + 1) if length < 10 else (0, 7, length - 1, length):
            state = step(model, source, "de-en", length, chosen[:count], order)
            there = whole.steps <= count
            assert state.filled.steps.tolist() == np.where(there, whole.steps, 0).tolist()
            assert state.filled.ids.tolist() == np.where(there, whole.ids, model.vocabulary.mask).tolist()
            assert state.filled.logprobs.tolist() == np.where(there, whole.logprobs, 0).tolist()
            assert state.next == (chosen[count] if count < length else None)
        assert state.tokens == model.vocabulary.pieces(whole.ids)


@pytest.mark.parametrize("name", ["left-to-right", "margin", "learned features", "learned hidden"])
def test_what_is_remembered_is_not_written_again(
    model: TranslationModel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits with a memory and without; each position costs one pass once, and each question one more."""
    passes = []
    forward = type(model.transformer).forward

    def counting(self: torch.nn.Module, *args: object, **options: object) -> object:
        passes.append(1)
        return forward(self, *args, **options)

    monkeypatch.setattr(type(model.transformer), "forward", counting)
    source, order, memory = source_of(model, 9), order_by_name(name, model), Memory()
    for positions, expected in (([4, 2, 6], 4), ([4, 2], 1), ([4, 2, 6, 0], 2), ([4, 6, 2], 3), (range(8), 8), ([], 1)):
        fresh = step(model, source, "de-en", 8, positions, order)
        passes.clear()
        again = step(model, source, "de-en", 8, positions, order, memory=memory)
        assert len(passes) == expected
        for field in ("ids", "steps", "logprobs"):
            assert getattr(again.filled, field).tolist() == getattr(fresh.filled, field).tolist()
        assert again.next == fresh.next
        assert again.scores == fresh.scores
        assert again.candidates == fresh.candidates
    other = step(model, source_of(model, 8), "de-en", 8, [4, 2], order, memory=memory)
    assert other.tokens == step(model, source_of(model, 8), "de-en", 8, [4, 2], order).tokens


def test_the_memory_is_bounded() -> None:
    memory = Memory(size=10)
    for sentence in range(30):
        memory.keep(sentence, [2, 0, 1], [(5, -0.5), (6, -0.25), (7, -1.0)])
        memory.recall(0, [2])
    assert len(memory._written) == 10
    assert memory.recall(0, [2, 0]) == [(7, -1.0)]  # what is asked for stays
    assert memory.recall(29, [2, 0, 1]) == [(7, -1.0), (5, -0.5), (6, -0.25)]
    assert memory.recall(1, [2]) == []


def test_other_positions_write_other_words(model: TranslationModel) -> None:
    source, order = source_of(model, 9), make_order("margin")
    forwards = step(model, source, "de-en", 12, range(12), order)
    backwards = step(model, source, "de-en", 12, range(11, -1, -1), order)
    assert forwards.tokens != backwards.tokens
    assert backwards.filled.steps.tolist() == list(range(12, 0, -1))


@pytest.mark.parametrize("name", ["margin", "left-to-right", "learned features", "learned hidden"])
def test_scores_are_a_distribution_with_its_peak_at_the_next(model: TranslationModel, name: str) -> None:
    source, order = source_of(model, 9), order_by_name(name, model)
    state = step(model, source, "de-en", 8, [3, 0, 7], order)
    assert [score is None for score in state.scores] == [i in (0, 3, 7) for i in range(8)]
    known = {i: score for i, score in enumerate(state.scores) if score is not None}
    assert sum(known.values()) == pytest.approx(1)
    assert state.next == max(known, key=lambda i: (known[i], -i))
    assert state.policy == name.startswith("learned")


def test_scores_of_left_to_right_by_hand(model: TranslationModel) -> None:
    state = step(model, source_of(model, 4), "de-en", 3, [1], make_order("left-to-right"))
    assert state.scores == [pytest.approx(1 / (1 + np.exp(-2))), None, pytest.approx(1 - 1 / (1 + np.exp(-2)))]


def test_candidates_are_the_most_probable_words(model: TranslationModel) -> None:
    """The best candidate is what filling the position next would write, with the probability it would have."""
    source = source_of(model, 6)
    state = step(model, source, "de-en", 5, [2])
    for i, here in enumerate(state.candidates):
        if i == 2:
            assert here is None
            continue
        assert here is not None
        assert len(here) == len({one.token for one in here}) == CANDIDATES
        chances = [one.p for one in here]
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(chances) <= 1
        after = step(model, source, "de-en", 5, [2, i])
        assert after.tokens[i] == here[0].token
        assert np.log(chances[0]) == pytest.approx(after.filled.logprobs[i], abs=1e-4)


def test_special_tokens_are_no_candidates(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    with torch.no_grad():
        model.output_bias[: vocabulary.first_word] += 50
    state = step(model, source_of(model, 6), "de-en", 4, [], make_order("margin"))
    specials = set(vocabulary.pieces(range(vocabulary.first_word)))
    for here in state.candidates:
        assert here is not None
        assert not specials & {one.token for one in here}
        assert max(one.p for one in here) < 0.01  # and their share is not given to the others


def test_without_an_order_nothing_is_next(model: TranslationModel) -> None:
    state = step(model, source_of(model, 5), "de-en", 4, [1])
    assert state.next is None
    assert state.scores == [None] * 4
    assert not state.policy


def test_when_all_is_filled_nothing_is_next(model: TranslationModel) -> None:
    state = step(model, source_of(model, 5), "de-en", 2, [1, 0], make_order("margin"))
    assert (state.next, state.scores, state.candidates) == (None, [None, None], [None, None])
    assert None not in state.tokens


def test_an_order_whose_scores_overflow_still_gives_numbers(model: TranslationModel) -> None:
    state = step(model, source_of(model, 5), "de-en", 4, [1], make_order("easy-first:logp=1e308,negent=1e308"))
    assert np.isfinite([score for score in state.scores if score is not None]).all()


def test_a_saved_order_is_bound_to_the_model(vocabulary: Vocabulary, tmp_path: Path) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "model")
    model = TranslationModel.from_pretrained(tmp_path / "model")
    save_order(scorer(model, "features", 1), tmp_path / "model" / "learned" / "default", model, ["de-en"])
    state = step(model, source_of(model, 5), "de-en", 6, [5], make_order("learned"))
    assert state.policy
    with pytest.raises(InputError, match="was learned for de-en, not for en-de"):
        step(model, source_of(model, 5), "en-de", 6, [5], make_order("learned"))


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([4], "position 4: a target of length 4 has positions 0 to 3"),
        ([0, -1], "position -1: a target of length 4"),
        ([2, 1, 2], "position 2 is already filled"),
    ],
)
def test_wrong_positions(model: TranslationModel, positions: list[int], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        step(model, source_of(model, 5), "de-en", 4, positions)

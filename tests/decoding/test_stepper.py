"""Filling by hand does what the engine does: the positions that `decode` chose, given by hand, write the same bits."""

import math
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyorder
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding import stepper
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.stepper import NUM_CANDIDATES, Fill, StepCache, StepState, _Move, find_token, step
from anyorder.errors import InputError
from anyorder.models.base import Canvas
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import Order, State, make_order
from anyorder.orders.learned import LearnedOrder, save_order
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from anyorder.tasks.base import canvas_key
from tests.conftest import tiny

NAMES = [
    "uniform", "left-to-right", "right-to-left", "outer-in:stride=2",
    "least-to-most", "easy-first", "entropy", "max-prob", "margin",
]  # fmt: skip
LEARNED = ["learned hidden", "learned features", "learned features attention", "opening"]
LENGTHS = [(1, 1), (5, 7), (12, 12)]


class Opening(Order):
    """An order that also needs the delimiter before the target."""

    needs = "hidden"
    needs_opening = True
    name = "opening"

    def scores(self, state: State) -> Tensor:
        assert state.hidden is not None
        assert state.opening is not None
        return state.spread(state.hidden @ state.opening[0])


def make_network(model: TranslationModel, kind: str, attention: int) -> PolicyNetwork:
    torch.manual_seed(4)
    network = PolicyNetwork(PolicyConfig(kind, size=64, attention=attention), model.config.transformer.hidden_size)  # type: ignore[arg-type]
    torch.nn.init.normal_(network.out)
    return network.eval()


def order_by_name(name: str, model: TranslationModel) -> Order:
    if name == "opening":
        return Opening()
    if name.startswith("learned"):
        return LearnedOrder(make_network(model, name.split()[1], name.count("attention")))
    return make_order(name)


def make_canvas(model: TranslationModel, source_length: int, length: int, direction: str = "de-en") -> Canvas:
    random = np.random.default_rng(source_length)
    source = random.integers(model.vocabulary.first_word, len(model.vocabulary), source_length)
    return model.blank_canvas(source, length, direction, canvas_key(1, source, length))


def decode_one(model: TranslationModel, canvas: Canvas, order: Order) -> Hypothesis:
    return decode(model, [canvas], order, make_schedule("one"))[0]


def where(values: list[object], present: np.ndarray) -> list[object]:
    return [value if here else None for value, here in zip(values, present, strict=True)]


@pytest.mark.parametrize("name", NAMES + LEARNED)
def test_the_positions_that_decode_chose_given_by_hand(model: TranslationModel, name: str) -> None:
    order = order_by_name(name, model)
    for size, length in LENGTHS:
        canvas = make_canvas(model, size, length)
        whole = decode_one(model, canvas, order)
        chosen = np.argsort(whole.steps).tolist()
        for count in range(length + 1) if length < 10 else (0, 7, length - 1, length):
            state = step(model, canvas, chosen[:count], order)
            filled = whole.steps <= count
            assert state.steps == where(whole.steps.tolist(), filled)
            assert state.ids.tolist() == np.where(filled, whole.ids, model.mask_token).tolist()
            assert state.logprobs == where(whole.logprobs.tolist(), filled)
            assert state.next == (chosen[count] if count < length else None)
            assert state.given == [False] * length
        assert state.tokens == model.vocabulary.pieces(whole.ids)


def same(one: StepState, other: StepState) -> bool:
    assert one.ids.tolist() == other.ids.tolist()
    return all(
        getattr(one, field.name) == getattr(other, field.name) for field in fields(StepState) if field.name != "ids"
    )


def count_passes(monkeypatch: pytest.MonkeyPatch, model: TranslationModel) -> list[int]:
    passes: list[int] = []
    forward = type(model.transformer).forward

    def counting(self: torch.nn.Module, *args: object, **options: object) -> object:
        passes.append(1)
        return forward(self, *args, **options)

    monkeypatch.setattr(type(model.transformer), "forward", counting)
    return passes


@pytest.mark.parametrize("name", ["left-to-right", "margin", "learned features", "learned hidden"])
def test_cached_fills_are_not_computed_again(
    model: TranslationModel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits with and without a cache; each position costs one pass once, and each call one more."""
    passes = count_passes(monkeypatch, model)
    canvas, order, cache = make_canvas(model, 9, 8), order_by_name(name, model), StepCache()
    for positions, expected in (([4, 2, 6], 4), ([4, 2], 1), ([4, 2, 6, 0], 2), ([4, 6, 2], 3), (range(8), 8), ([], 1)):
        fresh = step(model, canvas, positions, order)
        passes.clear()
        cached = step(model, canvas, positions, order, cache=cache)
        assert len(passes) == expected
        assert same(cached, fresh)
    other = make_canvas(model, 8, 8)
    assert same(step(model, other, [4, 2], order, cache=cache), step(model, other, [4, 2], order))


def test_the_cache_is_bounded() -> None:
    cache = StepCache(size=10)
    moves = [_Move(2, None), _Move(0, None), _Move(1, None)]
    written = Hypothesis(np.array([5, 6, 7]), np.zeros(3), np.array([-0.5, -0.25, -1.0]))
    for sentence in range(30):
        cache.add(sentence, moves, written)
        cache.find(0, moves[:1])
    assert len(cache._written) == 10
    assert cache.find(0, moves[:2]) == [(7, -1.0)]  # what is used stays
    assert cache.find(29, moves) == [(7, -1.0), (5, -0.5), (6, -0.25)]
    assert cache.find(29, [_Move(2, 7)]) == []
    assert cache.find(1, moves[:1]) == []


@pytest.mark.parametrize("name", ["left-to-right", "margin"])
def test_a_chosen_token_has_the_probability_that_the_model_gave_it(
    model: TranslationModel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = count_passes(monkeypatch, model)
    canvas, cache = make_canvas(model, 9, 6), StepCache()
    before = step(model, canvas, [3], name, num_candidates=40, cache=cache)
    assert before.candidates[1] is not None
    candidate = before.candidates[1][17]
    state = step(model, canvas, [3, Fill(1, candidate.token)], name, cache=cache)
    assert state.tokens[1] == candidate.token
    assert state.logprobs[1] == pytest.approx(math.log(candidate.probability), abs=1e-4)
    assert state.steps == [None, 2, None, 1, None, None]
    assert state.given == [False, True, False, False, False, False]
    # What follows is what the model writes after this token, from the cache or not.
    fills = [3, Fill(1, candidate.token), 0, Fill(5, candidate.token), 4]
    passes.clear()
    cached = step(model, canvas, fills, name, cache=cache)
    assert len(passes) == 4
    assert same(cached, step(model, canvas, fills, name))
    assert cached.tokens != step(model, canvas, [3, 1, 0, 5, 4], name).tokens
    given = canvas.tokens.copy()
    given[[1, 3]] = state.ids[[1, 3]]
    continued = step(
        model, Canvas(given, canvas.source, canvas.task, canvas.key), [0, Fill(5, candidate.token), 4], name
    )
    assert continued.tokens == cached.tokens
    assert continued.steps == [1, None, None, None, 3, 2]
    assert continued.given == [False, True, False, True, False, True]


def test_choosing_the_models_own_token_changes_nothing_but_the_mark(model: TranslationModel) -> None:
    canvas = make_canvas(model, 9, 5)
    best = step(model, canvas, [2, 0, 4], "margin")
    chosen = step(model, canvas, [Fill(i, best.tokens[i]) for i in (2, 0, 4)], "margin")
    assert chosen.tokens == best.tokens
    assert chosen.logprobs == [None if p is None else pytest.approx(p, abs=1e-5) for p in best.logprobs]
    assert chosen.given == [True, False, True, False, True]
    assert chosen.next == best.next


def test_every_token_of_the_vocabulary_can_be_chosen_by_its_text(model: TranslationModel) -> None:
    vocabulary = model.vocabulary
    ids = range(vocabulary.first_word, len(vocabulary))
    assert [find_token(model, text) for text in vocabulary.pieces(ids)] == list(ids)


@pytest.mark.parametrize("text", ["nosuchword", "</s>", "<mask>", "", "der Hund", "a@@@@"])
def test_tokens_that_cannot_be_chosen(model: TranslationModel, text: str) -> None:
    with pytest.raises(InputError, match=f"^token '{text}': the model's vocabulary has no such subword"):
        step(model, make_canvas(model, 5, 4), [Fill(1, text)])


def test_other_positions_write_other_tokens(model: TranslationModel) -> None:
    canvas = make_canvas(model, 9, 12)
    forwards = step(model, canvas, range(12), "margin")
    backwards = step(model, canvas, range(11, -1, -1), "margin")
    assert forwards.tokens != backwards.tokens
    assert backwards.steps == list(range(12, 0, -1))


@pytest.mark.parametrize("name", ["margin", "left-to-right", "learned features", "learned hidden"])
def test_scores_are_a_distribution_with_its_peak_at_the_next_position(model: TranslationModel, name: str) -> None:
    state = step(model, make_canvas(model, 9, 8), [3, 0, 7], order_by_name(name, model))
    assert [score is None for score in state.scores] == [i in (0, 3, 7) for i in range(8)]
    known = {i: score for i, score in enumerate(state.scores) if score is not None}
    assert sum(known.values()) == pytest.approx(1)
    assert state.next == max(known, key=lambda i: (known[i], -i))
    assert state.is_policy == name.startswith("learned")


def test_scores_of_left_to_right_are_as_computed_by_hand(model: TranslationModel) -> None:
    state = step(model, make_canvas(model, 4, 3), [1], "left-to-right")
    assert state.scores == [pytest.approx(1 / (1 + np.exp(-2))), None, pytest.approx(1 - 1 / (1 + np.exp(-2)))]


def test_candidates_are_the_most_probable_tokens(model: TranslationModel) -> None:
    """The best candidate is the token that filling the position next writes, with the same probability."""
    canvas = make_canvas(model, 6, 5)
    state = step(model, canvas, [2])
    for i, candidates in enumerate(state.candidates):
        if i == 2:
            assert candidates is None
            continue
        assert candidates is not None
        assert len(candidates) == len({candidate.token for candidate in candidates}) == NUM_CANDIDATES
        probabilities = [candidate.probability for candidate in candidates]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1
        after = step(model, canvas, [2, i])
        assert after.tokens[i] == candidates[0].token
        assert np.log(probabilities[0]) == pytest.approx(after.logprobs[i], abs=1e-4)


@pytest.mark.parametrize("num_candidates", [1, 3, 50, 10**6])
def test_any_number_of_candidates(model: TranslationModel, num_candidates: int) -> None:
    canvas = make_canvas(model, 6, 3)
    [candidates, *_] = step(model, canvas, num_candidates=num_candidates).candidates
    words = len(model.vocabulary) - model.vocabulary.first_word
    assert candidates is not None
    assert len(candidates) == min(num_candidates, words)
    [shorter, *_] = step(model, canvas, num_candidates=1).candidates
    assert shorter == candidates[:1]
    if num_candidates > words:
        assert 0.9 < sum(candidate.probability for candidate in candidates) < 1  # special tokens have the rest


def test_the_number_of_candidates_is_checked(model: TranslationModel) -> None:
    with pytest.raises(InputError, match="num_candidates 0: expected a whole number of at least 1"):
        step(model, make_canvas(model, 6, 3), num_candidates=0)


def test_special_tokens_are_no_candidates(vocabulary: Vocabulary) -> None:
    model = tiny(vocabulary)
    with torch.no_grad():
        model.output_bias[: vocabulary.first_word] += 50
    state = step(model, make_canvas(model, 6, 4), order="margin")
    specials = set(vocabulary.pieces(range(vocabulary.first_word)))
    for candidates in state.candidates:
        assert candidates is not None
        assert not specials & {candidate.token for candidate in candidates}
        assert max(candidate.probability for candidate in candidates) < 0.01  # the others do not get their share


def test_without_an_order_nothing_is_next(model: TranslationModel) -> None:
    state = step(model, make_canvas(model, 5, 4), [1])
    assert state.next is None
    assert state.scores == [None] * 4
    assert not state.is_policy


def test_when_everything_is_filled_nothing_is_next(model: TranslationModel) -> None:
    for fills in ([1, 0], [1, Fill(0, model.to_tokens([model.vocabulary.first_word])[0])]):
        state = step(model, make_canvas(model, 5, 2), fills, "margin")
        assert (state.next, state.scores, state.candidates) == (None, [None, None], [None, None])
        assert None not in state.tokens


def test_an_order_whose_scores_overflow_still_gives_numbers(model: TranslationModel) -> None:
    state = step(model, make_canvas(model, 5, 4), [1], "easy-first:logp=1e308,negent=1e308")
    assert np.isfinite([score for score in state.scores if score is not None]).all()


def test_a_saved_order_is_bound_to_the_model(vocabulary: Vocabulary, tmp_path: Path) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "model")
    model = TranslationModel.from_pretrained(tmp_path / "model")
    save_order(make_network(model, "features", 1), tmp_path / "model" / "learned" / "default", model, ["de-en"])
    assert step(model, make_canvas(model, 5, 6), [5], "learned").is_policy
    with pytest.raises(InputError, match="was learned for de-en, not for en-de"):
        step(model, make_canvas(model, 5, 6, "en-de"), [5], "learned")


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([4], "position 4: a target of length 4 has positions 0 to 3"),
        ([10**30], "position 1000000000000000000000000000000: a target of length 4"),
        ([0, -1], "position -1: a target of length 4"),
        ([2, 1, 2], "position 2 is already filled"),
    ],
)
def test_wrong_positions(model: TranslationModel, positions: list[int], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        step(model, make_canvas(model, 5, 4), positions)


def test_given_positions_cannot_be_filled(model: TranslationModel) -> None:
    canvas = make_canvas(model, 5, 3)
    canvas.tokens[1] = model.vocabulary.first_word
    with pytest.raises(InputError, match="position 1 is already filled"):
        step(model, canvas, [1])


def test_the_example_of_the_module() -> None:
    assert stepper.__doc__ is not None
    names: dict[str, Any] = {"anyorder": anyorder, "step": step, "Fill": Fill}
    exec(textwrap.dedent(stepper.__doc__.split("::")[1].split("\n\nEach step")[0]), names)
    state = names["state"]
    assert state.tokens[4] == "world"
    assert state.steps[5] == 1
    assert state.candidates[state.next] is not None

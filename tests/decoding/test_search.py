"""Beam search against greedy decoding, and against a search that tries everything."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoder import Decoder
from anyorder.decoding.config import Beam, DecodingConfig, make_beam
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.search import Candidates, beam_search, best_first, select_best
from anyorder.decoding.state import Hypothesis
from anyorder.errors import InputError
from anyorder.models.base import Canvas
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.models.native.translation_model import REACH, TranslationModel
from anyorder.orders import Order, make_order
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from tests.conftest import tiny
from tests.decoding.test_engine import HiddenSum, RedoLeastLikely, canvases_of
from tests.models.test_base import CANVASES, MASK, NeighborModel, canvas_of

ORDERS = ["left-to-right", "right-to-left", "outer-in:stride=2", "uniform", "margin", "max-prob", "entropy",
          "least-to-most", "easy-first", "hidden-sum", "learned"]  # fmt: skip
LENGTHS = [(5, 7), (9, 4), (3, 1), (12, 7), (6, 2)]
BEAMS = ["4", "positions:3", "joint:3"]


@pytest.fixture(scope="module", params=[False, True], ids=["source-once", "whole-pair"])
def model(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> TranslationModel:
    """Of several likely target lengths, all are near the source's."""
    made = tiny(vocabulary, hidden_size=32, num_layers=2, num_heads=2, source_sees_target=request.param)
    with torch.no_grad():
        made.length.outer.bias[REACH - 2 : REACH + 3] += 20
    return made


def order_by_name(name: str) -> Order:
    if name == "hidden-sum":
        return HiddenSum()
    if name == "learned":
        torch.manual_seed(3)
        return LearnedOrder(PolicyNetwork(PolicyConfig(size=64), hidden_size=32).eval())
    return make_order(name)


def flat(hypothesis: Hypothesis) -> tuple[list[int], list[int], list[float]]:
    return hypothesis.ids.tolist(), hypothesis.steps.tolist(), hypothesis.logprobs.tolist()


def score(hypothesis: Hypothesis) -> float:
    return float(hypothesis.logprobs.astype(np.float64).sum())


@pytest.mark.parametrize("name", ORDERS)
def test_a_beam_of_one_is_greedy_decoding(model: TranslationModel, name: str) -> None:
    order = order_by_name(name)
    canvases = canvases_of(LENGTHS, model.vocabulary, given=0.2)
    greedy = [flat(hypothesis) for hypothesis in decode(model, canvases, order, make_schedule("one"))]
    for beam in (Beam(1), Beam(1, "positions"), *([Beam(1, "joint")] if name == "max-prob" else [])):
        assert [flat(best) for [best] in beam_search(model, canvases, order, beam)] == greedy


@pytest.mark.parametrize("name", ["left-to-right", "uniform", "margin", "learned"])
@pytest.mark.parametrize("beam", BEAMS)
def test_no_result_depends_on_its_batch(model: TranslationModel, beam: str, name: str) -> None:
    order = order_by_name(name)
    canvases = [
        *canvases_of(LENGTHS, model.vocabulary, given=0.2),
        Canvas(np.full(3, model.vocabulary.first_word), np.full(4, model.vocabulary.first_word), "de-en"),
    ]
    together = beam_search(model, canvases, order, make_beam(beam), n_best=9)
    for canvas, found in zip(canvases, together, strict=True):
        [alone] = beam_search(model, [canvas], order, make_beam(beam), n_best=9, batch_tokens=1)
        assert [flat(hypothesis) for hypothesis in found] == [flat(hypothesis) for hypothesis in alone]
        assert found[0].ids[canvas.tokens != model.mask_token].tolist() == [
            token for token in canvas.tokens if token != model.mask_token
        ]
        assert len({tuple(hypothesis.ids) for hypothesis in found}) == len(found)
        scores = [score(hypothesis) for hypothesis in found]
        assert scores == sorted(scores, reverse=True)
        masked = int((canvas.tokens == model.mask_token).sum())
        for hypothesis in found:
            assert sorted(hypothesis.steps[hypothesis.steps > 0].tolist()) == list(range(1, masked + 1))


def test_log_probabilities_are_those_of_the_path(model: TranslationModel) -> None:
    """Filling a hypothesis again in its own order, its tokens given, gives its log-probabilities."""
    [canvas] = canvases_of([(6, 5)], model.vocabulary)
    for beam in BEAMS:
        [found] = beam_search(model, [canvas], make_order("margin"), make_beam(beam), n_best=4)
        for hypothesis in found:
            tokens = canvas.tokens.copy()
            for step in range(1, 6):
                position = int(np.flatnonzero(hypothesis.steps == step)[0])
                assert hypothesis.logprobs[position] == pytest.approx(
                    float(
                        _logprobs(model, Canvas(tokens, canvas.source, canvas.task))[position, hypothesis.ids[position]]
                    ),
                    abs=1e-4,
                )
                tokens[position] = hypothesis.ids[position]


@torch.inference_mode()
def _logprobs(model: TranslationModel | NeighborModel, canvas: Canvas) -> torch.Tensor:
    """(T, vocab_size) of one canvas."""
    batch = model.pack([canvas])
    rows = torch.arange(len(canvas.tokens)) + int(batch.starts[0])
    at = QueryPositions(rows, Segments.of(np.array([len(canvas.tokens)])))
    return model.logits(model.context(batch).hidden(torch.from_numpy(batch.packed.tokens), at)).log_softmax(-1)


def every_path(model: NeighborModel, canvas: Canvas, order: Order | None) -> Iterator[tuple[float, tuple[int, ...]]]:
    """The summed log-probability and the tokens of every way to fill a canvas; in one order, or in all of them."""
    masked = np.flatnonzero(canvas.tokens == MASK)
    if not len(masked):
        yield 0.0, tuple(canvas.tokens.tolist())
        return
    logprobs = _logprobs(model, canvas)
    positions = masked.tolist()
    if order is not None:
        [first] = decode(model, [canvas], order, make_schedule("one"))
        positions = [int(np.flatnonzero(first.steps == 1)[0])]
    for position, token in product(positions, np.flatnonzero(model.allowed_tokens).tolist()):
        tokens = canvas.tokens.copy()
        tokens[position] = token
        for rest, filled in every_path(model, Canvas(tokens, key=canvas.key), order):
            yield float(logprobs[position, token]) + rest, filled


def best_paths(model: NeighborModel, canvas: Canvas, order: Order | None) -> list[tuple[float, tuple[int, ...]]]:
    """The best path to each result, best first."""
    best: dict[tuple[int, ...], float] = {}
    for total, filled in every_path(model, canvas, order):
        best[filled] = max(total, best.get(filled, -np.inf))
    return sorted(((total, filled) for filled, total in best.items()), reverse=True)


WORDS = int(NeighborModel.allowed_tokens.sum())


@pytest.mark.parametrize("name", ["left-to-right", "uniform", "margin"])
def test_a_wide_beam_over_tokens_finds_what_trying_everything_finds(name: str) -> None:
    model, order = NeighborModel(), make_order(name)
    canvases = [canvas_of("___", key=5), canvas_of("b_e__")]
    found = beam_search(model, canvases, order, Beam(WORDS**3), n_best=WORDS**3)
    for canvas, ranked in zip(canvases, found, strict=True):
        expected = best_paths(model, canvas, order)
        assert len(ranked) == len(expected) == WORDS**3
        assert [score(hypothesis) for hypothesis in ranked] == pytest.approx([total for total, _ in expected], abs=1e-5)
        assert tuple(ranked[0].ids.tolist()) == expected[0][1]
        [[narrow]] = beam_search(model, [canvas], order, Beam(2))
        assert score(narrow) <= score(ranked[0])


@pytest.mark.parametrize(("text", "size"), [("__", 2 * WORDS), ("_a_", 2 * WORDS), ("___", 3 * WORDS**2)])
def test_a_wide_joint_beam_finds_what_trying_every_order_and_token_finds(text: str, size: int) -> None:
    """A beam of |V| * T is exhaustive for two masked positions; for three there are 3 |V|**2 states before the last."""
    model, canvas = NeighborModel(), canvas_of(text)
    expected = best_paths(model, canvas, None)
    [ranked] = beam_search(model, [canvas], make_order("max-prob"), Beam(size, "joint"), n_best=size)
    assert tuple(ranked[0].ids.tolist()) == expected[0][1]
    assert [score(hypothesis) for hypothesis in ranked] == pytest.approx(
        [total for total, _ in expected[: len(ranked)]], abs=1e-5
    )
    assert len(ranked) == min(size, len(expected))
    for beam in (*BEAMS, "joint:2", "joint:8"):
        [[narrow]] = beam_search(model, [canvas], make_order("max-prob"), make_beam(beam))
        assert score(narrow) <= score(ranked[0]) + 1e-6  # the best one may be reached on paths with equal totals


def test_a_wide_beam_over_positions_finds_the_best_order_of_greedy_tokens() -> None:
    model, canvas = NeighborModel(), canvas_of("____")

    def best(tokens: np.ndarray) -> float:
        masked = np.flatnonzero(tokens == MASK)
        if not len(masked):
            return 0.0
        allowed = _logprobs(model, Canvas(tokens))[:, model.allowed_tokens]
        totals = []
        for position in masked:
            child = tokens.copy()
            child[position] = np.flatnonzero(model.allowed_tokens)[int(allowed[position].argmax())]
            totals.append(float(allowed[position].max()) + best(child))
        return max(totals)

    [[found]] = beam_search(model, [canvas], make_order("left-to-right"), Beam(24, "positions"))
    assert score(found) == pytest.approx(best(canvas.tokens), abs=1e-5)


@pytest.mark.parametrize("beam", BEAMS)
def test_a_model_without_a_source_and_canvases_that_are_partly_given(beam: str) -> None:
    model = NeighborModel()
    canvases = [canvas_of(text, key) for key, text in enumerate(CANVASES)]
    for text, found in zip(
        CANVASES, beam_search(model, canvases, make_order("margin"), make_beam(beam), 4), strict=True
    ):
        assert len(found) == (1 if "_" not in text else len({tuple(one.ids) for one in found}))
        for hypothesis in found:
            written = model.to_text(hypothesis.ids, "")
            assert all(a == b for a, b in zip(text, written, strict=True) if a != "_")
            assert not set(written) & {"d", "h"}


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_best_different_children_stay(canvases: int, size: int, each: int, draw: Random) -> None:
    """Against a dictionary of what is filled: totals from few values make ties and children that meet."""
    before = [[frozenset({(9, draw.randint(0, 2))}) for _ in range(size)] for _ in range(canvases)]
    rows = canvases * size
    pick = [[(draw.randint(0, 1), draw.randint(0, 1)) for _ in range(each)] for _ in range(rows)]
    logprobs = torch.tensor([[-draw.randint(0, 3) / 4 for _ in range(each)] for _ in range(rows)])
    scores = torch.tensor([[-draw.randint(0, 3) / 4 for _ in range(size)] for _ in range(canvases)]).double()
    hashes = torch.tensor([[next(iter(one))[1] for one in own] for own in before])
    children = Candidates(
        torch.tensor([[p for p, _ in row] for row in pick]),
        torch.tensor([[t for _, t in row] for row in pick]),
        logprobs,
    )
    chosen, totals, _ = select_best(scores, hashes, children, vocab_size=5)
    for canvas in range(canvases):
        best: dict[frozenset[tuple[int, int]], float] = {}
        for slot in range(size):
            row = canvas * size + slot
            for k, fill in enumerate(pick[row]):
                filled = before[canvas][slot] | {fill}
                best[filled] = max(best.get(filled, -np.inf), float(scores[canvas, slot]) + float(logprobs[row, k]))
        expected = sorted(best.values(), reverse=True)[:size]
        expected += [-np.inf] * (size - len(expected))
        assert totals[canvas].tolist() == expected
        held = []
        for slot in range(size):
            parent, k = divmod(int(chosen[canvas * size + slot]), each)
            assert parent // size == canvas
            filled = before[canvas][parent % size] | {pick[parent][k]}
            if expected[slot] > -np.inf:
                assert best[filled] == expected[slot]
                held.append(filled)
        assert len(set(held)) == len(held)


def test_hypotheses_of_several_lengths_are_ranked_by_mean_or_by_the_length_penalty() -> None:
    def hypothesis(*logprobs: float) -> Hypothesis:
        return Hypothesis(np.arange(len(logprobs)), np.arange(len(logprobs)), np.array(logprobs, np.float32))

    short, long = hypothesis(-1.0, -1.0), hypothesis(-0.9, -0.9, -0.9, -0.9)
    assert best_first([short, long]) == [long, short]
    assert best_first([short, long], length_penalty=0.0) == [short, long]
    twin = hypothesis(-1.0, -1.0)
    assert best_first([short, twin])[0] is short


def test_the_translator_decodes_with_beams(model: TranslationModel) -> None:
    translator = Decoder(model, "de-en")
    texts = ["Der Hund sieht ein Kind.", "", "Die Katze malt."]
    config = DecodingConfig("margin", length="candidates:4", beam=4)
    found = list(translator.stream(texts, config))
    assert all("|beam:4|" in trajectory.signature for trajectory in found)
    assert [len(trajectory.tokens) > 0 for trajectory in found] == [True, False, True]
    ranked = translator.n_best(texts, 6, config)
    assert [own[0] for own in ranked] == found
    assert [len(own) for own in ranked] == [6, 1, 6]
    for own in (ranked[0], ranked[2]):
        means = [float(np.mean(trajectory.logprobs)) for trajectory in own]
        assert means == pytest.approx(sorted(means, reverse=True))
        assert len({tuple(trajectory.tokens) for trajectory in own}) == len(own)
    lengths = []
    for penalty in (0, 9):
        [one] = translator.translate(texts[0], "de-en", "margin", length="candidates:4", beam=4, length_penalty=penalty)
        assert f"|length_penalty:{penalty}|" in one.signature
        lengths.append(one.length)
    assert lengths[1] == lengths[0] + 3 or lengths[1] == lengths[0] + 4


def test_beams_of_one_are_greedy_with_length_candidates(model: TranslationModel) -> None:
    translator = Decoder(model)
    texts = ["Der Hund sieht ein Kind.", "Die Katze malt."]
    for order, beam in (("margin", 1), ("margin", "positions:1"), ("max-prob", "joint:1")):
        greedy = translator.translate(texts, "de-en", order)
        found = translator.translate(texts, "de-en", order, beam=beam)
        assert [replace(trajectory, signature="") for trajectory in found] == [
            replace(trajectory, signature="") for trajectory in greedy
        ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam 0: expected a whole number from 1 to 4096, positions:N or joint:N"),
        ({"beam": "orders:3"}, "beam orders:3: expected"),
        ({"beam": "joint:"}, "beam joint:: expected"),
        ({"beam": 4097}, "beam 4097: expected"),
        ({"beam": 2, "schedule": "2"}, "beam 2: fills one position per step, so the schedule must be one"),
        ({"beam": 2, "schedule": "threshold:0.9"}, "beam 2: fills one position per step"),
        ({"beam": "joint:2", "revision": RedoLeastLikely()}, "beam joint:2: does not go together with a revision"),
        ({"beam": "joint:2", "order": "margin"}, "beam joint:2: chooses positions by their probability"),
        ({"length_penalty": float("nan")}, "length_penalty nan: expected"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        DecodingConfig(**settings)


def test_a_joint_beam_takes_the_order_that_it_comes_down_to(model: TranslationModel) -> None:
    assert DecodingConfig(beam="joint:2").bind(model, "de-en").order.name == "max-prob"


def test_the_steps_of_a_beam_cannot_be_followed(model: TranslationModel) -> None:
    with pytest.raises(InputError, match="beam 2: its steps cannot be followed one by one"):
        Decoder(model).translate("Der Hund.", "de-en", "margin", beam=2, on_step=lambda step: None)

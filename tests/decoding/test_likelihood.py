"""Log-likelihoods from their formulas: a slow chain, all orders and all masks of tiny texts."""

import math
from collections.abc import Sequence
from itertools import combinations, permutations, product

import numpy as np
import pytest
import torch

from anyorder.decoding.engine import decode
from anyorder.decoding.likelihood import bound, chain, sample_masks
from anyorder.decoding.schedules import make_schedule
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel, wrap_transformers
from anyorder.orders import make_order
from tests.models.checkpoints import ENCODERS, MASK, logits_of, network, tokenizer


@pytest.fixture(scope="module", params=["BertForMaskedLM", "LlamaForCausalLM"])
def model(request: pytest.FixtureRequest) -> TransformersModel:
    return wrap_transformers(network(request.param), tokenizer(delimiters=request.param in ENCODERS))


def canvas_of(ids: Sequence[int], places: Sequence[int], key: int = 0) -> Canvas:
    fillable = np.isin(np.arange(len(ids)), places)
    return Canvas(np.where(fillable, MASK, ids), key=key, fillable=fillable)


def logprob(model: TransformersModel, ids: Sequence[int], hidden: Sequence[int], place: int) -> torch.Tensor:
    """(vocab_size,) at a place of a text in which some positions are hidden."""
    masked = [MASK if i in hidden else token for i, token in enumerate(ids)]
    return logits_of(model, masked)[place].double().log_softmax(-1)


IDS = [4, 16, 2, 20, 1, 9, 14]  # one of them is the mask, where it is given
PLACES = [1, 2, 4, 6]


def test_a_chain_from_left_to_right(model: TransformersModel) -> None:
    expected = sum(float(logprob(model, IDS, PLACES[i:], place)[IDS[place]]) for i, place in enumerate(PLACES))
    [(found, is_greedy)] = chain(model, [canvas_of(IDS, PLACES)], [np.array(IDS)], make_order("left-to-right"))
    assert found == pytest.approx(expected, abs=1e-4)
    assert not is_greedy


def test_a_chain_in_an_order_that_looks_at_the_model(model: TransformersModel) -> None:
    hidden, expected = list(PLACES), 0.0
    while hidden:
        at = {place: logprob(model, IDS, hidden, place) for place in hidden}
        allowed = torch.from_numpy(model.allowed_tokens)
        place = max(hidden, key=lambda place: float(at[place][allowed].max()))
        expected += float(at[place][IDS[place]])
        hidden.remove(place)
    [(found, _)] = chain(model, [canvas_of(IDS, PLACES)], [np.array(IDS)], make_order("max-prob"))
    assert found == pytest.approx(expected, abs=1e-4)


def test_the_probabilities_of_all_texts_sum_to_one(model: TransformersModel) -> None:
    """Also where the order depends on what is filled in."""
    places = [1, 3]
    texts = []
    for pair in product(range(model.vocab_size), repeat=2):
        ids = np.array(IDS)
        ids[places] = pair
        texts.append(ids)
    found = chain(model, [canvas_of(IDS, places)] * len(texts), texts, make_order("margin"), batch_tokens=100_000)
    assert math.fsum(math.exp(logprob) for logprob, _ in found) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("schedule", ["one", "blocks:2", "blocks:3@text"])
def test_what_decoding_finds_is_greedy(model: TransformersModel, schedule: str) -> None:
    order, blocks = make_order("margin"), make_schedule(schedule)
    canvases = [canvas_of(IDS, PLACES), canvas_of(IDS[:5], [0, 4])]
    best = decode(model, canvases, order, blocks)
    other = best[1].ids.copy()
    other[4] = 2 if other[4] != 2 else 4
    found = chain(model, [*canvases, canvases[1]], [*(one.ids for one in best), other], order, blocks)
    assert [is_greedy for _, is_greedy in found] == [True, True, False]
    for (logprob, _), one in zip(found, best, strict=False):
        assert logprob == one.logprobs.sum(dtype=np.float64)


def test_the_bound_is_a_mean_over_masks(model: TransformersModel) -> None:
    """The exact one, over all masks of three positions, is that over all orders. The estimate is within three standard
    errors of it."""
    places, terms = [1, 2, 4], []
    for count in (1, 2, 3):
        masks = list(combinations(places, count))
        for hidden in masks:
            summed = sum(float(logprob(model, IDS, hidden, place)[IDS[place]]) for place in hidden)
            terms.append((1 / 3 / len(masks), 3 / count * summed))
    exact = sum(share * term for share, term in terms)
    orders = [*permutations(places)]
    chains = [sum(float(logprob(model, IDS, one[i:], p)[IDS[p]]) for i, p in enumerate(one)) for one in orders]
    assert exact == pytest.approx(sum(chains) / len(orders), abs=1e-4)
    deviation = sum(share * (term - exact) ** 2 for share, term in terms) ** 0.5
    samples = 300
    [found] = bound(model, [canvas_of(IDS, places, key=5)], [np.array(IDS)], samples)
    assert abs(found - exact) < 3 * deviation / samples**0.5


def test_one_token_has_one_likelihood(model: TransformersModel) -> None:
    canvases, ids = [canvas_of(IDS, [2])], [np.array(IDS)]
    [(exact, _)] = chain(model, canvases, ids, make_order("left-to-right"))
    assert bound(model, canvases, ids, 1) == [exact]


def test_masks_are_spread_evenly() -> None:
    masks = [*sample_masks(7, 5, 20)]
    assert np.bincount([mask.sum() for mask in masks]).tolist() == [0, 4, 4, 4, 4, 4]
    many = np.array([*sample_masks(7, 5, 2000)])
    assert np.abs(many.mean(0) - 0.6).max() < 0.05
    assert len({mask.tobytes() for mask in many}) == 2**5 - 1
    assert [*sample_masks(7, 0, 3)] == []


@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
def test_no_score_depends_on_the_batch(model: TransformersModel, batch_tokens: int) -> None:
    canvases = [canvas_of(IDS, PLACES, 1), canvas_of(IDS * 3, [0, *range(8, 20)], 2), canvas_of(IDS[:3], [2], 3)]
    ids = [np.array(IDS), np.array(IDS * 3), np.array(IDS[:3])]
    margin = make_order("margin")
    alone = [chain(model, [canvas], [own], margin)[0] for canvas, own in zip(canvases, ids, strict=True)]
    assert chain(model, canvases, ids, margin, batch_tokens=batch_tokens) == alone
    bounds = [bound(model, [canvas], [own], 5)[0] for canvas, own in zip(canvases, ids, strict=True)]
    assert bound(model, canvases, ids, 5, batch_tokens=batch_tokens) == bounds

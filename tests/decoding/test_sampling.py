"""Sampled tokens: the distribution is right, and a sample depends on nothing but its canvas, step and position."""

import numpy as np
import pytest
import torch

from anyorder.decoding import sampling
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.engine import decode
from anyorder.decoding.sampling import TokenSampler, make_sampler, most_likely, nucleus
from anyorder.decoding.schedules import make_schedule
from anyorder.errors import InputError
from anyorder.models.base import AllowedTokens, Canvas
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import make_order
from tests.decoding.reference import Reference, _chosen
from tests.decoding.test_engine import MIXED, canvases_of
from tests.decoding.test_formulas import random_canvas
from tests.models.test_base import NeighborModel

NEIGHBORS = NeighborModel()
EVERY = AllowedTokens(np.ones(5, bool), torch.device("cpu"))
LOGITS = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5]])


def sample(sampler: TokenSampler, count: int = 20_000, allowed: AllowedTokens = EVERY) -> torch.Tensor:
    """The share of each token."""
    keys = torch.arange(count) * 7919
    tokens, _ = sampler.choose(LOGITS.expand(count, 5), allowed, keys, torch.arange(count) % 50, step=3)
    return tokens.bincount(minlength=5) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_softmax(temperature: float) -> None:
    expected = (LOGITS[0] / temperature).softmax(0)
    assert sample(TokenSampler(temperature)).numpy() == pytest.approx(expected.numpy(), abs=0.015)


def test_only_the_nucleus_is_sampled() -> None:
    probabilities = LOGITS[0].softmax(0)  # 0.076, 0.207, 0.028, 0.563, 0.126
    expected = torch.where(torch.tensor([False, True, False, True, False]), probabilities, 0)
    shares = sample(TokenSampler(1.0, top_p=0.7))
    assert shares.numpy() == pytest.approx((expected / expected.sum()).numpy(), abs=0.015)
    assert (nucleus(LOGITS, 0.56) > -torch.inf).tolist() == [[False, False, False, True, False]]
    assert (nucleus(LOGITS, 0.57) > -torch.inf).tolist() == [[False, True, False, True, False]]


def test_tokens_that_are_not_allowed_are_never_sampled() -> None:
    allowed = AllowedTokens(np.array([True, True, True, False, True]), torch.device("cpu"))
    assert sample(TokenSampler(3.0), 2000, allowed)[3] == 0


def test_noise_is_finite_for_every_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest of 2^24 numbers came out as infinity, so a token in 2^24 was chosen whatever its probability."""
    for uniform in (0.0, 0.5, 1 - 2.0**-24):
        monkeypatch.setattr(sampling, "hash_uniform", lambda keys, numbers, uniform=uniform: torch.tensor([[uniform]]))
        noise = float(sampling.gumbel_noise(torch.zeros(1), torch.zeros(1, 1)))
        assert noise == pytest.approx(-np.log(-np.log(min(uniform + 2.0**-25, 1 - 2.0**-24))), rel=1e-3)


def test_a_certain_token_is_always_chosen() -> None:
    """Of 2^15 samples among 2^12 tokens, infinite noise made about eight wrong."""
    logits = torch.full((1, 4096), -50.0)
    logits[0, 7] = 0
    count = 1 << 15
    every = AllowedTokens(np.ones(4096, bool), torch.device("cpu"))
    tokens, _ = TokenSampler(1.0).choose(
        logits.expand(count, -1), every, torch.arange(count), torch.arange(count) % 50, 1
    )
    assert (tokens == 7).all()


def test_the_logprob_is_the_models_own() -> None:
    tokens, logprobs = TokenSampler(2.0, 0.9).choose(LOGITS, EVERY, torch.tensor([5]), torch.tensor([0]), 1)
    assert float(logprobs[0]) == pytest.approx(float(LOGITS.log_softmax(-1)[0, tokens[0]]))


@pytest.mark.parametrize("schedule", ["2", "threshold:0.1"])
def test_samples_do_not_depend_on_the_batch(model: TranslationModel, schedule: str) -> None:
    canvases, sampler = canvases_of(MIXED[:6], model.vocabulary), TokenSampler(1.0, 0.95)
    arguments = make_order("margin"), make_schedule(schedule)
    together = decode(model, canvases, *arguments, sampler=sampler)
    greedy = decode(model, canvases, *arguments)
    assert any(a.ids.tolist() != b.ids.tolist() for a, b in zip(together, greedy, strict=True))
    for canvas, expected in list(zip(canvases, together, strict=True))[::3]:
        [alone] = decode(model, [canvas], *arguments, sampler=sampler)
        assert alone.ids.tolist() == expected.ids.tolist()
        assert alone.logprobs.tolist() == expected.logprobs.tolist()


def test_a_low_temperature_is_greedy(model: TranslationModel) -> None:
    canvases = canvases_of(MIXED[:4], model.vocabulary)
    for a, b in zip(
        decode(model, canvases, make_order("margin"), make_schedule("one")),
        decode(model, canvases, make_order("margin"), make_schedule("one"), sampler=TokenSampler(1e-6)),
        strict=True,
    ):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.steps.tolist() == b.steps.tolist()


def test_signatures_name_only_what_is_not_the_default(model: TranslationModel) -> None:
    plain = DecodingConfig("margin").bind(model, "de-en").signature
    assert "temperature" not in plain
    sampled = DecodingConfig("margin", temperature=0.7, top_p=0.9).bind(model, "de-en").signature
    assert (sampled["temperature"], sampled["top_p"]) == ("0.7", "0.9")
    assert [plain["schedule"], plain["revision"]] == ["one", "none"]
    revised = DecodingConfig("margin", revision="mask-predict:4").bind(model, "de-en").signature
    assert [revised["schedule"], revised["revision"]] == ["steps:1", "mask-predict:4"]


@pytest.mark.parametrize(
    ("temperature", "top_p", "field"), [(-1, 1, "temperature"), (float("nan"), 1, "temperature"), (1, 0, "top_p")]
)
def test_wrong_numbers(temperature: float, top_p: float, field: str) -> None:
    with pytest.raises(InputError, match=field):
        make_sampler(temperature, top_p)


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(InputError, match="needs sampled tokens") as error:
        DecodingConfig(top_p=0.9)
    assert error.value.field == "top_p"
    with pytest.raises(InputError, match="beam search does not sample") as error:
        DecodingConfig(beam=4, temperature=1.0)
    assert error.value.field == "temperature"


def test_top_k_samples_among_the_most_likely() -> None:
    probabilities = LOGITS[0].softmax(0)
    expected = torch.where(torch.tensor([False, True, False, True, True]), probabilities, 0)
    assert sample(TokenSampler(1.0, top_k=3)).numpy() == pytest.approx((expected / expected.sum()).numpy(), abs=0.015)
    assert (most_likely(LOGITS, 2) > -torch.inf).tolist() == [[False, True, False, True, False]]
    assert torch.equal(most_likely(LOGITS, 5), LOGITS)
    ties = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    assert (most_likely(ties, 2) > -torch.inf).tolist() == [[True, False, True, True]]
    # The nucleus is one of what top_k left: of 0.563 and 0.207, the first has more than 0.73.
    assert sample(TokenSampler(1.0, top_p=0.73, top_k=2), 500)[3] == 1


SCHEDULES = ["one", "2", "threshold:0.3", "factor:1.2", "blocks:3+threshold:0.3", "blocks:3@text+2"]


@torch.inference_mode()
def sample_slowly(
    canvas: Canvas, schedule: str, temperature: float, top_k: int
) -> tuple[list[int], list[int], list[float]]:
    """The loop of LLaDA's and Fast-dLLM's code: a token is drawn everywhere, and positions rank by its probability."""
    one = Reference(NEIGHBORS, canvas, canvas.tokens.tolist())
    one.fillable = [i for i, token in enumerate(one.tokens) if token == NEIGHBORS.mask_token]
    one.masked, words = set(one.fillable), np.flatnonzero(NEIGHBORS.allowed_tokens).tolist()
    while one.masked:
        one.step += 1
        logits = one.predictions()
        logp, drawn = logits.double().log_softmax(-1), {}
        for i in one.masked:
            kept = sorted(words, key=lambda token: -float(logits[i, token]))[:top_k]
            numbers = torch.tensor([[(1 << 60) + (one.step << 40) + (i << 20) + token for token in words]])
            noise = dict(
                zip(words, sampling.gumbel_noise(torch.tensor([canvas.key]), numbers)[0].tolist(), strict=True)
            )
            drawn[i] = max(kept, key=lambda token: float(logits[i, token]) / temperature + noise[token])
        ranking = sorted(one.masked, key=lambda i: (-float(logp[i, drawn[i]]), i))
        ranks_by = torch.full_like(logp, -torch.inf)
        for i, token in drawn.items():
            ranks_by[i, words[0]] = logp[i, token]
        for i in _chosen(one, schedule, ranking, ranks_by):
            one.tokens[i], one.steps[i], one.logprobs[i] = drawn[i], one.step, float(logp[i, drawn[i]])
            one.masked.discard(i)
    return one.tokens, [one.steps.get(i, 0) for i in range(len(one.tokens))], [*one.logprobs.values()]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 8), (0.6, 3)])
def test_positions_ranked_by_sampled_tokens(schedule: str, temperature: float, top_k: int) -> None:
    canvases = [random_canvas(length, length, 0.3) for length in range(2, 9)]
    arguments = make_order("max-prob"), make_schedule(schedule)
    sampler = TokenSampler(temperature, top_k=top_k, rank_by="sampled")
    found = decode(NEIGHBORS, canvases, *arguments, sampler=sampler)
    for canvas, hypothesis in zip(canvases, found, strict=True):
        tokens, steps, logprobs = sample_slowly(canvas, schedule, temperature, top_k)
        assert (hypothesis.ids.tolist(), hypothesis.steps.tolist()) == (tokens, steps)
        assert sorted(hypothesis.logprobs[hypothesis.steps > 0]) == pytest.approx(sorted(logprobs), abs=1e-5)
        [alone] = decode(NEIGHBORS, [canvas], *arguments, sampler=sampler)
        assert alone.logprobs.tobytes() == hypothesis.logprobs.tobytes()
    by_best = decode(NEIGHBORS, canvases, *arguments, sampler=TokenSampler(temperature, top_k=top_k))
    assert any(a.steps.tolist() != b.steps.tolist() for a, b in zip(found, by_best, strict=True))


def test_top_k_and_rank_by_are_named_and_checked(model: TranslationModel) -> None:
    config = DecodingConfig("margin", temperature=0.7, top_k=5, rank_by="sampled")
    signature = config.bind(model, "de-en").signature
    assert (signature["top_k"], signature["rank_by"]) == ("5", "sampled")
    for options, field in (({"top_k": 5}, "top_k"), ({"rank_by": "sampled"}, "rank_by")):
        with pytest.raises(InputError, match="needs sampled tokens, so a temperature above 0") as error:
            DecodingConfig(**options)
        assert error.value.field == field
    with pytest.raises(InputError, match="last: expected best or sampled"):
        DecodingConfig(temperature=1, rank_by="last")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="top_k -1"):
        DecodingConfig(temperature=1, top_k=-1)
    assert "top_k" not in DecodingConfig("margin", temperature=1, top_k=0).bind(model, "de-en").signature

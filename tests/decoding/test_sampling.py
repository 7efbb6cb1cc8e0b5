"""Sampled tokens: the distribution is right, and a sample depends on nothing but its canvas, step and position."""

import numpy as np
import pytest
import torch

from anyorder.decoding import sampling
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.engine import decode
from anyorder.decoding.sampling import TokenSampler, make_sampler, nucleus
from anyorder.decoding.schedules import make_schedule
from anyorder.errors import InputError
from anyorder.models.base import AllowedTokens
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import make_order
from tests.decoding.test_engine import MIXED, canvases_of

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

"""The prefix cache and the dual cache give what a slow loop gives that runs everything and freezes keys by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import anyorder
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.engine import decode
from anyorder.decoding.revision import make_revision
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.state import Hypothesis
from anyorder.errors import InputError
from anyorder.models.base import Canvas
from anyorder.models.hf.block_cache import BlockCache
from anyorder.models.hf.families import FAMILIES, Family
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.orders import make_order
from tests.conftest import tiny
from tests.models.checkpoints import MASK, network, tokenizer
from tests.models.test_contexts import runs

LENGTHS = [(2, 9), (1, 1), (13, 7), (18, 3), (12, 20)]
"""Of each canvas, the prompt and the masks after it."""


def canvases() -> list[Canvas]:
    """Prompts with masks after them, and at last a text with gaps and with a mask that stays."""
    rng = np.random.default_rng(1)
    texts = [np.append(rng.integers(0, 7, prompt), np.full(masks, MASK)) for prompt, masks in LENGTHS]
    texts.append(np.where(rng.random(21) < 0.6, MASK, rng.integers(0, 7, 21)))
    fillable = texts[-1] == MASK
    fillable[np.flatnonzero(fillable)[2]] = False
    return [*(Canvas(text, key=i) for i, text in enumerate(texts[:-1])), Canvas(texts[-1], fillable=fillable)]


def model_of(name: str, is_shifted: bool) -> TransformersModel:
    family = Family(name, is_language_model=True, is_shifted=is_shifted)
    return TransformersModel(network(name), tokenizer(delimiters=False), family, MASK)


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen2ForCausalLM shifted", "GPT2LMHeadModel shifted"])
def model(request: pytest.FixtureRequest) -> TransformersModel:
    name, _, shifted = request.param.partition(" ")
    return model_of(name, bool(shifted))


class FrozenByHand:
    """Given to a network that runs all positions: outside of the window it keeps the keys and values of before."""

    def __init__(self) -> None:
        self.window = slice(None)
        self.layers: dict[int, list[Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> list[Tensor]:
        kept = self.layers.setdefault(layer, [keys.clone(), values.clone()])
        for old, new in zip(kept, (keys, values), strict=True):
            old[:, :, self.window] = new[:, :, self.window]
        return kept

    def get_mask_sizes(self, length: int, layer: int) -> tuple[int, int]:
        return length, 0

    def get_query_offset(self, layer: int) -> int:
        return 0

    def get_seq_length(self, layer: int = 0) -> int:
        return 0


def slow(model: TransformersModel, canvas: Canvas, schedule: str, cache: str, passes: int | None) -> Hypothesis:
    """Fill the most probable positions of one block after the other. schedule: `blocks:B+` and k or threshold:P."""
    blocks, inner = schedule.split("+")
    size, frozen = int(blocks.removeprefix("blocks:")), FrozenByHand()
    ids = torch.tensor(canvas.tokens)
    outputs = torch.zeros(len(ids), model.hidden_size)
    steps, logprobs, step = np.zeros(len(ids), int), np.zeros(len(ids), np.float32), 0
    masked = np.flatnonzero(canvas.masked(MASK))
    for block in (masked[at : at + size] for at in range(0, len(masked), size)):
        age = 0
        while len(left := [i for i in block if ids[i] == MASK]):
            end = len(ids) if cache == "prefix" else block[-1] + 1
            frozen.window = slice(min(block[0], max(left[0] - model.is_shifted, 0)), end)
            if age == 0 or age == passes:
                frozen.window, age = slice(None), 0
            states = model.network.base_model(input_ids=ids[None], past_key_values=frozen, use_cache=True)
            outputs[frozen.window] = states.last_hidden_state[0, frozen.window]
            step, age = step + 1, age + 1
            predicted = model.logits(outputs[[max(i - model.is_shifted, 0) for i in left]]).log_softmax(-1)
            best, token = predicted.masked_fill(~torch.from_numpy(model.allowed_tokens), -torch.inf).max(-1)
            ranking = best.argsort(descending=True, stable=True).tolist()
            if inner.startswith("threshold:"):
                chosen = [i for i in ranking if best[i].exp() >= float(inner[10:])] or ranking[:1]
            else:
                chosen = ranking[: int(inner)]
            for i in chosen:
                ids[left[i]], logprobs[left[i]], steps[left[i]] = token[i], best[i], step
    return Hypothesis(ids.numpy(), steps, logprobs)


def cached(model: TransformersModel, schedule: str, cache: str, passes: int | None = None) -> TransformersModel:
    return model.caching(BlockCache(cache, int(schedule.split("+")[0][7:]), passes))  # type: ignore[arg-type]


def filled(
    model: TransformersModel, texts: Sequence[Canvas], schedule: str, order: str = "max-prob", revision: str = "none"
) -> list[Hypothesis]:
    return decode(model, texts, make_order(order), make_schedule(schedule), make_revision(revision))


def same(found: Hypothesis, expected: Hypothesis) -> bool:
    """Equal in tokens and steps, and in log-probabilities to within 1e-5."""
    return (
        found.ids.tolist() == expected.ids.tolist()
        and found.steps.tolist() == expected.steps.tolist()
        and np.abs(found.logprobs - expected.logprobs).max() < 1e-5
    )


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize(
    ("schedule", "passes"),
    [("blocks:4+1", None), ("blocks:4+threshold:0.3", None), ("blocks:5+2", 2), ("blocks:64+3", 2)],
)
@torch.inference_mode()
def test_equals_the_slow_loop(model: TransformersModel, schedule: str, cache: str, passes: int | None) -> None:
    found = filled(cached(model, schedule, cache, passes), canvases(), schedule)
    expected = [slow(model, canvas, schedule, cache, passes) for canvas in canvases()]
    assert all(map(same, found, expected))
    assert not all(map(same, found, filled(model, canvases(), schedule)))  # it is approximate


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=24),
    st.integers(1, 6),
    st.sampled_from(["1", "2", "threshold:0.2"]),
    st.sampled_from(["prefix", "dual"]),
    st.sampled_from([None, 2, 3]),
)
@torch.inference_mode()
def test_any_text_equals_the_slow_loop(
    text: list[tuple[int, bool]], block: int, inner: str, cache: str, passes: int | None
) -> None:
    schedule = f"blocks:{block}+{inner}"
    for shifted in SMALL:
        # A given word first: where all are masks, all predictions are equal, and rounding would choose the position.
        canvas = Canvas(np.array([1, *(MASK if is_masked else word for word, is_masked in text)]))
        [found] = filled(cached(shifted, schedule, cache, passes), [canvas], schedule)
        assert same(found, slow(shifted, canvas, schedule, cache, passes))


SMALL = [model_of("LlamaForCausalLM", is_shifted) for is_shifted in (False, True)]


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize(
    ("order", "schedule", "revision"),
    [
        ("margin", "blocks:4+1", "none"),
        ("uniform", "blocks:8+cosine:3", "none"),
        ("left-to-right", "blocks:4+1", "none"),
        ("entropy", "blocks:3+threshold:0.3", "none"),
        ("max-prob", "blocks:4+2", "mask-predict:2"),
        ("margin", "blocks:8+4", "refine:2"),
    ],
)
def test_a_result_does_not_depend_on_the_batch(cache: str, order: str, schedule: str, revision: str) -> None:
    """Bit for bit, where sequences end and begin their blocks at different times; with a limit of one pass, it is the
    exact result."""
    plain, texts = SMALL[cache == "dual"], canvases()[::-2]
    model = cached(plain, schedule, cache)
    together = filled(model, texts, schedule, order, revision)
    alone = [filled(model, [canvas], schedule, order, revision)[0] for canvas in texts]
    exact, always_anew = (
        filled(chosen, texts, schedule, order, revision) for chosen in (plain, cached(plain, schedule, cache, 1))
    )
    assert [*map(bits, together)] == [*map(bits, alone)] != [*map(bits, exact)]
    assert [*map(bits, always_anew)] == [*map(bits, exact)]


def bits(found: Hypothesis) -> tuple:
    return found.ids.tolist(), found.steps.tolist(), found.logprobs.tobytes(), found.writes


def test_what_runs() -> None:
    """Prompt of 10, two blocks of 16, three passes each. The shapes are padded to multiples of 16."""
    canvas = Canvas(np.append(np.arange(10) % 7, np.full(32, MASK)))
    schedule, anew = "blocks:16+steps:3", (2, 48)
    for cache, expected in {
        "prefix": [anew, (2, 32), (2, 32), anew, (2, 16), (2, 16)],
        "dual": [anew, (2, 16), (2, 16)] * 2,
    }.items():
        with runs(SMALL[0]) as shapes:
            filled(cached(SMALL[0], schedule, cache), [canvas, canvas], schedule)
        assert shapes == expected


@torch.inference_mode()
def test_everything_runs_again_if_a_token_outside_of_the_block_changes() -> None:
    tokens = np.append(np.arange(6), np.full(8, MASK))
    exact, model = SMALL[0], cached(SMALL[0], "blocks:4", "dual")
    batch = model.pack([Canvas(tokens), Canvas(tokens[:-4])])
    frozen, plain = model.context(batch), exact.context(batch)
    at = QueryPositions(torch.tensor([6, 8, 20, 21]), Segments.of(np.array([2, 2])))
    ids = torch.from_numpy(batch.packed.tokens.copy())
    assert torch.equal(frozen.hidden(ids, at), plain.hidden(ids, at))
    ids[7], ids[22] = 3, 4  # in the block
    inside, expected = frozen.hidden(ids, at), plain.hidden(ids, at)
    assert not torch.equal(inside[0], expected[0])
    assert not torch.equal(inside[2], expected[2])
    ids[12] = 5  # in another block of the first sequence
    found, expected = frozen.hidden(ids, at), plain.hidden(ids, at)
    assert torch.equal(found[:2], expected[:2])
    assert torch.equal(found[2:], inside[2:])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"cache": "both"}, "cache both: expected none, prefix, dual, prefix:K or dual:K"),
        ({"cache": "dual:0"}, "cache dual:0: expected"),
        ({"cache": "dual"}, "cache dual: needs a schedule in blocks, such as blocks:32+one"),
        (
            {"cache": "dual", "schedule": "blocks:8+klass"},
            "cache dual: klass also looks at predictions that the cache does not renew",
        ),
        ({"cache": "prefix", "schedule": "blocks:8", "revision": "p2"}, "cache prefix: p2 looks at all blocks"),
        ({"cache": "prefix:4", "beam": 2}, "cache prefix:4: does not go together with a beam"),
    ],
)
def test_what_does_not_go_together_with_a_cache(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        DecodingConfig(**config)
    assert str(caught.value).startswith(message)


def test_models_that_have_no_use_for_a_cache(vocabulary: Vocabulary) -> None:
    cache = {"cache": "dual", "schedule": "blocks:4"}
    blocks = replace(SMALL[0].family, block_size=4)
    block_causal = TransformersModel(SMALL[0].network, SMALL[0].tokenizer, blocks, MASK, name="sdar")
    encoder = TransformersModel(network("BertForMaskedLM"), tokenizer(), FAMILIES["bert"], MASK, name="bert")
    with pytest.raises(InputError, match="dual: sdar is block-causal and has an exact cache already"):
        anyorder.Decoder(block_causal).generate("w1", 8, **cache)
    with pytest.raises(InputError, match="dual: counts blocks from the first mask, which blocks:4@text does not"):
        anyorder.Decoder(SMALL[0]).generate("w1", 8, schedule="blocks:4@text", cache="dual")
    with pytest.raises(InputError, match="dual: is for language models with full attention; bert is an encoder"):
        anyorder.Decoder(encoder).fill("w1 [MASK]", **cache)
    with pytest.raises(InputError, match="dual: is for language models of Transformers, not a TranslationModel"):
        anyorder.Decoder(tiny(vocabulary)).translate("a", "de-en", **cache)


def test_the_signature_names_the_cache() -> None:
    decoder = anyorder.Decoder(SMALL[0])
    for cache in ("dual", "prefix:4"):
        [trajectory] = decoder.generate("w1 w2", 8, schedule="blocks:4", cache=cache)
        assert f"|cache:{cache}|seed:1|" in str(trajectory.signature)
    [trajectory] = decoder.generate("w1 w2", 8, schedule="blocks:4")
    assert "cache" not in str(trajectory.signature)


def test_guidance_has_two_caches() -> None:
    """With everything anew in each pass, it is exact guidance, bit for bit."""
    decoder = anyorder.Decoder(SMALL[1])
    exact, anew, cached = (
        decoder.generate("w1 w2 w3", 9, schedule="blocks:4", guidance=1.5, cache=cache)[0]
        for cache in ("none", "dual:1", "dual")
    )
    assert (exact.tokens, exact.logprobs) == (anew.tokens, anew.logprobs)
    assert exact.logprobs != cached.logprobs

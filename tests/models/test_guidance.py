"""Classifier-free guidance against a slow loop: one canvas, two predictions a step, written from its formula."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.search import search
from anyorder.errors import InputError
from anyorder.models.base import Canvas, Model
from anyorder.models.guidance import GuidedModel
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import make_order
from tests.decoding.reference import Reference
from tests.decoding.test_formulas import random_canvas
from tests.models.checkpoints import save
from tests.models.test_base import NeighborModel


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> TransformersModel:
    from anyorder.models.hf.pretrained import load_transformers

    folder = tmp_path_factory.mktemp("guided") / "qwen"
    save("Qwen3ForCausalLM", folder)
    return load_transformers(folder)


@torch.inference_mode()
def slowly(model: Model, canvas: Canvas, scale: float, size: int, block: int) -> tuple[list[int], list[int]]:
    """Tokens, and the step at which each was filled: in blocks, `size` positions a step, the most certain first."""
    one, blank = (Reference(model, canvas, canvas.tokens.tolist()) for _ in range(2))
    asked = [i for i, token in enumerate(one.tokens) if token == model.mask_token]
    steps, step, allowed = [0] * len(one.tokens), 0, np.flatnonzero(model.allowed_tokens)
    while left := [i for i in asked if one.tokens[i] == model.mask_token]:
        step += 1
        blank.tokens = [token if i in asked else model.mask_token for i, token in enumerate(one.tokens)]
        without = blank.predictions()
        logits = without + (scale + 1) * (one.predictions() - without)
        logp = logits.double().log_softmax(-1)
        best = {i: max(allowed, key=lambda token: float(logp[i, token])) for i in left}
        now = [i for i in left if asked.index(i) // block == asked.index(left[0]) // block]
        for i in sorted(now, key=lambda i: (-float(logp[i, best[i]]), i))[:size]:
            one.tokens[i], steps[i] = int(best[i]), step
    return one.tokens, steps


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("size", "block"), [(1, 20), (2, 4), (3, 5)])
def test_guidance_is_its_formula(scale: float, size: int, block: int) -> None:
    model, schedule = NeighborModel(), make_schedule(f"blocks:{block}+{size}")
    canvases = [random_canvas(length, length, 0.4) for length in range(3, 9)]
    found = decode(GuidedModel(model, scale), canvases, make_order("max-prob"), schedule)
    for canvas, hypothesis in zip(canvases, found, strict=True):
        assert (hypothesis.ids.tolist(), hypothesis.steps.tolist()) == slowly(model, canvas, scale, size, block)
    plain = decode(model, canvases, make_order("max-prob"), schedule)
    assert any(a.ids.tolist() != b.ids.tolist() for a, b in zip(found, plain, strict=True))


@pytest.mark.parametrize("block_size", [None, 4])
def test_guidance_of_a_language_model(
    qwen: TransformersModel, block_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts do not depend on their batch, bit by bit, and each step counts two forward passes."""
    monkeypatch.setattr(qwen, "block_size", block_size)
    rng = np.random.default_rng(1)
    words = np.flatnonzero(qwen.allowed_tokens)
    canvases = [
        Canvas(np.concatenate([rng.choice(words, size), [qwen.mask_token] * 6]), key=size) for size in (2, 7, 4)
    ]
    decoding = DecodingConfig("max-prob", "blocks:3+2", guidance=1.5, length="given").bind(qwen, "generate")
    together = [one for [one] in search(qwen, canvases, decoding)]
    for canvas, found in zip(canvases, together, strict=True):
        assert (found.ids.tolist(), found.steps.tolist()) == slowly(qwen, canvas, 1.5, 2, 3)
        assert found.forwards == 2 * found.steps.max()
        [[alone]] = search(qwen, [canvas], decoding)
        assert alone.logprobs.tobytes() == found.logprobs.tobytes()
    revising = replace(decoding, schedule=make_schedule("threshold:0.2"), order=make_order("margin"))
    for canvas, [found] in zip(canvases, search(qwen, canvases, revising), strict=True):
        [[alone]] = search(qwen, [canvas], revising)
        assert (alone.ids.tolist(), alone.logprobs.tobytes()) == (found.ids.tolist(), found.logprobs.tobytes())


def test_the_signature_names_the_guidance(qwen: TransformersModel) -> None:
    [one] = Decoder(qwen).generate("w1 w2", length=3, guidance=2)
    assert "|guidance:2|" in one.signature
    assert one.forwards == 6
    [plain] = Decoder(qwen).generate("w1 w2", length=3)
    assert "guidance" not in plain.signature


def test_guidance_needs_a_masked_model(model: TranslationModel) -> None:
    with pytest.raises(InputError, match=r"1: is for language models of Transformers, not a TranslationModel") as error:
        DecodingConfig("margin", guidance=1).bind(model, "de-en")
    assert error.value.field == "guidance"
    with pytest.raises(InputError, match="guidance -1"):
        DecodingConfig(guidance=-1)

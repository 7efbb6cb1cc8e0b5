"""What a block-causal model keeps of finished blocks gives what running everything gives, whatever is asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.decoding import engine
from anyorder.decoding.config import Beam
from anyorder.decoding.engine import decode
from anyorder.decoding.revision import make_revision
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.search import beam_search
from anyorder.decoding.state import Hypothesis
from anyorder.models.base import Canvas, CanvasBatch, Context
from anyorder.models.hf import contexts
from anyorder.models.hf.families import FAMILIES
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.models.native.attention import QueryPositions, Segments
from anyorder.orders import make_order
from tests.models.checkpoints import MASK, network, tokenizer

BLOCK = 4
LENGTHS = [(2, 9), (3, 12), (8, 8), (13, 17), (1, 1), (18, 3)]
"""Of each canvas, the prompt and the masks after it: some begin in the middle of a block, some end there."""


class EverythingAnew(Context):
    """Every sequence alone and whole, by the plain class, each time it is asked about."""

    def __init__(self, plain: Any, sizes: np.ndarray, is_shifted: bool):
        self._plain, self._sizes, self._is_shifted = plain, sizes, is_shifted

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        found = []
        for ids in tokens.split(self._sizes.tolist()):
            block = torch.arange(len(ids)) // BLOCK
            sees = (block <= block[:, None])[None, None]
            states = self._plain.base_model(
                input_ids=ids[None], attention_mask=sees, use_cache=False
            ).last_hidden_state[0]
            found.append(torch.cat([states[:1], states[:-1]]) if self._is_shifted else states)
        return torch.cat(found)[at.rows]

    def keep_first(self, count: int) -> None:
        self._sizes = self._sizes[:count]

    def select(self, canvases: np.ndarray) -> "EverythingAnew":
        return EverythingAnew(self._plain, self._sizes[canvases], self._is_shifted)


class PlainModel(TransformersModel):
    """The same model that keeps nothing."""

    def context(self, batch: CanvasBatch) -> EverythingAnew:  # type: ignore[override]
        return EverythingAnew(self.network, batch.packed.sizes, self.is_shifted)


def make(kind: type[TransformersModel], name: str = "Qwen3ForCausalLM", is_shifted: bool = False) -> TransformersModel:
    family = replace(FAMILIES["sdar"], is_shifted=is_shifted, block_size=BLOCK)
    return kind(network(name), tokenizer(delimiters=False), family, MASK)


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    return make(TransformersModel)


@pytest.fixture(scope="module")
def plain() -> TransformersModel:
    return make(PlainModel)


def canvases() -> list[Canvas]:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 7, prompt) for prompt, _ in LENGTHS]
    masks = [np.full(masked, MASK) for _, masked in LENGTHS]
    return [Canvas(np.concatenate(pair), key=i) for i, pair in enumerate(zip(prompts, masks, strict=True))]


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    """Tokens and steps are equal, log-probabilities equal to within 1e-5."""
    assert len(found) == len(expected) >= len(LENGTHS)
    for one, other in zip(found, expected, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.steps.tolist() == other.steps.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-5)


@contextmanager
def runs(model: TransformersModel) -> Iterator[list[tuple[int, int]]]:
    """The shapes of all inputs of the network: sequences and positions."""
    shapes: list[tuple[int, int]] = []
    hook = model.network.model.register_forward_pre_hook(
        lambda _, __, named: shapes.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield shapes
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("order", "schedule", "revision"),
    [
        ("margin", "blocks:4", "none"),
        ("entropy", "blocks:4+2", "none"),
        ("left-to-right", "blocks:4", "none"),
        ("uniform", "blocks:8+cosine:3", "none"),
        ("max-prob", "blocks:3+threshold:0.3", "none"),  # not the model's blocks
        ("max-prob", "blocks:4+klass:0.2,0.5", "none"),
        ("max-prob", "blocks:4@text+steps:2", "none"),
        ("left-to-right", "blocks:4@text+2", "none"),
        ("margin", "one", "none"),  # jumps
        ("right-to-left", "2", "none"),
        ("margin", "blocks:4", "mask-predict:3"),  # masks finished blocks again
        ("max-prob", "steps:2", "gibbs"),
        ("margin", "steps:2", "p2:3"),  # looks at finished blocks
        ("margin", "blocks:4", "refine:2"),
    ],
)
def test_equals_running_everything(
    model: TransformersModel, plain: TransformersModel, order: str, schedule: str, revision: str
) -> None:
    found, expected = (
        decode(one, canvases(), make_order(order), make_schedule(schedule), make_revision(revision))
        for one in (model, plain)
    )
    assert_same(found, expected)


def test_beam_search_equals_running_everything(model: TransformersModel, plain: TransformersModel) -> None:
    found, expected = (
        [best for best, *_ in beam_search(one, canvases(), make_order("left-to-right"), Beam(3))]
        for one in (model, plain)
    )
    assert_same(found, expected)


@pytest.mark.parametrize(("schedule", "revision"), [("blocks:4", "none"), ("one", "none"), ("blocks:4", "p2:3")])
def test_sequences_in_groups_as_on_cuda(
    plain: TransformersModel, schedule: str, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "_runs_in_tiles", lambda device: False)
    model = make(TransformersModel)
    found, expected = (
        decode(one, canvases(), make_order("margin"), make_schedule(schedule), make_revision(revision))
        for one in (model, plain)
    )
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "LlamaForCausalLM", "GPT2LMHeadModel"])
def test_shifted_models(name: str) -> None:
    """The first position of a block is predicted by the last one of the block before, as in Fast-dLLM v2."""
    found, expected = (
        decode(make(kind, name, is_shifted=True), canvases(), make_order("margin"), make_schedule("blocks:4+2"))
        for kind in (TransformersModel, PlainModel)
    )
    assert_same(found, expected)


@pytest.mark.parametrize("schedule", ["blocks:4", "blocks:4+threshold:0.3", "one"])
def test_a_canvas_does_not_depend_on_its_batch(model: TransformersModel, schedule: str) -> None:
    together = decode(model, canvases(), make_order("margin"), make_schedule(schedule))
    for canvas, hypothesis in zip(canvases(), together, strict=True):
        [alone] = decode(model, [canvas], make_order("margin"), make_schedule(schedule))
        assert alone.ids.tolist() == hypothesis.ids.tolist()
        assert alone.logprobs.tobytes() == hypothesis.logprobs.tobytes()


@pytest.mark.parametrize("order", ["left-to-right", "margin"])
@pytest.mark.parametrize("schedule", ["blocks:16", "blocks:16+threshold:0.99"])
def test_a_step_runs_the_current_block_only(order: str, schedule: str) -> None:
    model = make(TransformersModel)
    model.block_size = 16
    canvas = Canvas(np.concatenate([np.full(16, 1), np.full(48, MASK)]))
    with runs(model) as shapes:
        decode(model, [canvas], make_order(order), make_schedule(schedule))
    assert shapes == [(1, 16)] * (48 + 3)  # the block before, or the prompt, is run once more when it is complete


def test_what_is_kept_is_kept_for_copies_and_selections(model: TransformersModel) -> None:
    """Contexts that are made from others run as little as these, and give the same."""
    lengths = [12, 20, 7]
    numbers = [np.random.default_rng(i).integers(0, 7, length) for i, length in enumerate(lengths)]
    batch = model.pack([Canvas(tokens) for tokens in numbers])

    def ask(context: Context, chosen: list[int], changed: int | None = None) -> Tensor:
        """Hidden states at the last token of every sequence, after that token was changed."""
        tokens = [numbers[i].copy() for i in chosen]
        for one in tokens if changed is not None else []:
            one[-1] = changed
        ends = np.cumsum([len(one) for one in tokens]) - 1
        at = QueryPositions(torch.from_numpy(ends), Segments.of(np.ones(len(tokens), np.int64)))
        return context.hidden(torch.from_numpy(np.concatenate(tokens)), at)

    with torch.inference_mode():
        context = model.context(batch)
        ask(context, [0, 1, 2])
        others = {
            "copies": (context.select(np.repeat(np.arange(3), 2)), [0, 0, 1, 1, 2, 2]),
            "selection": (context.select(np.array([2, 0])), [2, 0]),
        }
        context.keep_first(2)
        others["keep_first"] = (context, [0, 1])
        for name, (other, chosen) in others.items():
            for changed in (8, 14):
                with runs(model) as shapes:
                    found = ask(other, chosen, changed)
                assert sum(rows * width for rows, width in shapes) == 16 * len(chosen), name  # a block, rounded up
                fresh = model.context(model.pack([Canvas(numbers[i]) for i in chosen]))
                assert torch.equal(found, ask(fresh, chosen, changed)), name


def test_asking_again_runs_nothing(model: TransformersModel) -> None:
    [canvas] = [Canvas(np.arange(20) % 7)]
    at = QueryPositions(torch.tensor([3, 17]), Segments.of(np.array([2])))
    tokens = torch.from_numpy(canvas.tokens)
    with torch.inference_mode():
        context = model.context(model.pack([canvas]))
        first = context.hidden(tokens, at)
        with runs(model) as shapes:
            assert torch.equal(context.hidden(tokens, at), first)
    assert shapes == []


@pytest.mark.parametrize(
    ("order", "schedule", "looks_at_less"),
    [
        ("margin", "blocks:4", True),
        ("entropy", "blocks:3+2", True),
        ("margin", "blocks:5+cosine:2", True),
        ("margin", "blocks:4+threshold:0.3", True),
        ("max-prob", "blocks:4+factor:2", True),
        ("uniform", "blocks:4+entropy-bound:1", True),
        ("margin", "blocks:4@text+2", True),
        ("margin", "blocks:4@text+threshold:0.3", True),
        ("uniform", "blocks:4@text", False),  # looks only at what is filled, either way
        ("margin", "blocks:4+klass:0.2,0.5", False),  # remembers predictions at all positions
        ("margin", "2", False),
    ],
)
def test_looking_only_where_a_step_may_fill_changes_nothing(
    model: TransformersModel, order: str, schedule: str, looks_at_less: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an order that judges every position by itself, a step looks at the current block of the schedule alone."""
    rows: list[int] = []
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: rows.append(len(hidden)) or logits(hidden))
    narrow = decode(model, canvases(), make_order(order), make_schedule(schedule))
    count = sum(rows)
    monkeypatch.setattr(engine, "reach", lambda order, schedule, state: None)
    everywhere = decode(model, canvases(), make_order(order), make_schedule(schedule))
    assert (count < sum(rows) - count) == looks_at_less
    for one, other in zip(narrow, everywhere, strict=True):
        assert (one.ids.tolist(), one.steps.tolist()) == (other.ids.tolist(), other.steps.tolist())
        assert one.logprobs.tobytes() == other.logprobs.tobytes()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize(("schedule", "revision"), [("blocks:4", "none"), ("one", "none"), ("blocks:4", "p2:3")])
def test_cuda_gives_what_the_cpu_gives(plain: TransformersModel, schedule: str, revision: str) -> None:
    """In single precision; in half precision everything is filled once."""
    expected = decode(plain, canvases(), make_order("margin"), make_schedule(schedule), make_revision(revision))
    for dtype in (torch.float32, torch.bfloat16):
        model = make(TransformersModel)
        model.network.to("cuda", dtype)
        found = decode(model, canvases(), make_order("margin"), make_schedule(schedule), make_revision(revision))
        if dtype == torch.float32:
            same = [one.ids.tolist() == other.ids.tolist() for one, other in zip(found, expected, strict=True)]
            assert sum(same) >= len(LENGTHS) - 1
        for (prompt, masked), one in zip(LENGTHS, found, strict=True):
            assert (one.steps[prompt:] > 0).sum() == masked
            assert np.isfinite(one.logprobs).all()
            assert MASK not in one.ids

"""Out of memory: a batch is halved until it fits, and the results are the same."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from anyorder import memory
from anyorder.data.packing import pack_sentences
from anyorder.decoder import Decoder
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import ONE
from anyorder.decoding.state import DecodeBatch
from anyorder.decoding.stepper import Step
from anyorder.learning.algorithm import OrderLoss, sample_rollouts
from anyorder.learning.config import RLConfig
from anyorder.learning.rewards import Accuracy
from anyorder.learning.rollout import OrderBatch, SamplingOrder, roll_out
from anyorder.memory import Halving, is_out_of_memory
from anyorder.models.base import CanvasBatch, Context
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import make_order
from anyorder.orders.learned import LearnedOrder
from tests.learning.test_algorithm import networks_for

TEXTS = [
    "Der Hund sieht ein Haus .",
    "Ein Haus .",
    "Die Katze sieht den Hund nicht .",
    "Der Hund .",
    "Ein Hund sieht .",
]
SIZES = np.array([9, 8, 8, 5, 2])


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_said", False)


def with_room_for(model: TranslationModel, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The model runs out of memory for more canvases than that; returns the sizes of the batches that it runs."""
    run: list[int] = []
    original = TranslationModel.context

    def context(self: TranslationModel, batch: CanvasBatch) -> Context:
        if len(batch.lengths) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        run.append(len(batch.lengths))
        return original(self, batch)

    monkeypatch.setattr(TranslationModel, "context", context)
    return run


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_is_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_batches_are_halved_until_they_fit_and_stay_small(capsys: pytest.CaptureFixture[str]) -> None:
    tried: list[int] = []

    def act(part: Sequence[int]) -> list[int]:
        tried.append(len(part))
        if len(part) > 3:
            raise MemoryError
        return list(part)

    halving = Halving()
    assert halving.run(range(9), act) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert halving.run(range(7), act) == [[0, 1], [2, 3], [4, 5], [6]]
    assert tried == [9, 5, 3, 3, 3, 2, 2, 2, 1]
    assert capsys.readouterr().err == "not enough memory for 9 sequences at a time: going on with 5\n"


def test_one_item_that_does_not_fit_is_an_error() -> None:
    def act(part: Sequence[int]) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        Halving().run(range(4), act)

    def fail(part: Sequence[int]) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        Halving().run(range(4), fail)


@pytest.mark.parametrize("options", [{}, {"beam": 2}, {"schedule": "threshold:0.5"}, {"length": "candidates:2"}])
def test_decoding_goes_on_with_fewer_texts(
    model: TranslationModel,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    decoder = Decoder(model)
    expected = decoder.translate(TEXTS, "de-en", **options)
    run = with_room_for(model, 2, monkeypatch)
    assert decoder.translate(TEXTS, "de-en", **options) == expected
    assert max(run) <= 2
    assert capsys.readouterr().err.count("not enough memory for ") == 1


def test_nobody_is_told_of_a_step_twice(model: TranslationModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(step: Step) -> tuple[int, int, int]:
        return step.sentence, step.length, step.step

    steps: list[Step] = []
    expected: list[Step] = []
    decoder = Decoder(model)
    decoder.translate(TEXTS, "de-en", on_step=expected.append)
    with monkeypatch.context() as patch:
        with_room_for(model, 2, patch)
        decoder.translate(TEXTS, "de-en", on_step=steps.append)
    assert sorted(map(key, steps)) == sorted(map(key, expected))
    original, calls = TranslationModel.logits, 0

    def logits(self: TranslationModel, hidden: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return original(self, hidden)

    monkeypatch.setattr(TranslationModel, "logits", logits)
    with pytest.raises(MemoryError):
        decoder.translate(TEXTS, "de-en", on_step=steps.append)


def test_progress_counts_every_text_once(model: TranslationModel, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = TranslationModel.logits, 0

    def logits(self: TranslationModel, hidden: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 5:  # most positions of the first batch are filled
            raise MemoryError
        return original(self, hidden)

    monkeypatch.setattr(TranslationModel, "logits", logits)
    finished: list[int] = []
    canvases = [model.blank_canvas(np.arange(10, 15), 6, "de-en", key) for key in range(5)]
    decode(model, canvases, make_order("margin"), ONE, on_progress=finished.append)
    assert calls > 6
    assert sum(finished) == 5
    assert min(finished) > 0


@pytest.mark.parametrize("kind", ["hidden", "confidence"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_rollouts_are_the_same_in_smaller_batches(
    model: TranslationModel, kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit: decisions, outcomes, the loss and its gradient."""
    networks = networks_for(model, kind, with_value=True)
    random, languages = np.random.default_rng(1), np.array([1, 0, 1, 1, 0])
    packed = pack_sentences([random.integers(10, 100, n) for n in (4, 9, 2, 5, 3)], 1 - languages, model.vocabulary.eos)
    keys = random.integers(-(1 << 62), 1 << 62, 15)
    sentences = DecodeBatch(model.pack_targets(packed, SIZES, languages), keys, 3)
    batch = OrderBatch(sentences, random.integers(10, 100, (5, 9)), SIZES)
    rl = RLConfig("ppo", rollouts=3, kl_coef=0.1)

    def results() -> Iterator[Any]:
        sampler = SamplingOrder(LearnedOrder(networks.policy), True, make_order("margin"), 4.0)
        decisions, outcome = roll_out(model, batch, sampler)
        yield from (getattr(outcome, field.name)[outcome.inside] for field in fields(outcome)[:1])
        yield from (outcome.steps[outcome.inside], outcome.logprobs[outcome.inside], outcome.lengths, outcome.languages)
        yield from (outcome.references, outcome.reference_lengths)
        yield from (decisions.segments.cu_seqlens, decisions.positions, decisions.chosen, decisions.step)
        yield from (decisions.opening, decisions.reference, torch.from_numpy(decisions.rollout))
        yield from (part for part in (decisions.inputs.hidden, decisions.inputs.features) if part is not None)
        rollouts = sample_rollouts(model, batch, sampler, networks, Accuracy(), rl)
        loss, report = OrderLoss(networks, rl)(rollouts)
        yield from (loss.detach(), report, *torch.autograd.grad(loss, list(networks.parameters()), allow_unused=True))

    expected = list(results())
    run = with_room_for(model, most, monkeypatch)
    found = list(results())
    assert max(run) == most if most < 3 else max(run) <= 3
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)

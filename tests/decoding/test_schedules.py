from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.engine import decode
from anyorder.decoding.revision import make_revision
from anyorder.decoding.schedules import (
    SCHEDULES,
    AdaptiveSchedule,
    Constant,
    FixedSchedule,
    Threshold,
    make_schedule,
    register_schedule,
)
from anyorder.errors import InputError
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import State, make_order
from tests.conftest import tiny
from tests.decoding.reference import dream_counts
from tests.decoding.test_engine import MIXED, canvases_of


@pytest.mark.parametrize(
    "name", ["0", "two", "-1", "1.5", "", "²", "threshold:0", "threshold:2", "threshold:x", "one:2"]
)
def test_wrong_schedules(name: str) -> None:
    with pytest.raises(InputError, match="schedule"):
        make_schedule(name)


def test_schedules_know_their_steps() -> None:
    schedule = make_schedule(3)
    assert isinstance(schedule, Constant)
    assert [schedule.steps(n) for n in (1, 3, 4, 9)] == [1, 1, 2, 3]
    assert [make_schedule(name).name for name in ("one", "4", "threshold:0.5")] == ["one", "4", "threshold:0.5"]
    with pytest.raises(InputError, match="a whole number from 1 to a thousand million"):
        make_schedule(10**30)


class Uneven(FixedSchedule):
    """Asks for nothing, or for more than there is: a longer canvas may finish before a shorter one."""

    name = "uneven"

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        return np.where(remaining % 2 == 0, 0, 99)


class Never(AdaptiveSchedule):
    """Accepts nothing."""

    name = "never"

    def accept(self, state: State, scores: Tensor) -> Tensor:
        return torch.zeros_like(state.masked)


class Always(AdaptiveSchedule):
    """Accepts even what is not masked."""

    name = "always"

    def accept(self, state: State, scores: Tensor) -> Tensor:
        return torch.ones_like(state.masked)


def test_any_schedule_fills_everything(vocabulary: Vocabulary) -> None:
    """At least one position a step, never a filled one, nothing left at the end."""
    model, canvases = tiny(vocabulary), canvases_of(MIXED[:12], vocabulary)
    for order in ("left-to-right", "margin"):
        one_by_one = decode(model, canvases, make_order(order), make_schedule("one"))
        for a, b in zip(one_by_one, decode(model, canvases, make_order(order), Never()), strict=True):
            assert a.ids.tolist() == b.ids.tolist()
            assert a.steps.tolist() == b.steps.tolist()
        for hypothesis in decode(model, canvases, make_order(order), Always()):
            assert set(hypothesis.steps.tolist()) == {1}
        uneven = Uneven()
        for canvas, hypothesis in zip(canvases, decode(model, canvases, make_order(order), uneven), strict=True):
            assert (hypothesis.steps > 0).all()
            assert hypothesis.steps.max() == uneven.steps(len(canvas.tokens))
            alone = decode(model, [canvas], make_order(order), uneven)[0]
            assert hypothesis.ids.tolist() == alone.ids.tolist()


def test_a_schedule_of_ones_own(vocabulary: Vocabulary) -> None:
    @register_schedule("half")
    class Half(FixedSchedule):
        """Half of what remains."""

        def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
            return (remaining + 1) // 2

    try:
        canvases = canvases_of([(5, 16)], vocabulary)
        [hypothesis] = decode(tiny(vocabulary), canvases, make_order("margin"), make_schedule("half"))
        assert np.bincount(hypothesis.steps)[1:].tolist() == [8, 4, 2, 1, 1]
    finally:
        del SCHEDULES["half"]


class CosineSteps(FixedSchedule):
    """As many steps as told; few positions at first, many at the end."""

    def __init__(self, steps: int):
        self.number = steps

    def counts(self, remaining: np.ndarray, total: np.ndarray, step: int) -> np.ndarray:
        return remaining - np.floor(total * np.cos(np.pi / 2 * min(1, step / self.number))).astype(np.int64)


def test_a_schedule_may_depend_on_the_step_and_the_length(vocabulary: Vocabulary) -> None:
    SCHEDULES["cosine-steps"] = CosineSteps
    try:
        model, canvases = tiny(vocabulary), canvases_of(MIXED[:20], vocabulary)
        schedule = make_schedule("cosine-steps:4")
        for canvas, hypothesis in zip(canvases, decode(model, canvases, make_order("margin"), schedule), strict=True):
            assert hypothesis.steps.max() == schedule.steps(len(canvas.tokens)) <= 4  # type: ignore[attr-defined]
            [alone] = decode(model, [canvas], make_order("margin"), schedule)
            assert hypothesis.steps.tolist() == alone.steps.tolist()
        with pytest.raises(InputError, match="takes 1 options"):
            make_schedule("cosine-steps:4,5")
    finally:
        del SCHEDULES["cosine-steps"]


def test_a_schedule_object_needs_no_name(vocabulary: Vocabulary) -> None:
    decoding = DecodingConfig("margin", CosineSteps(3)).bind(tiny(vocabulary), "de-en")
    assert decoding.signature["schedule"] == "CosineSteps"
    [trajectory] = Decoder(tiny(vocabulary)).translate("der Hund sieht", "de-en", "margin", schedule=Threshold(0.5))
    assert trajectory.length


@pytest.mark.parametrize("revision", ["none", "mask-predict:3"])
@pytest.mark.parametrize("schedule", ["one", "threshold:0.5"])
def test_canvases_without_a_mask_come_back_as_they_are(model: TranslationModel, schedule: str, revision: str) -> None:
    tokens = np.arange(4) + model.mask_token + 1
    canvas = replace(model.blank_canvas(np.arange(5, 10), 4, "de-en", key=1), tokens=tokens)
    [filled] = decode(model, [canvas], make_order("margin"), make_schedule(schedule), make_revision(revision))
    assert filled.ids.tolist() == tokens.tolist()
    assert filled.steps.tolist() == [0] * 4


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 16, 64])
@pytest.mark.parametrize("eps", [0.001, 0.1])
def test_dreams_timesteps(steps: int, eps: float) -> None:
    schedule = make_schedule(f"timesteps:{steps},{eps}")
    assert isinstance(schedule, FixedSchedule)
    for length in (1, 2, 5, 32, 100):
        assert schedule.counts_by_step(length) == dream_counts(length, steps, eps)
    total = np.array([32, 5, 32])  # counts are each sentence's own
    first = [dream_counts(n, steps, eps)[0] for n in total.tolist()]
    assert schedule.counts(total, total, 1).tolist() == first


def test_wrong_timesteps() -> None:
    with pytest.raises(InputError, match="eps 2: expected a number between 0 and 1"):
        make_schedule("timesteps:4,2")
    with pytest.raises(InputError, match="number of steps 1e.09: expected a whole number from 1 to 10,000"):
        make_schedule("timesteps:1000000000")

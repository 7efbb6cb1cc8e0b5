"""A sentence's result does not depend on its batch: bit by bit on the CPU, for every schedule and every revision."""

import numpy as np
import pytest
import torch

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.engine import decode
from anyorder.decoding.revision import make_revision
from anyorder.decoding.sampling import TokenSampler
from anyorder.decoding.schedules import SCHEDULES, FixedSchedule, make_schedule
from anyorder.decoding.state import Hypothesis
from anyorder.models.base import Canvas, CanvasBatch
from anyorder.models.native.attention import QueryPositions
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import make_order
from tests.conftest import tiny
from tests.decoding.test_engine import canvases_of, order_by_name
from tests.decoding.test_formulas import NAMED_REVISIONS, NAMED_SCHEDULES
from tests.models.test_base import MASK, NeighborContext, NeighborModel

FIXED = [name for name in NAMED_SCHEDULES if isinstance(make_schedule(name), FixedSchedule)]
ADAPTIVE = [
    "threshold:0.06", "factor:2.8", "entropy-bound:4.5", "klass:0.05,0.05", "blocks:3+threshold:0.06",
    "blocks:4+klass:0.05,0.05", "blocks:3@text+2", "blocks:4@text+threshold:0.06",
]  # fmt: skip
BEST, SAMPLED = None, TokenSampler(0.8, 0.95)
ORDERS = ["margin", "uniform", "hidden-sum"]


def small_canvases(vocabulary: Vocabulary) -> list[Canvas]:
    """Four sentences to translate; some words of the last one are given. With some schedules a long one ends first."""
    wide = canvases_of([(6, 6), (9, 7), (3, 2)], vocabulary, seed=5)
    return wide + canvases_of([(5, 8)], vocabulary, seed=55, given=0.3)


def bits(found: Hypothesis) -> tuple:
    """All that was recorded."""
    return found.ids.tolist(), found.steps.tolist(), found.logprobs.tobytes(), found.writes, found.forwards


def check(model: TranslationModel, schedule: str, revision: str, sampler: TokenSampler | None) -> None:
    """Sentences together, alone, and in small batches in another order."""
    canvases = small_canvases(model.vocabulary)
    order = "entropy" if sampler is BEST else ORDERS[len(schedule) % len(ORDERS)]
    arguments = order_by_name(order), make_schedule(schedule), make_revision(revision)
    together = [*map(bits, decode(model, canvases, *arguments, sampler=sampler))]
    small = decode(model, canvases[::-1], *arguments, sampler=sampler, batch_tokens=16)
    assert [*map(bits, small)] == together[::-1]
    for number in (0, 3):
        [alone] = decode(model, [canvases[number]], *arguments, sampler=sampler)
        assert bits(alone) == together[number]


@pytest.mark.parametrize("sampler", [BEST, SAMPLED], ids=["best", "sampled"])
@pytest.mark.parametrize("schedule", [*FIXED, *ADAPTIVE])
def test_no_schedule_depends_on_the_batch(vocabulary: Vocabulary, schedule: str, sampler: TokenSampler | None) -> None:
    check(tiny(vocabulary, source_sees_target=sampler is SAMPLED), schedule, "none", sampler)


@pytest.mark.parametrize("revision", NAMED_REVISIONS[1:])
def test_no_revision_depends_on_the_batch(vocabulary: Vocabulary, revision: str) -> None:
    """With the schedule that it is published with, and with an adaptive one."""
    check(tiny(vocabulary), make_revision(revision).usual_schedule, revision, SAMPLED)
    check(tiny(vocabulary), ADAPTIVE[NAMED_REVISIONS.index(revision) % len(ADAPTIVE)], revision, BEST)


@pytest.mark.parametrize("schedule", ADAPTIVE)
def test_these_schedules_fill_one_position_or_several(vocabulary: Vocabulary, schedule: str) -> None:
    """What is shown above would say little if they always filled one."""
    model, canvases = tiny(vocabulary), small_canvases(vocabulary)
    found = decode(model, canvases, order_by_name("margin"), make_schedule(schedule))
    masked = [one.steps[canvas.tokens == model.mask_token] for one, canvas in zip(found, canvases, strict=True)]
    counts = np.concatenate([np.bincount(steps)[1:] for steps in masked])
    assert counts.min() == 1
    assert counts.max() > 1


class ManyTokens(NeighborModel):
    """So many tokens that PyTorch would split a sum over them between two threads. The logits depend on nothing."""

    vocab_size = 40_003
    allowed_tokens = np.arange(vocab_size) > MASK

    def __init__(self, seed: int) -> None:
        self.row = torch.randn(self.vocab_size, generator=torch.Generator().manual_seed(seed))

    def context(self, batch: CanvasBatch) -> NeighborContext:
        return Blind(batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.row


class Blind(NeighborContext):
    def hidden(self, tokens: torch.Tensor, at: QueryPositions) -> torch.Tensor:
        return torch.zeros(len(at.rows), 1)

    def select(self, canvases: np.ndarray) -> "Blind":
        return self


@pytest.mark.usefixtures("two_threads")
def test_large_vocabularies_and_two_threads() -> None:
    """In a batch a step writes several tokens, alone it writes one. Rounding hides a difference in most of 40 models."""
    canvases = [Canvas(np.full(2, MASK), key=key) for key in (1, 2)]
    arguments = make_order("margin"), make_schedule("one")
    for model in map(ManyTokens, range(40)):
        [alone] = decode(model, canvases[:1], *arguments)
        assert bits(alone) == bits(decode(model, canvases, *arguments)[0])


def test_every_schedule_is_tried() -> None:
    learned = {"learned"}  # needs an order of its own: tests/learning/test_count.py
    assert set(SCHEDULES) - learned <= {name.partition(":")[0] for name in FIXED + ADAPTIVE}

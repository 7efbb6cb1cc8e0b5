"""No schedule and no revision leaves a mask, whatever its number and the canvas: all of them, through the engine."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.decoding.engine import StepOutput, decode
from anyorder.decoding.revision import REVISIONS, Gibbs, Revision, RevisionState, make_revision
from anyorder.decoding.sampling import TokenSampler
from anyorder.decoding.schedules import SCHEDULES, FixedSchedule, make_schedule
from anyorder.decoding.state import Hypothesis
from anyorder.models.base import Canvas, CanvasBatch, Context
from anyorder.models.native.attention import QueryPositions
from anyorder.orders import make_order
from tests.models.test_base import MASK, NeighborModel

LONGEST, NUMBERS = 60, range(1, 21)
ORDERS = ["margin", "uniform", "max-prob", "outer-in", "entropy", "dilated"]


class TableContext(Context):
    """The hidden state of a position is the token on its left and the one on its right, of any canvas."""

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        return torch.stack([tokens[at.rows - 1], tokens[(at.rows + 1) % len(tokens)]], 1)

    def keep_first(self, count: int) -> None:
        pass

    def select(self, canvases: np.ndarray) -> "TableContext":
        return self


class TableModel(NeighborModel):
    """Random logits for every pair of neighbors, some flat, some sharp. It is the fastest model there is."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        pairs = (self.vocab_size, self.vocab_size, 1)
        self.table = torch.randn(*pairs[:2], self.vocab_size, generator=generator)
        self.table *= 5 * torch.rand(pairs, generator=generator)

    def context(self, batch: CanvasBatch) -> TableContext:  # type: ignore[override]
        return TableContext()

    def logits(self, hidden: Tensor) -> Tensor:
        return self.table[hidden[:, 0], hidden[:, 1]]


MODEL = TableModel()


@cache
def canvases_of(number: int) -> list[Canvas]:
    """Canvases with 1 to 60 masked positions; with an odd number, up to four given ones between them."""
    rng = np.random.default_rng(number)
    canvases = []
    for masked in range(1, LONGEST + 1):
        known = rng.choice(np.flatnonzero(MODEL.allowed_tokens), masked % 5 * (number % 2))
        tokens = rng.permutation(np.concatenate([np.full(masked, MASK), known]))
        canvases.append(Canvas(tokens, key=int(rng.integers(1 << 62))))
    return canvases


def arguments_of(number: int) -> dict:
    """An order and a sampler or none, other ones with other numbers."""
    return {
        "order": make_order(ORDERS[number % len(ORDERS)]),
        "sampler": TokenSampler(1.0) if number % 3 == 0 else None,
    }


def dilations(total: int, base: int) -> int:
    """How often a canvas can be divided by the base until the stride is 1."""
    return next(t for t in range(1, 10) if total // base**t <= 1)


Steps = Callable[[int, int], int]
"""The most steps that a canvas may take, from how many positions are masked and a number n."""


def at_most(total: int, n: int) -> int:
    return min(total, n)


def one_each(total: int, n: int) -> int:
    return total


SCHEDULES_BY_NUMBER: dict[str, Steps] = {
    "{n}": lambda total, n: -(-total // n),
    "steps:{n}": at_most,
    "linear:{n}": at_most,
    "cosine:{n}": at_most,
    "timesteps:{n}": at_most,
    "rounded:{n}": at_most,
    "dilated:{base}": lambda total, n: dilations(total, n + 1),
    "threshold:{share}": one_each,
    "factor:{factor}": one_each,
    "entropy-bound:{nats}": one_each,
    "klass:{share},{small}": one_each,
    "blocks:{n}+{fixed}": lambda total, n: sum(min(n, total - i, 4) for i in range(0, total, n)),
    "blocks:{n}+{adaptive}": one_each,
}
REVISIONS_BY_NUMBER: dict[str, Steps] = {
    "mask-predict:{n}": lambda total, n: n,
    "p2:{n},{factor}": lambda total, n: n,
    "refine:{n}": lambda total, n: n + 1,
    "remdm:{n},{share}": lambda total, n: n,
    "remdm-rescale:{n},{share}": lambda total, n: n,
    "remdm-conf:{n}": lambda total, n: n,
}
FIXED = ["steps:3", "rounded:3", "linear:4", "cosine:4", "timesteps:4", "dilated"]
ADAPTIVE = ["threshold:0.6", "factor:1", "entropy-bound:1", "klass:0.3,0.05"]


def named(template: str, n: int) -> str:
    """A name with its numbers: n itself, or numbers that go through the range of a parameter as n does."""
    inner = {"fixed": FIXED[n % len(FIXED)], "adaptive": ADAPTIVE[n % len(ADAPTIVE)]}
    return template.format(n=n, base=n + 1, share=n / 20, factor=n / 5, nats=(n - 1) / 5, small=n / 100, **inner)


def distinct(numbers: np.ndarray) -> np.ndarray:
    """As `np.unique`, much faster."""
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=-1) > 0]


class Decoded:
    """Canvases and what became of them, end to end."""

    def __init__(self, canvases: Sequence[Canvas], found: Sequence[Hypothesis]):
        sizes = [len(canvas.tokens) for canvas in canvases]
        self.starts = np.cumsum(sizes, dtype=np.int64) - np.array(sizes)
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.given = np.concatenate([canvas.tokens for canvas in canvases])
        self.masked = self.given == MASK
        self.total = np.add.reduceat(self.masked, self.starts, dtype=np.int64)
        self.ids, self.steps, self.logprobs = (
            np.concatenate([getattr(one, name) for one in found]) for name in ("ids", "steps", "logprobs")
        )
        self.forwards = np.array([one.forwards for one in found])
        counts = [len(one.writes or ()) for one in found]
        self.writer = np.repeat(np.arange(len(found)), counts)
        """Whose canvas each write belongs to."""
        numbers = chain.from_iterable(chain.from_iterable(one.writes or () for one in found))
        self.writes = np.fromiter(numbers, float, 4 * sum(counts)).reshape(-1, 4)

    def check_filled(self) -> None:
        """Nothing is masked, what was given is there, and the rest are tokens that may be written."""
        assert MODEL.allowed_tokens[self.ids[self.masked]].all()
        assert (self.ids[~self.masked] == self.given[~self.masked]).all()
        assert (self.steps[~self.masked] == 0).all()
        assert (self.steps[self.masked] >= 1).all()

    def check_every_step(self, owner: np.ndarray, steps: np.ndarray) -> None:
        """Every forward pass of a canvas wrote something. owner, steps: of what was written."""
        assert (steps >= 1).all()
        assert (steps <= self.forwards[owner]).all()
        assert np.bincount(distinct(owner << 20 | steps) >> 20).tolist() == self.forwards.tolist()

    def check_writes(self) -> None:
        """Every masked position was written, never twice in a step, and the last write is what stands there."""
        self.check_filled()
        position, step, token = self.writes[:, :3].astype(np.int64).T
        owner, at = self.writer, self.starts[self.writer] + position
        assert MODEL.allowed_tokens[token].all()
        assert ((np.diff(step) >= 0) | (np.diff(owner) == 1)).all()
        self.check_every_step(owner, step)
        assert len(distinct(at << 20 | step)) == len(at)
        last = np.full(len(self.ids), -1)
        last[at] = np.arange(len(at))
        assert ((last >= 0) == self.masked).all()
        last = last[self.masked]
        assert (token[last] == self.ids[self.masked]).all()
        assert (step[last] == self.steps[self.masked]).all()
        assert (self.writes[last, 3] == self.logprobs[self.masked]).all()


@pytest.mark.parametrize("template", SCHEDULES_BY_NUMBER)
def test_schedules_fill_every_position_once(template: str) -> None:
    """1 to 60 positions, n from 1 to 20."""
    for n in NUMBERS:
        schedule, canvases = make_schedule(named(template, n)), canvases_of(n)
        fills = np.zeros((len(canvases), LONGEST + 4), np.int64)

        def count(
            chosen: np.ndarray, output: StepOutput, filled: Tensor, *written: Tensor, fills: np.ndarray = fills
        ) -> None:
            row, position = np.divmod(filled.numpy(), output.view.masked.shape[1])
            np.add.at(fills, (chosen[row], position), 1)

        found = decode(MODEL, canvases, schedule=schedule, **arguments_of(n), on_step=count)
        decoded = Decoded(canvases, found)
        if template.startswith("blocks"):  # a callback sees all predictions; without one, those of a block may do
            unwatched = Decoded(canvases, decode(MODEL, canvases, schedule=schedule, **arguments_of(n)))
            assert (unwatched.ids == decoded.ids).all()
            assert (unwatched.steps == decoded.steps).all()
        decoded.check_filled()
        inside = np.arange(fills.shape[1]) < np.diff(decoded.starts, append=len(decoded.ids))[:, None]
        assert (fills[inside] == decoded.masked).all()
        assert fills.sum() == decoded.masked.sum()
        assert all(one.writes is None for one in found)
        decoded.check_every_step(decoded.owner[decoded.masked], decoded.steps[decoded.masked])
        for total, steps in zip(decoded.total.tolist(), decoded.forwards.tolist(), strict=True):
            assert steps <= SCHEDULES_BY_NUMBER[template](total, n)
            if isinstance(schedule, FixedSchedule) and total % 6 == n % 6:
                assert steps == schedule.steps(total)


@pytest.mark.parametrize("template", REVISIONS_BY_NUMBER)
def test_revisions_leave_no_mask(template: str) -> None:
    """1 to 60 positions, n from 1 to 20, with the schedule that the revision is published with."""
    revised = 0
    for n in NUMBERS:
        revision, canvases = make_revision(named(template, n)), canvases_of(n)
        schedule = make_schedule(revision.usual_schedule)
        found = decode(MODEL, canvases, schedule=schedule, revision=revision, **arguments_of(n))
        decoded = Decoded(canvases, found)
        decoded.check_writes()
        for total, steps in zip(decoded.total.tolist(), decoded.forwards.tolist(), strict=True):
            assert steps <= REVISIONS_BY_NUMBER[template](total, n)
        revised += len(decoded.writes) > decoded.masked.sum()
    assert revised >= len(NUMBERS) - 3  # with up to three iterations there may be nothing to mask again


class GibbsByKey(Gibbs):
    """As many passes over each canvas as its key says: all of them decode together."""

    def remask(self, state: RevisionState) -> Tensor:
        self.iterations = state.keys  # type: ignore[assignment]
        return super().remask(state)

    def last_step(self, length: int) -> int:
        return length * (NUMBERS[-1] + 1)


def test_gibbs_leaves_no_mask() -> None:
    """1 to 60 positions, 1 to 20 passes. That many steps take long one by one, so only some run by themselves."""
    cases = [(length, passes) for length in range(1, LONGEST + 1) for passes in NUMBERS]
    together = decode_gibbs(cases, GibbsByKey())
    decoded = Decoded([Canvas(np.full(length, MASK)) for length, _ in cases], together)
    decoded.check_writes()
    assert decoded.forwards.tolist() == [length * (1 + passes) for length, passes in cases]
    assert len(decoded.writes) == decoded.forwards.sum()
    for passes in NUMBERS:
        some = [i for i, case in enumerate(cases) if case[1] == passes and case[0] <= (60 if passes == 1 else 4)]
        for i, one in zip(some, decode_gibbs([cases[i] for i in some], make_revision(f"gibbs:{passes}")), strict=True):
            assert [write[:2] for write in one.writes or ()] == [write[:2] for write in together[i].writes or ()]


def decode_gibbs(cases: Sequence[tuple[int, int]], revision: Revision) -> list[Hypothesis]:
    canvases = [Canvas(np.full(length, MASK), key=passes) for length, passes in cases]
    return decode(MODEL, canvases, make_order("left-to-right"), make_schedule("one"), revision, batch_tokens=1 << 20)


def test_every_name_is_tried() -> None:
    schedules = set(SCHEDULES) - {"learned"}  # needs an order of its own: tests/learning/test_count.py
    assert schedules <= {template.partition(":")[0] for template in SCHEDULES_BY_NUMBER}
    assert schedules == {name.partition(":")[0] for name in [*FIXED, *ADAPTIVE, "blocks"]}
    assert set(REVISIONS) == {template.partition(":")[0] for template in REVISIONS_BY_NUMBER} | {"none", "gibbs"}

"""Every schedule and every revision is what its formula says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyorder.data.vocabulary import Vocabulary
from anyorder.decoding.engine import decode
from anyorder.decoding.revision import REVISIONS, make_revision, split_revisions
from anyorder.decoding.schedules import SCHEDULES, FixedSchedule, make_schedule, split_schedules
from anyorder.decoding.state import Hypothesis
from anyorder.errors import InputError
from anyorder.models.base import Canvas
from anyorder.orders import make_order
from tests.conftest import tiny
from tests.decoding.reference import Reference, decode_by_formula, dllm_counts
from tests.decoding.test_engine import canvases_of
from tests.models.test_base import MASK, NeighborModel

MODEL = NeighborModel()
NAMED_SCHEDULES = [
    "one", "3", "steps:3", "linear:4", "cosine:4", "timesteps:4", "dilated:2", "dilated:3", "threshold:0.4", "factor:1.2",
    "entropy-bound:1.5", "klass:0.3,0.01", "blocks:3", "blocks:4+cosine:2", "blocks:4+threshold:0.4",
    "blocks:5+klass:0.3,0.01", "blocks:5+entropy-bound:1.5", "rounded:4", "blocks:3@text", "blocks:4@text+steps:2",
    "blocks:4@text+threshold:0.4", "blocks:5@text+klass:0.3,0.01", "blocks:2@answer+2",
]  # fmt: skip
NAMED_REVISIONS = [
    "none", "mask-predict:4", "p2:4", "p2:3,2", "refine:3", "gibbs:1", "gibbs:2", "remdm:8,0.5", "remdm-rescale:8,0.5",
    "remdm-conf:8",
]  # fmt: skip
ORDERS = ["left-to-right", "uniform", "dilated", "max-prob", "margin", "entropy"]


def random_canvas(length: int, seed: int, given: float) -> Canvas:
    rng = np.random.default_rng(seed)
    tokens = np.where(rng.random(length) < given, rng.choice([0, 1, 2, 4, 5, 6], length), MASK)
    return Canvas(tokens, key=int(rng.integers(1 << 62)))


def assert_equal(found: Hypothesis, expected: Reference, revision: str) -> None:
    assert found.ids.tolist() == expected.tokens
    assert found.steps.tolist() == [expected.steps.get(i, 0) for i in range(len(expected.tokens))]
    assert found.logprobs == pytest.approx([expected.logprobs.get(i, 0) for i in range(len(found.ids))], abs=1e-5)
    assert found.forwards == expected.step
    if revision == "none":
        assert found.writes is None
    else:
        assert found.writes is not None
        assert [write[:3] for write in found.writes] == [write[:3] for write in expected.writes]


CANVASES = st.lists(
    st.builds(random_canvas, st.integers(1, 8), st.integers(0, 10**6), st.sampled_from([0.0, 0.0, 0.4])),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
@settings(max_examples=4)
@given(canvases=CANVASES, order=st.sampled_from(ORDERS))
def test_schedules_equal_their_formulas(schedule: str, order: str, canvases: list[Canvas]) -> None:
    found = decode(MODEL, canvases, make_order(order), make_schedule(schedule))
    for canvas, hypothesis in zip(canvases, found, strict=True):
        assert_equal(hypothesis, decode_by_formula(MODEL, canvas, make_order(order), schedule), "none")


@pytest.mark.parametrize("revision", NAMED_REVISIONS[1:])
@settings(max_examples=3)
@given(
    canvases=CANVASES,
    order=st.sampled_from(ORDERS),
    schedule=st.sampled_from(["usual", "one", "2", "threshold:0.4", "factor:1.2", "klass:0.3,0.01"]),
)
def test_revisions_equal_their_formulas(revision: str, schedule: str, order: str, canvases: list[Canvas]) -> None:
    schedule = make_revision(revision).usual_schedule if schedule == "usual" else schedule
    found = decode(MODEL, canvases, make_order(order), make_schedule(schedule), make_revision(revision))
    for canvas, hypothesis in zip(canvases, found, strict=True):
        assert_equal(hypothesis, decode_by_formula(MODEL, canvas, make_order(order), schedule, revision), revision)


@pytest.mark.parametrize("revision", ["refine:2", "p2:3", "mask-predict:3"])
def test_a_model_that_sees_the_tokens_it_revises(vocabulary: Vocabulary, revision: str) -> None:
    model, schedule = tiny(vocabulary), make_revision(revision).usual_schedule
    canvases = canvases_of([(5, 7), (12, 3), (9, 10)], vocabulary)
    found = decode(model, canvases, make_order("margin"), make_schedule(schedule), make_revision(revision))
    for canvas, hypothesis in zip(canvases, found, strict=True):
        assert_equal(hypothesis, decode_by_formula(model, canvas, make_order("margin"), schedule, revision), revision)


def test_every_name_is_compared_with_its_formula() -> None:
    learned = {"learned"}  # needs an order of its own: tests/learning/test_count.py
    assert set(SCHEDULES) - learned <= {name.partition(":")[0] for name in NAMED_SCHEDULES}
    assert set(REVISIONS) == {name.partition(":")[0] for name in NAMED_REVISIONS}


@pytest.mark.parametrize("kind", ["steps", "linear", "cosine", "blocks", "blocks:3+linear", "dilated"])
def test_fixed_schedules_take_as_many_steps_as_they_say(kind: str) -> None:
    """For all numbers of steps (or sizes) up to 60 and all lengths up to 20."""
    for number in range(2 if kind == "dilated" else 1, 61):
        schedule = make_schedule(f"{kind}:{number}")
        assert isinstance(schedule, FixedSchedule)
        for length in range(1, 21):
            counts = schedule.counts_by_step(length)
            assert sum(counts) == length
            assert min(counts) >= 1
            assert len(counts) == schedule.steps(length)
            if kind in ("steps", "linear", "cosine"):
                assert len(counts) <= number


LENGTHS = [random_canvas(length, length, 0.0) for length in range(1, 21)]


@pytest.mark.parametrize("schedule", NAMED_SCHEDULES)
@pytest.mark.parametrize("revision", ["mask-predict:5", "remdm:30,1"])
def test_any_schedule_and_revision_leave_no_mask(schedule: str, revision: str) -> None:
    found = decode(MODEL, LENGTHS[::6], make_order("uniform"), make_schedule(schedule), make_revision(revision))
    assert all((one.ids != MASK).all() for one in found)


def test_dilated_is_an_order_and_counts() -> None:
    """The grid of 16 positions: strides 8, 4, 2 and 1."""
    canvas = random_canvas(16, 1, 0.0)
    [hypothesis] = decode(MODEL, [canvas], make_order("dilated"), make_schedule("dilated"))
    assert hypothesis.steps.tolist() == [1, 4, 3, 4, 2, 4, 3, 4, 1, 4, 3, 4, 2, 4, 3, 4]


def test_blocks_count_what_was_masked() -> None:
    """Three given positions belong to no block."""
    canvas = Canvas(np.array([0, 1, 2, *[MASK] * 5]))
    [hypothesis] = decode(MODEL, [canvas], make_order("right-to-left"), make_schedule("blocks:2"))
    assert hypothesis.steps.tolist() == [0, 0, 0, 2, 1, 4, 3, 5]


def test_blocks_of_the_text_count_what_was_given() -> None:
    """Three given positions belong to the first blocks, and a block's steps are those of a whole one."""
    canvas = Canvas(np.array([0, 1, 2, *[MASK] * 6]))
    found = {}
    for schedule in ("blocks:2@text", "blocks:4@text+steps:2", "blocks:4@text+1"):
        [hypothesis] = decode(MODEL, [canvas], make_order("right-to-left"), make_schedule(schedule))
        found[schedule] = hypothesis.steps.tolist()[3:]
    assert found["blocks:2@text"] == [1, 3, 2, 5, 4, 6]
    assert found["blocks:4@text+steps:2"] == [1, 3, 3, 2, 2, 4]
    assert found["blocks:4@text+1"] == [1, 5, 4, 3, 2, 6]
    [middle] = decode(
        MODEL,
        [Canvas(np.array([MASK, 0, MASK, MASK, MASK, 1]))],
        make_order("left-to-right"),
        make_schedule("blocks:4@text+3"),
    )
    assert middle.steps.tolist() == [1, 0, 1, 1, 2, 0]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 16])
def test_dllms_steps(steps: int) -> None:
    schedule = make_schedule(f"rounded:{steps}")
    assert isinstance(schedule, FixedSchedule)
    for length in (1, 2, 3, 5, 11, 32):
        assert schedule.counts_by_step(length) == dllm_counts(length, steps)


def test_lists_of_names() -> None:
    assert split_schedules("one, 4,klass:0.9,0.01,blocks:8+factor:1.5") == [
        "one", "4", "klass:0.9,0.01", "blocks:8+factor:1.5",
    ]  # fmt: skip
    assert split_revisions("none,p2:10,2,gibbs") == ["none", "p2:10,2", "gibbs"]


@pytest.mark.parametrize(
    "name",
    [
        "steps:0", "linear:1.5", "cosine:x", "cosine:nan", "dilated:1", "factor:0", "entropy-bound:-1", "klass:2",
        "klass:0.9,0", "blocks", "blocks:0", "blocks:4+two", "blocks:4+blocks:2", "blocks:1.5+one", "steps:1e12",
        "blocks:4@prompt", "blocks:@text", "blocks:4@text+blocks:2", "rounded:0", "rounded:1e9",
    ],
)  # fmt: skip
def test_wrong_schedules(name: str) -> None:
    with pytest.raises(InputError, match="schedule"):
        make_schedule(name)


@pytest.mark.parametrize(
    "name",
    ["mask-predict:0", "mask-predict:1001", "p2:10,-1", "refine:1.5", "gibbs:x", "gibbs:1,2", "remdm:10,2", "some"],
)
def test_wrong_revisions(name: str) -> None:
    with pytest.raises(InputError, match="revision"):
        make_revision(name)

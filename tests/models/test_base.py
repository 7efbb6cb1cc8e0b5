"""The engine sees a model through a small protocol: any masked model will do, also one without a source."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from anyorder.data.packing import PackedBatch, ranges
from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.models.base import (
    AllowedTokens,
    Canvas,
    CanvasBatch,
    Context,
    Model,
    log_probability,
    row_sums,
)
from anyorder.models.native.attention import QueryPositions
from anyorder.orders import make_order

VOCABULARY = "abcdefgh"
MASK = 3  # in the middle of the vocabulary, as in many language models


class NeighborContext(Context):
    """The hidden state of a position is the one-hot token on its left and on its right; the ends are zeros."""

    def __init__(self, batch: CanvasBatch):
        self._batch = batch

    def hidden(self, tokens: Tensor, at: QueryPositions) -> Tensor:
        size = len(VOCABULARY)
        packed = self._batch.packed
        owner = torch.from_numpy(np.repeat(np.arange(len(packed.sizes)), packed.sizes))[: len(tokens)]
        states = torch.zeros(len(tokens), 2, size)
        for side, shift in ((0, 1), (1, -1)):
            neighbor = tokens.roll(shift)
            inside = owner == owner.roll(shift)
            inside[0 if shift == 1 else -1] = False
            states[inside, side] = torch.nn.functional.one_hot(neighbor, size).float()[inside]
        return states.flatten(1)[at.rows]

    def keep_first(self, count: int) -> None:
        self._batch = self._batch.take(np.arange(count))

    def select(self, canvases: np.ndarray) -> "NeighborContext":
        return NeighborContext(self._batch.take(canvases))


class NeighborModel:
    """A masked language model of a few letters, without a source and without delimiters."""

    device = torch.device("cpu")
    vocab_size = len(VOCABULARY)
    mask_token = MASK
    max_length = 64
    allowed_tokens = np.array([letter not in "dh" for letter in VOCABULARY])  # neither the mask nor the last letter

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(4)
        self.weight = torch.randn(len(VOCABULARY), 2 * len(VOCABULARY), generator=generator)
        self.bias = torch.randn(len(VOCABULARY), generator=generator)

    def pack(self, canvases: Sequence[Canvas]) -> CanvasBatch:
        lengths = np.array([len(canvas.tokens) for canvas in canvases])
        positions = ranges(np.zeros_like(lengths), lengths)
        tokens = np.concatenate([canvas.tokens for canvas in canvases])
        packed = PackedBatch(tokens, positions, np.zeros_like(positions), lengths)
        return CanvasBatch(packed, packed.starts, lengths)

    def context(self, batch: CanvasBatch) -> NeighborContext:
        return NeighborContext(batch)

    def logits(self, hidden: Tensor) -> Tensor:
        return (hidden[:, None] * self.weight).sum(-1) + self.bias

    def to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        return [VOCABULARY[i] for i in ids]

    def to_text(self, ids: Sequence[int] | np.ndarray, task: str) -> str:
        return "".join(self.to_tokens(ids))


def canvas_of(text: str, key: int = 0) -> Canvas:
    """`_` is masked."""
    return Canvas(np.array([MASK if letter == "_" else VOCABULARY.index(letter) for letter in text]), key=key)


CANVASES = ["____", "a__b_", "_", "bca", "_a_____c__", "__e__"]


@pytest.mark.parametrize("schedule", ["one", "2", "threshold:0.4"])
@pytest.mark.parametrize("order", ["left-to-right", "outer-in", "uniform", "margin", "max-prob", "entropy"])
def test_a_model_without_a_source_is_decoded_in_every_order(order: str, schedule: str) -> None:
    model: Model = NeighborModel()
    canvases = [canvas_of(text, key) for key, text in enumerate(CANVASES)]
    found = decode(model, canvases, make_order(order), make_schedule(schedule))
    for text, canvas, hypothesis in zip(CANVASES, canvases, found, strict=True):
        written = model.to_text(hypothesis.ids, "")
        assert len(written) == len(text)
        assert all(a == b for a, b in zip(text, written, strict=True) if a != "_")
        assert not set(written) & {"d", "h"}
        [alone] = decode(model, [canvas], make_order(order), make_schedule(schedule))
        assert hypothesis.ids.tolist() == alone.ids.tolist()
        assert hypothesis.steps.tolist() == alone.steps.tolist()
        assert hypothesis.logprobs.tolist() == alone.logprobs.tolist()


def test_left_to_right_by_hand() -> None:
    model = NeighborModel()
    [hypothesis] = decode(model, [canvas_of("a_b")], make_order("left-to-right"), make_schedule("one"))
    hidden = torch.zeros(1, 2, 8)
    hidden[0, 0, 0] = hidden[0, 1, 1] = 1
    logits = model.logits(hidden.flatten(1))
    best = int(logits.masked_fill(torch.from_numpy(~model.allowed_tokens), -torch.inf).argmax())
    assert hypothesis.ids.tolist() == [0, best, 1]
    assert hypothesis.logprobs[1] == pytest.approx(float(logits.log_softmax(-1)[0, best]), abs=1e-6)


def test_allowed_tokens_are_any_boolean_vector() -> None:
    prefix = AllowedTokens(np.array([False, False, True, True]), torch.device("cpu"))
    assert (prefix.first, prefix.blocked) == (2, None)
    scattered = AllowedTokens(NeighborModel.allowed_tokens, torch.device("cpu"))
    assert scattered.first == 0
    assert scattered.blocked is not None
    logits = torch.zeros(1, 8)
    logits[0, 7] = 9.0
    logits[0, 4] = 5.0
    token, logprob = scattered.best(logits)
    assert token.tolist() == [4]
    assert float(logprob) == pytest.approx(float(logits.log_softmax(-1)[0, 4]))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("size", [8, 203, 40_003])
def test_sums_of_a_row_do_not_depend_on_other_rows(size: int) -> None:
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(1))
    together = row_sums(values)
    assert together.tolist() == [float(row_sums(row[None])) for row in values]
    assert together.tolist() == pytest.approx(values.sum(-1).tolist(), rel=1e-3)
    assert row_sums(values[:0]).shape == (0,)


def test_log_probabilities_are_those_of_double_precision() -> None:
    """To the last digits of what sets a probability apart from 1, and also where a blocked token is likelier."""
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(1)) * 4
    logits[:3, 4] += torch.tensor([20.0, 40.0, 80.0])
    expected = logits.double() - logits.double().max(-1, keepdim=True).values
    others = expected.exp().scatter(-1, expected.argmax(-1, keepdim=True), 0).sum(-1, keepdim=True)
    expected -= others.log1p()
    found = log_probability(logits, logits)
    assert torch.allclose(found.double(), expected, rtol=1e-6, atol=0)
    assert torch.equal(log_probability(logits, logits[:, 2]), found[:, 2])
    assert (found[:3, 4] < 0).all()

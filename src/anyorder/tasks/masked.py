"""Tasks of masked language models: fill the masks of texts, or continue prompts with masks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyorder.data.line_problems import Problem, clean_line
from anyorder.data.random_streams import random_for
from anyorder.decoding.config import AUTO, GIVEN, BoundDecoding, DecodingConfig, make_beam
from anyorder.decoding.revision import NoRevision, make_revision
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.trajectory import GENERATE, INFILL, Trajectory
from anyorder.errors import InputError, check_number
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.orders import make_order
from anyorder.tasks.base import NOTHING, Task, canvas_key

DEFAULT_LENGTH = 64
MASK_SHARE = 0.5
"""The share of a text's tokens that is masked where nothing else is asked for."""
FEWEST = 2
"""Masked tokens of a text: with one there is no order to choose."""
LEFT_TO_RIGHT = "left-to-right"


@dataclass(frozen=True)
class MaskedText:
    """One text with masks, encoded."""

    text: str
    tokens: np.ndarray
    """(T,) ids of the canvas."""
    problems: tuple[Problem, ...]
    can_fill: bool
    task: str
    """What the trajectory calls the task."""


class Infill(Task):
    """Fill the masks of texts."""

    name = mode = INFILL

    def check(self, model: TransformersModel) -> None:
        if not isinstance(model, TransformersModel):
            raise InputError(f"{model.name}: is a translation model, which does not fill masks in texts")

    def complete(self, config: DecodingConfig, model: TransformersModel) -> DecodingConfig:
        """The length is given, and a block-causal model fills one block after the other unless the config says more."""
        return replace(with_blocks(config, model), length=GIVEN)

    def examples(
        self, model: TransformersModel, lines: Sequence[str], references: Sequence[str] | None = None
    ) -> list[MaskedText]:
        cleaned = [clean_line(line) for line in lines]
        encoded = model.encode([text for text, _ in cleaned])
        examples = []
        for (text, problems), ids in zip(cleaned, encoded, strict=True):
            tokens = self._canvas_tokens(ids, model)
            unfit = _no_room(tokens, model)
            if not unfit and not (tokens == model.mask_token).any():
                unfit = (Problem("source", "unmasked source", "has no mask, so there is nothing to fill"),)
            examples.append(MaskedText(text, tokens, problems + unfit, not unfit, self.name))
        return examples

    def _canvas_tokens(self, ids: np.ndarray, model: TransformersModel) -> np.ndarray:
        """(T,) what the canvas of a text holds."""
        return ids

    def canvases(
        self, model: TransformersModel, examples: Sequence[MaskedText], decoding: BoundDecoding
    ) -> list[list[list[Canvas]]]:
        return [[[self._keyed(example.tokens, decoding.seed)] if example.can_fill else []] for example in examples]

    def _keyed(self, tokens: np.ndarray, seed: int) -> Canvas:
        return Canvas(tokens, None, self.mode, canvas_key(seed, tokens, len(tokens)))

    def trajectory(
        self, model: TransformersModel, example: MaskedText, parts: Sequence[Hypothesis | None], decoding: BoundDecoding
    ) -> Trajectory:
        [hypothesis] = parts
        masked = example.tokens == model.mask_token
        if hypothesis is None:
            given = model.to_tokens(example.tokens) if len(masked) and not masked.any() else None
            return self.record(
                model, example, decoding, NOTHING, text=example.text, tokens=[], canvas=given, task=example.task
            )
        ids = hypothesis.ids
        ends = np.flatnonzero(masked & np.isin(ids, list(model.end_tokens)))
        shown = list(zip(model.to_tokens(ids), masked, strict=True))
        return self.record(
            model, example, decoding, hypothesis, masked,
            text=model.to_text(ids[: ends[0]] if len(ends) else ids, self.mode),
            tokens=[token for token, is_masked in shown if is_masked],
            canvas=[None if is_masked else token for token, is_masked in shown],
            task=example.task,
        )  # fmt: skip

    def canvas(self, model: TransformersModel, text: str, length: int | None = None, seed: int = 1) -> Canvas:
        if length is not None:
            raise InputError("is given, but this model does not translate", "length")
        [example] = self.examples(model, [text])
        if not example.can_fill:
            raise InputError(f"text: {example.problems[-1].error}")
        return self._keyed(example.tokens, seed)


class Generate(Infill):
    """Continue prompts: `length` masks after each are filled. The text ends at the first end token."""

    name = mode = GENERATE

    def __init__(self, length: int = DEFAULT_LENGTH):
        check_number("length", length, at_least=1)
        self.length = length

    def check(self, model: TransformersModel) -> None:
        super().check(model)
        check_number("length", self.length, at_least=1, at_most=model.max_length)

    def model_for(self, model: TransformersModel) -> TransformersModel:
        return model.generating()

    def complete(self, config: DecodingConfig, model: TransformersModel) -> DecodingConfig:
        return replace(with_blocks(config, model), length=f"fixed:{self.length}")

    def _canvas_tokens(self, ids: np.ndarray, model: TransformersModel) -> np.ndarray:
        return np.concatenate([ids, np.full(self.length, model.mask_token, np.int64)])


def with_blocks(config: DecodingConfig, model: TransformersModel) -> DecodingConfig:
    """The config with the default schedule of a block-causal model: one block after the other."""
    size, beam = model.block_size, make_beam(config.beam)
    if size is None:
        return config
    if beam.size > 1 and (config.order == AUTO or make_order(config.order).name != LEFT_TO_RIGHT):
        raise beam.error(f"{model.name} is filled in blocks, so the order must be {LEFT_TO_RIGHT}")
    if beam.size > 1 or config.schedule != AUTO or not isinstance(make_revision(config.revision), NoRevision):
        return config
    return replace(config, schedule=f"blocks:{size}")


@dataclass(frozen=True)
class MaskedLine:
    """A plain text, some of whose tokens are masked."""

    example: MaskedText
    ids: np.ndarray
    """(T,) ids of the whole text."""
    masked: np.ndarray
    """(T,) bool; nothing is masked if the line cannot be used."""


def mask_lines(
    model: TransformersModel, lines: Sequence[str], share: float = MASK_SHARE, seed: int = 1
) -> list[MaskedLine]:
    """Mask a share of the tokens of each line: the same ones whenever an order is learned or scored on these lines.

    share: at least two tokens of a line are masked, so that there is a choice.
    """
    check_number("mask_share", share, above=0, at_most=1)
    cleaned = [clean_line(line) for line in lines]
    encoded = model.encode([text for text, _ in cleaned])
    found = []
    for number, ((text, problems), ids) in enumerate(zip(cleaned, encoded, strict=True)):
        unfit = _no_room(ids, model)
        if (ids == model.mask_token).any():
            unfit = (Problem("source", "masked source", "holds a mask already, expected a plain text"),)
        masked = np.zeros(len(ids), bool) if unfit else mask_positions(len(ids), share, seed, number)
        tokens = np.where(masked, model.mask_token, ids)
        found.append(MaskedLine(MaskedText(text, tokens, problems + unfit, not unfit, INFILL), ids, masked))
    return found


def mask_positions(length: int, share: float, seed: int, number: int) -> np.ndarray:
    """(length,) bool: the positions to mask in line `number`."""
    masked = np.zeros(length, bool)
    count = min(length, max(FEWEST, round(share * length)))
    masked[random_for(seed, "mask", number).permutation(length)[:count]] = True
    return masked


def _no_room(ids: np.ndarray, model: TransformersModel) -> tuple[Problem, ...]:
    """What is wrong with the length of a text, if anything is."""
    if len(ids) == 0:
        return (Problem("source", "empty source", "is empty, expected a text"),)
    if len(ids) > model.max_length:
        error = f"{len(ids):,} tokens, the model has room for {model.max_length:,}"
        return (Problem("source", f"oversized source ({error})", error),)
    return ()

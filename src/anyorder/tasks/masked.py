"""Tasks of masked language models: fill the masks of texts, or continue prompts with masks."""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from anyorder.data.line_problems import Problem, clean_line, valid_text
from anyorder.data.random_streams import random_for
from anyorder.decoding.config import AUTO, GIVEN, BoundDecoding, DecodingConfig, make_beam, make_length
from anyorder.decoding.ends import EndsLast, accept_ends_last
from anyorder.decoding.revision import NoRevision, make_revision
from anyorder.decoding.schedules import Blocks, counted_from_text, make_schedule
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.trajectory import GENERATE, INFILL, Trajectory
from anyorder.device import to_device
from anyorder.errors import InputError, check_number
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel
from anyorder.orders import make_order
from anyorder.tasks.base import NOTHING, Task, canvas_key
from anyorder.tasks.prompts import Message, Prompt

DEFAULT_LENGTH = 64
MASK_SHARE = 0.5
"""The share of a text's tokens that is masked where nothing else is asked for."""
FEWEST = 2
"""Masked tokens of a text: with one there is no order to choose."""
LEFT_TO_RIGHT = "left-to-right"
End = Literal["free", "last", "never"]
"""When end tokens are filled in, see `Generate`."""


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
    fillable: np.ndarray
    """(T,) bool: which of them to fill. Other masks are part of the text."""
    is_delimited: bool = True
    """See `Canvas`."""
    length: str = ""
    """The length rule of this text, if it is not that of the config."""
    is_chat: bool = False
    """Whether the tokens before the first fillable one were made by a chat template."""

    def canvas(self, mode: str, seed: int) -> Canvas:
        key = canvas_key(seed, self.tokens, len(self.tokens))
        return Canvas(self.tokens, None, mode, key, self.fillable, self.is_delimited)


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
        valid = [valid_text(line) for line in lines]
        encoded = model.encode([text for text, _ in valid])
        return [self._example(model, text, problems, ids) for (text, problems), ids in zip(valid, encoded, strict=True)]

    def _example(
        self, model: TransformersModel, text: str, problems: tuple[Problem, ...], tokens: np.ndarray,
        fillable: np.ndarray | None = None, **how: Any,
    ) -> MaskedText:  # fmt: skip
        """fillable: None for all masks. how: other fields."""
        masks = tokens == model.mask_token
        example = MaskedText(text, tokens, problems, True, self.name, masks if fillable is None else fillable, **how)
        unfit = _unfit(tokens, model, model.max_length if example.is_delimited else model.max_positions)
        if not unfit and not example.fillable.any():
            unfit = (Problem("source", "unmasked source", "has no mask, so there is nothing to fill"),)
        notes = unfit or _mostly_unknown(tokens, model)
        return replace(example, problems=problems + notes, can_fill=not unfit)

    def canvases(
        self, model: TransformersModel, examples: Sequence[MaskedText], decoding: BoundDecoding
    ) -> list[list[list[Canvas]]]:
        return [[[example.canvas(self.mode, decoding.seed)] if example.can_fill else []] for example in examples]

    def trajectory(
        self, model: TransformersModel, example: MaskedText, parts: Sequence[Hypothesis | None], decoding: BoundDecoding
    ) -> Trajectory:
        [hypothesis] = parts
        masked = example.fillable if hypothesis is None else example.fillable & (hypothesis.steps > 0)
        if example.length:
            decoding = replace(decoding, length=make_length(example.length))
        if hypothesis is None:
            given = model.to_tokens(example.tokens) if len(masked) and not masked.any() else None
            return self.record(
                model, example, decoding, NOTHING,
                text=example.text, tokens=[], canvas=given, task=example.task, **self.no_texts,
            )  # fmt: skip
        # Where decoding stopped early, positions are still masked; they are left out.
        kept = masked | ~example.fillable
        shown = list(zip(model.to_tokens(hypothesis.ids[kept]), masked[kept], strict=True))
        return self.record(
            model, example, decoding, hypothesis, masked,
            tokens=[token for token, is_masked in shown if is_masked],
            canvas=[None if is_masked else token for token, is_masked in shown],
            task=example.task,
            **self._texts(model, example, hypothesis.ids, masked),
        )  # fmt: skip

    no_texts: ClassVar[dict[str, Any]] = {}
    """What a trajectory records where nothing could be filled, besides its source as its text."""

    def _texts(
        self, model: TransformersModel, example: MaskedText, ids: np.ndarray, filled: np.ndarray
    ) -> dict[str, Any]:
        """What a trajectory records of the text. ids, filled: (T,) what the canvas holds now, and what was filled."""
        ends = np.flatnonzero(example.fillable & np.isin(ids, list(model.end_tokens)))
        return {"text": model.to_text(ids[: ends[0]] if len(ends) else ids, self.mode)}

    def canvas(self, model: TransformersModel, text: str, length: int | None = None, seed: int = 1) -> Canvas:
        if length is not None:
            raise InputError("is given, but this model does not translate", "length")
        [example] = self.examples(model, [text])
        if not example.can_fill:
            raise InputError(f"text: {example.problems[-1].error}")
        return example.canvas(self.mode, seed)


class Generate(Infill):
    """Continue prompts, as they are: `length` masks after each are filled.

    A line may be a plain text or anything else that a `Prompt` is made of. A mask in a prompt is part of it and stays.

    Args:
        length: Number of tokens to generate.
        chat: Whether a plain text is what a user says, to be answered by the tokenizer's chat template.
        system: The system message before it.
        stop: A completion ends before the first of these texts, as before an end token.
        end: When end tokens are filled in: `free`, like other tokens; `last`, where only they are left; `never`.
        early_stop: Whether a schedule in blocks stops after the block with which the completion ends.
    """

    name = mode = GENERATE

    def __init__(
        self, length: int = DEFAULT_LENGTH, chat: bool = False, system: str | None = None,
        stop: str | Sequence[str] | None = (), end: End = "free", early_stop: bool = True,
    ):  # fmt: skip
        check_number("length", length, at_least=1, whole=True)
        if system is not None and not chat:
            raise InputError("is for chats", "system")
        self.length, self.chat, self.system = length, chat, system
        self.stop = [stop] if isinstance(stop, str) else list(stop or ())
        if not all(isinstance(text, str) and text for text in self.stop):
            raise InputError("is empty: expected a text", "stop")
        if end not in get_args(End):
            raise InputError(f"{end}: expected {', '.join(get_args(End))}", "end")
        self.end, self.early_stop = end, early_stop

    def check(self, model: TransformersModel) -> None:
        super().check(model)
        check_number("length", self.length, at_least=1, at_most=model.max_length)
        if self.chat:
            model.check_chat()

    def model_for(self, model: TransformersModel) -> TransformersModel:
        return model.generating(may_end=self.end != "never")

    def complete(self, config: DecodingConfig, model: TransformersModel) -> DecodingConfig:
        return replace(with_blocks(config, model), length=f"fixed:{self.length}")

    def bind(self, config: DecodingConfig, model: TransformersModel) -> BoundDecoding:
        settings: dict[str, object] = {"chat": "yes"} if self.chat else {}
        if self.system is not None:
            settings["system"] = self.system
        if self.stop:
            settings["stop"] = json.dumps(self.stop, ensure_ascii=False)
        if self.end != "free":
            settings["end"] = self.end
        bound = super().bind(config, model)
        settings |= bound.settings
        if not self.early_stop and isinstance(bound.schedule, Blocks):
            settings["early_stop"] = "no"
        if self.end == "last":
            if bound.beam.over == "joint":
                raise bound.beam.error("chooses positions itself, so end tokens cannot be last")
            ends = to_device(np.array(sorted(model.end_tokens), np.int64), model.device)
            order, schedule = EndsLast(bound.order, ends), accept_ends_last(bound.schedule, ends)
            bound = replace(bound, order=order, schedule=schedule)
        return replace(bound, settings=settings)

    def end_check(self, model: TransformersModel) -> Callable[[Canvas, np.ndarray], bool] | None:
        def is_ended(canvas: Canvas, tokens: np.ndarray) -> bool:
            places = np.flatnonzero(canvas.masked(model.mask_token))
            if not _are_adjacent(places):
                return False
            before, filled = tokens[: places[0]], tokens[places[0] :]
            return bool(np.isin(filled, ends).any()) or (bool(self.stop) and self._completion(model, before, filled)[2])

        ends = [] if self.end == "never" else list(model.end_tokens)
        return is_ended if self.early_stop and (ends or self.stop) else None

    def examples(
        self, model: TransformersModel, lines: Sequence[Any], references: Sequence[str] | None = None
    ) -> list[MaskedText]:
        prompts = [Prompt.of(line) for line in lines]
        if any(prompt.messages is not None for prompt in prompts):
            model.check_chat()
        texts = [] if self.chat else [prompt.prompt for prompt in prompts if isinstance(prompt.prompt, str)]
        encoded = iter(model.encode(texts, has_masks=False))  # together, which is faster
        examples = []
        for prompt in prompts:
            try:
                examples.append(self._read(model, prompt, encoded))
            except InputError as error:
                problem = Problem("source", f"unusable prompt ({error})", str(error))
                examples.append(self._unusable(prompt, problem))
        return examples

    def _read(self, model: TransformersModel, prompt: Prompt, encoded: Iterator[np.ndarray]) -> MaskedText:
        """encoded: the ids of this prompt and the next ones, as far as they are texts to continue."""
        if not prompt.is_readable:
            return self._unusable(prompt)
        if isinstance(prompt.canvas, str):
            [ids] = model.encode([prompt.canvas])
            return self._example(model, prompt.source, prompt.problems, ids, length=GIVEN)
        if prompt.canvas is not None:
            fillable = np.array([token is None for token in prompt.canvas], bool)
            ids = _given_ids(model, prompt.canvas)
            return self._example(model, prompt.source, prompt.problems, ids, fillable, is_delimited=False, length=GIVEN)
        is_text, is_chat = isinstance(prompt.prompt, str), prompt.messages is not None
        if prompt.messages is not None:
            before = model.encode_chat(prompt.messages)
        elif not isinstance(prompt.prompt, str):
            before = _given_ids(model, prompt.prompt or [])
        elif self.chat:
            is_chat = True
            before = model.encode_chat(self._messages(prompt.prompt))
        else:
            before = next(encoded)
        suffix = prompt.suffix or []
        after = model.encode([suffix], has_masks=False)[0] if isinstance(suffix, str) else _given_ids(model, suffix)
        ids = np.concatenate([before, np.full(self.length, model.mask_token, np.int64), after])
        at = np.arange(len(ids)) - len(before)
        return self._example(
            model, prompt.source, prompt.problems, ids, (at >= 0) & (at < self.length),
            is_delimited=is_text and not is_chat, is_chat=is_chat,
        )  # fmt: skip

    def _messages(self, text: str) -> list[Message]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": text}]

    def _unusable(self, prompt: Prompt, *problems: Problem) -> MaskedText:
        nothing = np.zeros(0, np.int64)
        return MaskedText(prompt.source, nothing, (*prompt.problems, *problems), False, self.name, nothing.astype(bool))

    no_texts: ClassVar[dict[str, Any]] = {"completion": "", "completion_length": 0}

    def _texts(
        self, model: TransformersModel, example: MaskedText, ids: np.ndarray, filled: np.ndarray
    ) -> dict[str, Any]:
        """The completion, and the text with it: the answer alone in a chat. Masks in several places have none."""
        places = np.flatnonzero(example.fillable)
        if not _are_adjacent(places):
            return {"text": model.to_text(ids, self.mode)}
        before, suffix = ids[: places[0]], ids[places[-1] + 1 :]
        completion, length, is_cut = self._completion(model, before, ids[filled])
        if example.is_chat:
            text = completion
        elif is_cut:
            text = model.to_text(before, self.mode) + completion + model.to_text(suffix, self.mode)
        else:
            text = model.to_text(np.concatenate([before, ids[filled][:length], suffix]), self.mode)
        return {"text": text, "completion": completion, "completion_length": length}

    def _completion(self, model: TransformersModel, before: np.ndarray, ids: np.ndarray) -> tuple[str, int, bool]:
        """The completion, how many of the ids spell it, and whether a stop string ends it. ids: what was generated."""
        ends = np.flatnonzero(np.isin(ids, list(model.end_tokens)))
        length = int(ends[0]) if len(ends) else len(ids)
        start = model.to_text(before, self.mode)

        def spell(count: int) -> str:
            # Together with what comes before: alone, some tokenizers drop the space in front.
            whole = model.to_text(np.concatenate([before, ids[:count]]), self.mode)
            return whole.removeprefix(start) if whole.startswith(start) else model.to_text(ids[:count], self.mode)

        completion = spell(length)
        found = [at for at in map(completion.find, self.stop) if at >= 0]
        if not found:
            return completion, length, False
        stopped = bisect_left(range(length), min(found), key=lambda count: len(spell(count)))
        return completion[: min(found)], stopped, True


def _are_adjacent(places: np.ndarray) -> bool:
    """Whether positions follow one another."""
    return len(places) == places[-1] - places[0] + 1


def _given_ids(model: TransformersModel, ids: Sequence[int | None]) -> np.ndarray:
    """(T,) ids that the user gave, None for a mask."""
    for token in ids:
        if token is not None and not 0 <= token < model.vocab_size:
            raise InputError(f"{token} is not a token: expected numbers from 0 to {model.vocab_size - 1:,}")
    return np.array([model.mask_token if token is None else token for token in ids], np.int64)


def with_blocks(config: DecodingConfig, model: TransformersModel) -> DecodingConfig:
    """The config for a block-causal model: by default it fills one block after the other, counted as the model does."""
    size, beam = model.block_size, make_beam(config.beam)
    if size is None:
        return config
    if beam.size > 1 and (config.order == AUTO or make_order(config.order).name != LEFT_TO_RIGHT):
        raise beam.error(f"{model.name} is filled in blocks, so the order must be {LEFT_TO_RIGHT}")
    if config.schedule != AUTO:
        return replace(config, schedule=counted_from_text(make_schedule(config.schedule)))
    if beam.size > 1 or not isinstance(make_revision(config.revision), NoRevision):
        return config
    return replace(config, schedule=counted_from_text(make_schedule(f"blocks:{size}")))


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

    Tokens that the tokenizer does not know stay, since nothing could be right there; text that consists mostly of these
    is an `InputError`. share: at least two tokens of a line are masked, so that there is a choice.
    """
    check_number("mask_share", share, above=0, at_most=1)
    cleaned = [clean_line(line) for line in lines]
    encoded = model.encode([text for text, _ in cleaned])
    _check_known([text for text, _ in cleaned], encoded, model)
    found = []
    for number, ((text, problems), ids) in enumerate(zip(cleaned, encoded, strict=True)):
        unfit = _unfit(ids, model, model.max_length)
        if (ids == model.mask_token).any():
            unfit = (Problem("source", "masked source", "holds a mask already, expected a plain text"),)
        known = np.flatnonzero(ids != model.unknown_token)
        if not unfit and not len(known):
            unfit = (Problem("source", "unknown source", "has only tokens that the tokenizer does not know"),)
        if not unfit and len(known) < FEWEST:
            unfit = (Problem("source", "short source", "has only one token to mask, so there is no order to choose"),)
        masked = np.zeros(len(ids), bool)
        if not unfit:
            masked[known] = mask_positions(len(known), share, seed, number)
            problems += _mostly_unknown(ids, model)
        tokens = np.where(masked, model.mask_token, ids)
        found.append(MaskedLine(MaskedText(text, tokens, problems + unfit, not unfit, INFILL, masked), ids, masked))
    return found


def mask_positions(length: int, share: float, seed: int, number: int) -> np.ndarray:
    """(length,) bool: the positions to mask in line `number`."""
    masked = np.zeros(length, bool)
    count = min(length, max(FEWEST, round(share * length)))
    masked[random_for(seed, "mask", number).permutation(length)[:count]] = True
    return masked


def _mostly_unknown(tokens: np.ndarray, model: TransformersModel) -> tuple[Problem, ...]:
    """A note for a text of which the tokenizer does not know most tokens."""
    given = tokens[tokens != model.mask_token]
    unknown = int((given == model.unknown_token).sum())
    if 2 * unknown <= len(given):
        return ()
    return (Problem("source", f"unknown tokens in source ({unknown:,} of {len(given):,})", ""),)


def _check_known(texts: Sequence[str], encoded: Sequence[np.ndarray], model: TransformersModel) -> None:
    """Raise an `InputError` if most tokens of the texts are unknown, with the spelling that would be understood."""

    def unknown_share(encoded: Sequence[np.ndarray]) -> float:
        return sum(int((ids == model.unknown_token).sum()) for ids in encoded) / max(1, sum(map(len, encoded)))

    share = unknown_share(encoded)
    if share <= 0.5:
        return
    number = max(range(len(texts)), key=lambda i: int((encoded[i] == model.unknown_token).sum()))
    shown = " ".join(model.to_tokens(encoded[number][:5]))
    found = f"is mostly unknown to the tokenizer of {model.name} ({share:.0%} of its tokens; '{texts[number][:20]}' is"
    spellings = {
        "in capitals": str.upper,
        "in lower case": str.lower,
        "with a space between any two characters": _spaced,
        "in capitals with a space between any two characters": lambda text: _spaced(text.upper()),
        "in lower case with a space between any two characters": lambda text: _spaced(text.lower()),
    }
    sample = [text[:1000] for text in texts[:100]]
    for how, spell in spellings.items():
        if unknown_share(model.encode([spell(text) for text in sample])) < 0.1:
            raise InputError(f"{found} read as {shown}): write it {how}", "text")
    some = " ".join(model.to_tokens(np.flatnonzero(model.allowed_tokens)[:10]))
    raise InputError(f"{found} read as {shown}), which knows tokens such as {some}", "text")


def _spaced(text: str) -> str:
    return " ".join("".join(text.split()))


def _unfit(ids: np.ndarray, model: TransformersModel, room: int) -> tuple[Problem, ...]:
    """What is wrong with the length or the tokens of a text, if anything is."""
    if len(ids) == 0:
        return (Problem("source", "empty source", "is empty, expected a text"),)
    if len(ids) > room:
        error = f"{len(ids):,} tokens, the model has room for {room:,}"
        return (Problem("source", f"oversized source ({error})", error),)
    if ids.max() >= model.vocab_size:  # such as a token that was added to the tokenizer alone
        error = f"has the token {ids.max():,}, the model has {model.vocab_size:,} tokens"
        return (Problem("source", f"foreign tokens in source ({error})", error),)
    return ()

"""Translation: sentences in, sentences out, for models with a source.

The canvases of a sentence have the lengths that the length rule proposes (`LengthRule`). A sentence that is too
long for the model is split, its parts are translated one after another, and joined again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from anyorder.data.line_problems import Problem, clean_line, is_empty, is_too_long
from anyorder.data.text import fitting_spans, separator, words_to_split
from anyorder.data.vocabulary import CONTINUES
from anyorder.decoding.config import BoundDecoding
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.trajectory import Trajectory, to_writes
from anyorder.errors import InputError
from anyorder.models.base import Canvas
from anyorder.models.native.translation_model import TranslationModel
from anyorder.tasks.base import NOTHING, Task, canvas_key


@dataclass(frozen=True)
class Sentence:
    """One sentence to translate, encoded."""

    text: str
    ids: np.ndarray
    """Subwords, without delimiters."""
    reference_length: int | None = None
    """In subwords, for the length rule `gold`."""
    parts: tuple[np.ndarray, ...] = ()
    """The parts to translate one after another if `ids` is too long for the model."""
    problems: tuple[Problem, ...] = ()
    """Why it is not translated as is."""

    def fit(self, room: int) -> list["Sentence"]:
        """What the model has room for: the sentence, or its parts with their shares of the reference length."""
        parts = self.parts or (self.ids,)
        lengths: list[int | None] = [self.reference_length] * len(parts)
        if self.reference_length and len(self.ids):
            lengths = [*share_length(self.reference_length, [len(part) for part in parts], room)]
        return [Sentence(self.text, part, length) for part, length in zip(parts, lengths, strict=True)]


class Translation(Task):
    """Translate in one direction, such as `de-en`."""

    unit = "sentence"

    def __init__(self, direction: str):
        self.name = direction

    def check(self, model: TranslationModel) -> None:
        if not isinstance(model, TranslationModel):
            name = model.name or "this model"
            raise InputError(
                f"{name}: is a masked language model, which does not translate; it is for infill and generate"
            )
        model.languages(self.name)

    def examples(
        self, model: TranslationModel, lines: Sequence[str], references: Sequence[str] | None = None
    ) -> list[Sentence]:
        lengths = None
        if references is not None:
            held = [clean_line(text, "reference")[0] for text in references]
            lengths = [len(ids) for ids in model.encode(held, model.languages(self.name)[1])]
        return encode_sentences(model, lines, self.name, lengths)

    def canvases(
        self, model: TranslationModel, examples: Sequence[Sentence], decoding: BoundDecoding
    ) -> list[list[list[Canvas]]]:
        """One canvas for each length that the length rule proposes."""
        parts = [sentence.fit(model.max_length) for sentence in examples]
        present = [part for own in parts for part in own if _has_target(part)]
        gold = [part.reference_length for part in present]
        candidates = decoding.length.candidates(
            model,
            [part.ids for part in present],
            self.name,
            None if any(length is None for length in gold) else gold,  # type: ignore[arg-type]
        )
        lengths = iter(candidates)

        def blanks(part: Sentence) -> list[Canvas]:
            tried = next(lengths) if _has_target(part) else ()
            return [self._blank(model, part.ids, length, decoding.seed) for length in tried]

        return [[blanks(part) for part in own] for own in parts]

    def _blank(self, model: TranslationModel, source: np.ndarray, length: int, seed: int) -> Canvas:
        return model.blank_canvas(source, length, self.name, canvas_key(seed, source, length))

    def trajectory(
        self, model: TranslationModel, example: Sentence, parts: Sequence[Hypothesis | None], decoding: BoundDecoding
    ) -> Trajectory:
        filled = [NOTHING if part is None else part for part in parts]
        hypothesis = join_hypotheses(filled)
        tokens = model.to_tokens(hypothesis.ids)
        writes = to_writes(hypothesis.writes, model.to_tokens)
        for end in accumulate(len(part.ids) for part in filled[:-1]):
            if end:
                tokens[end - 1] = _ending(tokens[end - 1])
                writes = writes and [
                    replace(write, token=_ending(write.token)) if write.position == end - 1 else write
                    for write in writes
                ]
        target = model.languages(self.name)[1]
        text = separator(target).join(model.to_text(part.ids, self.name) for part in filled)
        return self.record(model, example, decoding, hypothesis, text=text, tokens=tokens, writes=writes)

    def canvas(self, model: TranslationModel, text: str, length: int | None = None, seed: int = 1) -> Canvas:
        if length is None:
            raise InputError("is missing: say how many subwords the translation has", "length")
        [ids] = model.encode([text], model.languages(self.name)[0])
        if not len(ids):
            raise InputError("the text is empty")
        if max(len(ids), length) > model.max_length:
            what = f"the text has {len(ids)}" if len(ids) > model.max_length else f"length {length}: more"
            raise InputError(f"{what} subwords; the model has room for {model.max_length}")
        return self._blank(model, ids, length, seed)


def _has_target(part: Sentence) -> bool:
    return len(part.ids) > 0 and part.reference_length != 0


def encode_sentences(
    model: TranslationModel, texts: Sequence[str], direction: str, reference_lengths: Sequence[int] | None = None
) -> list[Sentence]:
    """Encode lines of any content: keep what the model has room for, and say what is wrong with the rest.

    reference_lengths: those of their references in subwords, for the length rule `gold`.
    """
    cleaned = [clean_line(text) for text in texts]
    lines = model.words([text for text, _ in cleaned], model.languages(direction)[0])
    lengths: Sequence[int | None] = [None] * len(texts) if reference_lengths is None else reference_lengths
    encoded = model.vocabulary.encode(lines)
    sentences = []
    for (text, problems), line, ids, length in zip(cleaned, lines, encoded, lengths, strict=True):
        parts = _split(model, line) if len(ids) > model.max_length else ()
        problems += _length_problems(len(ids), [len(part) for part in parts], length, model.max_length)
        sentences.append(Sentence(text, np.array(ids, np.int64), length, parts, problems))
    return sentences


def _split(model: TranslationModel, line: str) -> tuple[np.ndarray, ...]:
    """The ids of the parts of a line that is too long for the model."""
    words = words_to_split(line)
    encoded = model.vocabulary.encode(words)
    ids = np.array([i for word in encoded for i in word], np.int64)
    spans = fitting_spans(words, [len(word) for word in encoded], model.max_length)
    return tuple(ids[start:end] for start, end in spans)


def _length_problems(size: int, parts: Sequence[int], reference: int | None, room: int) -> tuple[Problem, ...]:
    """What is wrong with the lengths of a source, its parts and its reference, in subwords."""
    problems = []
    if size == 0:
        problems.append(is_empty("source"))
    if len(parts) > 1:
        problems.append(is_too_long("source", f"source split into {len(parts)} parts", size, room))
    if parts and sum(parts) < size:
        note = f"source truncated to {sum(parts):,} of {size:,} subwords"
        problems.append(is_too_long("source", note, size, room))
    if reference == 0:
        problems.append(is_empty("reference"))
    elif reference is not None and size:
        given = sum(share_length(reference, parts or [size], room))
        if given < reference:
            note = f"length clipped to {given:,} of the reference's {reference:,} subwords"
            problems.append(is_too_long("reference", note, reference, room))
    return tuple(problems)


def share_length(length: int, sizes: Sequence[int], room: int) -> list[int]:
    """Divide a target length among the parts of its source in proportion to size, each from 1 to `room`.

    >>> share_length(10, [6, 3, 1], room=5)
    [5, 3, 1]
    """
    total = sum(sizes)
    ends = [round(length * end / total) for end in accumulate(sizes)]
    return [min(max(end - start, 1), room) for start, end in zip([0, *ends], ends, strict=False)]


def join_hypotheses(parts: Sequence[Hypothesis]) -> Hypothesis:
    """Concatenate the parts; each part's steps continue those of the previous part."""
    if len(parts) == 1:
        return parts[0]
    first_steps = [0, *accumulate(int(part.steps.max(initial=0)) for part in parts)]
    first_positions = [0, *accumulate(len(part.ids) for part in parts)]
    writes = None
    if parts[0].writes is not None:
        writes = [
            (position + first_position, step + first_step, token, logprob)
            for part, first_position, first_step in zip(parts, first_positions, first_steps, strict=False)
            for position, step, token, logprob in part.writes or ()
        ]
    return Hypothesis(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.steps + first for part, first in zip(parts, first_steps, strict=False)]),
        np.concatenate([part.logprobs for part in parts]),
        writes,
        sum(part.forwards for part in parts),
    )


def _ending(token: str) -> str:
    """The last token of a part of a sentence: no word goes on in the next part."""
    return token.removesuffix(CONTINUES) or CONTINUES

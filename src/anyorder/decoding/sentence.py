"""Encode any line to translate: keep what the model has room for, and say what is wrong with the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyorder.data.lines import Problem, clean_line, is_empty, is_too_long
from anyorder.data.sentences import fitting_spans, words_to_split
from anyorder.decoding.parts import share_length
from anyorder.models.translation import TranslationModel


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


def encode_sentences(
    model: TranslationModel, texts: Sequence[str], direction: str, reference_lengths: Sequence[int] | None = None
) -> list[Sentence]:
    """Encode lines of any content.

    Args:
        model: The model that will translate them.
        texts: Plain text.
        direction: Source and target language, such as `de-en`.
        reference_lengths: Lengths of their references in subwords, for the length rule `gold`.
    """
    source, _ = model.languages(direction)
    cleaned = [clean_line(text) for text in texts]
    lines = model.words([text for text, _ in cleaned], source)
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

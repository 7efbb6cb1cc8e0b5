"""The library's front door: text in, trajectories out. The one decode path of the library, the command line, the
explorer and validation."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from anyorder.decoding.callbacks import TOP_K, Step, step_callback
from anyorder.decoding.config import AUTO, BoundDecoding, DecodingConfig
from anyorder.decoding.distributed import decode_distributed
from anyorder.decoding.lengths import DEFAULT_LENGTH
from anyorder.decoding.revision import Revision
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.trajectory import Trajectory, Write
from anyorder.device import inference_dtype, resolve_device
from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order

CHUNK = 4096
"""Sentences that are decoded before the first of them is handed out: sorted by length they fill batches well."""


@dataclass(frozen=True)
class Sentence:
    """One sentence to translate, encoded."""

    text: str
    ids: np.ndarray
    """Subwords, without delimiters."""
    reference_length: int | None = None
    """Subwords of its reference, for the length rule `gold`."""


def load(name: str | Path, device: str | torch.device = "auto") -> "Translator":
    """A translator for a model: a bundled name such as `de-en`, a folder, or a hub id.

    On CUDA it runs in bfloat16, on the CPU in float32.
    """
    device = resolve_device(device)
    return Translator(TranslationModel.from_pretrained(name, device, inference_dtype(device)))


class Translator:
    """Translates with one model in any order."""

    def __init__(self, model: TranslationModel):
        self.model = model

    def __repr__(self) -> str:
        directions = self.model.config.directions
        return f"Translator({self.model.name!r}, directions={directions}, device='{self.model.device}')"

    def direction_languages(self, direction: str) -> tuple[str, str]:
        """Source and target language of a direction such as `de-en`."""
        return self.model.languages(direction)

    def translate(
        self,
        texts: str | Sequence[str],
        direction: str,
        order: str | Order | None = None,
        schedule: str | int | Schedule = "one",
        length: str = DEFAULT_LENGTH,
        references: Sequence[str] | None = None,
        seed: int = 1,
        batch_tokens: int | None = None,
        revision: str | Revision = "none",
        on_step: Callable[[Step], None] | None = None,
        top_k: int = TOP_K,
    ) -> list[Trajectory]:
        """Translate sentences.

        Args:
            texts: Plain sentences, or one. An empty one gives an empty translation.
            direction: Source and target language, such as `de-en`.
            order: Which position is filled next, by name (`margin`, `outer-in:stride=2`) or as an `Order`; the model's
                learned order if not given, or `margin` where it has none.
            schedule: How many positions a step fills: `one`, a number, or `threshold:0.9`.
            length: How the target's length is found: `gold`, `predicted`, `candidates:N`, `table:N` or `fixed:N`.
            references: Reference translations, for `length="gold"`.
            seed: For random orders.
            batch_tokens: Target tokens under way together; results do not depend on it.
            revision: Which filled positions are masked again after a step.
            on_step: Called for every sentence and step with what was filled and the top candidates.
            top_k: Number of candidates at each masked position.
        """
        texts = [texts] if isinstance(texts, str) else texts
        if isinstance(references, str):
            references = [references]
        if references is not None and len(references) != len(texts):
            raise InputError(f"{len(texts)} sentences but {len(references)} references")
        config = DecodingConfig(AUTO if order is None else order, schedule, revision, length, seed, batch_tokens)
        return list(self.stream(texts, direction, config, references, on_step=on_step, top_k=top_k))

    def stream(
        self,
        texts: Iterable[str],
        direction: str,
        config: DecodingConfig | None = None,
        references: Iterable[str] | None = None,
        on_progress: Callable[[int], None] = lambda sentences: None,
        on_step: Callable[[Step], None] | None = None,
        top_k: int = TOP_K,
        source_name: str = "input",
        reference_name: str = "reference",
    ) -> Iterator[Trajectory]:
        """Translate any number of sentences in bounded memory.

        Args:
            texts: Plain sentences.
            direction: Source and target language, such as `de-en`.
            config: How to decode.
            references: As many reference translations, for the length rule `gold`.
            on_progress: Called with the number of hypotheses that were finished.
            on_step: See `translate`.
            top_k: See `translate`.
            source_name: What messages call the sentences, such as a file.
            reference_name: What messages call the references.
        """
        source, target = self.model.languages(direction)
        sentences = self._sentences(texts, references, source, target, source_name, reference_name)
        return self.decode(sentences, direction, config or DecodingConfig(), on_progress, on_step, top_k)

    def _sentences(
        self,
        texts: Iterable[str],
        references: Iterable[str] | None,
        source: str,
        target: str,
        source_name: str,
        reference_name: str,
    ) -> Iterator[Sentence]:
        """Sentences encoded a chunk at a time; an `InputError` if there are not as many references."""
        lines, line = iter(texts), 1
        reference_lines = None if references is None else iter(references)
        while chunk := list(islice(lines, CHUNK)):
            lengths: list[int | None] = [None] * len(chunk)
            if reference_lines is not None:
                held = list(islice(reference_lines, len(chunk)))
                if len(held) < len(chunk):
                    raise InputError(f"{source_name} has more lines than {reference_name}")
                lengths = [len(ids) for ids in self.encode(held, target, reference_name, line)]
            for text, ids, length in zip(chunk, self.encode(chunk, source, source_name, line), lengths, strict=True):
                yield Sentence(text, ids, length)
            line += len(chunk)
        if reference_lines is not None and next(reference_lines, None) is not None:
            raise InputError(f"{source_name} has fewer lines than {reference_name}")

    def encode(self, texts: Sequence[str], language: str, name: str = "input", first_line: int = 1) -> list[np.ndarray]:
        """Subword ids of plain sentences; an `InputError` names the line that the model has no room for."""
        encoded = self.model.encode(texts, language)
        self.check_lengths([len(ids) for ids in encoded], range(first_line, first_line + len(encoded)), name)
        return encoded

    def check_lengths(self, lengths: Iterable[int], lines: Iterable[int], name: str) -> None:
        """An `InputError` for the first line that has more subwords than the model has positions."""
        for length, line in zip(lengths, lines, strict=True):
            if length > self.model.max_length:
                room = self.model.max_length
                raise InputError(f"{name}, line {line}: {length} subwords, the model has room for {room}")

    def words(self, texts: Sequence[str], language: str) -> list[str]:
        """Plain sentences as lines of words separated by spaces."""
        return self.model.words(texts, language)

    def decode(
        self,
        sentences: Iterable[Sentence],
        direction: str,
        config: DecodingConfig,
        on_progress: Callable[[int], None] = lambda sentences: None,
        on_step: Callable[[Step], None] | None = None,
        top_k: int = TOP_K,
    ) -> Iterator[Trajectory]:
        """Translate sentences that are already encoded."""
        decoding = config.bind(self.model, direction)
        signature = str(decoding.signature)
        remaining, first = iter(sentences), 0
        while chunk := list(islice(remaining, CHUNK)):
            hypotheses = self._decode_chunk(chunk, first, direction, decoding, on_progress, on_step, top_k)
            for sentence, hypothesis in zip(chunk, hypotheses, strict=True):
                yield self._trajectory(
                    sentence, hypothesis, direction, decoding.order.name or decoding.order.identity, signature
                )
            first += len(chunk)

    def _decode_chunk(
        self,
        sentences: Sequence[Sentence],
        first: int,
        direction: str,
        decoding: BoundDecoding,
        on_progress: Callable[[int], None],
        on_step: Callable[[Step], None] | None,
        top_k: int,
    ) -> list[Hypothesis]:
        """Of every sentence the hypothesis with the best mean log-probability. first: the number of the first one."""
        present = [i for i, sentence in enumerate(sentences) if len(sentence.ids) and sentence.reference_length != 0]
        gold = [sentences[i].reference_length for i in present]
        candidates = decoding.length.candidates(
            self.model,
            [sentences[i].ids for i in present],
            direction,
            None if any(length is None for length in gold) else gold,  # type: ignore[arg-type]
        )
        tried = [(i, length) for i, lengths in zip(present, candidates, strict=True) for length in lengths]
        canvases = [
            self.model.blank_canvas(
                sentences[i].ids, length, direction, sentence_key(decoding.seed, sentences[i].ids, length)
            )
            for i, length in tried
        ]
        callback = on_step and step_callback(self.model, canvases, [first + i for i, _ in tried], on_step, top_k)
        hypotheses = decode_distributed(self.model, canvases, decoding, on_progress, callback)
        best: dict[int, Hypothesis] = {}
        for (i, _), hypothesis in zip(tried, hypotheses, strict=True):
            if i not in best or hypothesis.logprobs.mean() > best[i].logprobs.mean():
                best[i] = hypothesis
        return [best.get(i, _EMPTY) for i in range(len(sentences))]

    def _trajectory(
        self, sentence: Sentence, hypothesis: Hypothesis, direction: str, order: str, signature: str
    ) -> Trajectory:
        to_tokens = self.model.to_tokens
        writes = None
        if hypothesis.writes is not None:
            writes = [
                Write(position, step, to_tokens([token])[0], round(logprob, 6))
                for position, step, token, logprob in hypothesis.writes
            ]
        return Trajectory(
            source=sentence.text,
            text=self.model.to_text(hypothesis.ids, direction),
            tokens=to_tokens(hypothesis.ids),
            steps=hypothesis.steps.tolist(),
            logprobs=[round(float(value), 6) for value in hypothesis.logprobs],
            order=order,
            length=len(hypothesis.ids),
            signature=signature,
            model=self.model.name,
            task=direction,
            writes=writes,
        )


_EMPTY = Hypothesis(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def sentence_key(seed: int, source: np.ndarray, length: int) -> int:
    """A number for the sentence: whatever batch or process it comes in, it gets the same random order."""
    digest = hashlib.blake2b(source.astype("<i8").tobytes(), digest_size=8, key=f"{seed}/{length}".encode())
    return int.from_bytes(digest.digest(), "little", signed=True)

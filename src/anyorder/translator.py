"""The library's front door: text in, trajectories out. The one decode path of the library, the command line, the
explorer and validation."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from anyorder.data.lines import clean_line, join_notes, refuse
from anyorder.data.subwords import CONTINUES
from anyorder.data.text import separator
from anyorder.decoding.callbacks import TOP_K, Step, step_callback
from anyorder.decoding.config import AUTO, BoundDecoding, DecodingConfig
from anyorder.decoding.distributed import decode_distributed
from anyorder.decoding.lengths import DEFAULT_LENGTH
from anyorder.decoding.parts import join_hypotheses
from anyorder.decoding.revision import Revision
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.sentence import Sentence, encode_sentences
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.trajectory import Trajectory, Write
from anyorder.device import inference_dtype, resolve_device
from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order

CHUNK = 4096
"""Sentences that are decoded before the first of them is handed out: sorted by length they fill batches well."""


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
        strict: bool = False,
    ) -> list[Trajectory]:
        """Translate sentences.

        A sentence that cannot be translated as it is never stops the others, and its trajectory has a `note`. An empty
        one gives an empty translation. One that the model has no room for is split into sentences, or else clauses,
        that are translated on their own; a clause that does not fit either is truncated.

        Args:
            texts: Plain sentences, or one.
            direction: Source and target language, such as `de-en`.
            order: Which position is filled next, by name (`margin`, `outer-in:stride=2`) or as an `Order`; the model's
                learned order if not given, or `margin` where it has none.
            schedule: How many positions a step fills: `one`, a number, or `threshold:0.9`.
            length: How the target's length is found: `gold`, `predicted`, `candidates:N`, `table:N` or `fixed:N`.
            references: Reference translations, for `length="gold"`.
            seed: For random orders.
            batch_tokens: Target tokens under way together; results do not depend on it.
            revision: Which filled positions are masked again after a step.
            on_step: Called for every sentence and step with what was filled and the top candidates. If a sentence was
                split, positions and steps are those of a part.
            top_k: Number of candidates at each masked position.
            strict: Whether a sentence that cannot be translated as it is is an `InputError`.
        """
        texts = [texts] if isinstance(texts, str) else texts
        if isinstance(references, str):
            references = [references]
        if references is not None and len(references) != len(texts):
            raise InputError(f"{len(texts)} sentences but {len(references)} references")
        config = DecodingConfig(AUTO if order is None else order, schedule, revision, length, seed, batch_tokens)
        return list(self.stream(texts, direction, config, references, on_step=on_step, top_k=top_k, strict=strict))

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
        strict: bool = False,
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
            strict: See `translate`.
        """
        config = config or DecodingConfig()
        names = {"source": source_name, "reference": reference_name}
        sentences = self._read(texts, references, direction, config.length == "gold", names, strict)
        return self.decode(sentences, direction, config, on_progress, on_step, top_k)

    def _read(
        self,
        texts: Iterable[str],
        references: Iterable[str] | None,
        direction: str,
        is_gold: bool,
        names: dict[str, str],
        strict: bool,
    ) -> Iterator[Sentence]:
        """Sentences encoded a chunk at a time; an `InputError` if there are not as many references."""
        _, target = self.direction_languages(direction)
        lines, line = iter(texts), 1
        reference_lines = None if references is None else iter(references)
        while chunk := list(islice(lines, CHUNK)):
            lengths = None
            if reference_lines is not None:
                held = [clean_line(text, "reference")[0] for text in islice(reference_lines, len(chunk))]
                if len(held) < len(chunk):
                    raise InputError(f"{names['source']} has more lines than {names['reference']}")
                lengths = [len(ids) for ids in self.model.encode(held, target)] if is_gold else None
            for number, sentence in enumerate(encode_sentences(self.model, chunk, direction, lengths), start=line):
                if strict:
                    refuse(sentence.problems, number, names)
                yield sentence
            line += len(chunk)
        if reference_lines is not None and next(reference_lines, None) is not None:
            raise InputError(f"{names['source']} has fewer lines than {names['reference']}")

    def encode(self, texts: Sequence[str], language: str) -> list[np.ndarray]:
        """Subword ids of plain sentences, for canvases; an `InputError` for one that the model has no room for."""
        encoded = self.model.encode(texts, language)
        for number, ids in enumerate(encoded, start=1):
            if len(ids) > self.model.max_length:
                room = self.model.max_length
                raise InputError(f"sentence {number} has {len(ids)} subwords, the model has room for {room}")
        return encoded

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
        order = decoding.order.name or decoding.order.identity
        remaining, first = iter(sentences), 0
        while chunk := list(islice(remaining, CHUNK)):
            parts = [sentence.fit(self.model.max_length) for sentence in chunk]
            numbers = [first + i for i, own in enumerate(parts) for _ in own]
            hypotheses = iter(
                self._decode_parts(
                    [part for own in parts for part in own], numbers, direction, decoding, on_progress, on_step, top_k
                )
            )
            for sentence, own in zip(chunk, parts, strict=True):
                yield self._trajectory(sentence, list(islice(hypotheses, len(own))), direction, order, signature)
            first += len(chunk)

    def _decode_parts(
        self,
        sentences: Sequence[Sentence],
        numbers: Sequence[int],
        direction: str,
        decoding: BoundDecoding,
        on_progress: Callable[[int], None],
        on_step: Callable[[Step], None] | None,
        top_k: int,
    ) -> list[Hypothesis]:
        """Of every one the hypothesis with the best mean log-probability. numbers: what a callback calls them."""
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
        callback = on_step and step_callback(self.model, canvases, [numbers[i] for i, _ in tried], on_step, top_k)
        hypotheses = decode_distributed(self.model, canvases, decoding, on_progress, callback)
        if not all(np.isfinite(hypothesis.logprobs).all() for hypothesis in hypotheses):
            raise InputError(f"{self.model.name}: its probabilities are not numbers, so its weights must be damaged")
        best: dict[int, Hypothesis] = {}
        for (i, _), hypothesis in zip(tried, hypotheses, strict=True):
            if i not in best or hypothesis.logprobs.mean() > best[i].logprobs.mean():
                best[i] = hypothesis
        return [best.get(i, _EMPTY) for i in range(len(sentences))]

    def _trajectory(
        self, sentence: Sentence, parts: Sequence[Hypothesis], direction: str, order: str, signature: str
    ) -> Trajectory:
        to_tokens = self.model.to_tokens
        hypothesis = join_hypotheses(parts)
        tokens: list[str] = []
        for part in parts:
            if tokens:  # no word goes on in the next part
                tokens[-1] = tokens[-1].removesuffix(CONTINUES) or CONTINUES
            tokens += to_tokens(part.ids)
        writes = None
        if hypothesis.writes is not None:
            writes = [
                Write(position, step, to_tokens([token])[0], round(logprob, 6))
                for position, step, token, logprob in hypothesis.writes
            ]
        _, target = self.direction_languages(direction)
        return Trajectory(
            source=sentence.text,
            text=separator(target).join(self.model.to_text(part.ids, direction) for part in parts),
            tokens=tokens,
            steps=hypothesis.steps.tolist(),
            logprobs=[round(float(value), 6) for value in hypothesis.logprobs],
            order=order,
            length=len(hypothesis.ids),
            signature=signature,
            model=self.model.name,
            task=direction,
            writes=writes,
            note=join_notes(sentence.problems),
        )


_EMPTY = Hypothesis(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def sentence_key(seed: int, source: np.ndarray, length: int) -> int:
    """A number for the sentence: whatever batch or process it comes in, it gets the same random order."""
    digest = hashlib.blake2b(source.astype("<i8").tobytes(), digest_size=8, key=f"{seed}/{length}".encode())
    return int.from_bytes(digest.digest(), "little", signed=True)

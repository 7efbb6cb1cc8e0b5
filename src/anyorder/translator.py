"""The main entry point of the library: text in, trajectories out. The command line, the explorer and validation decode
in the same way."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch

from anyorder.data.lines import clean_line, join_notes, refuse
from anyorder.data.subwords import CONTINUES
from anyorder.data.text import separator
from anyorder.decoding.beam import best_first
from anyorder.decoding.callbacks import TOP_K, Step, step_callback
from anyorder.decoding.config import AUTO, BoundDecoding, DecodingConfig
from anyorder.decoding.distributed import decode_distributed
from anyorder.decoding.lengths import DEFAULT_LENGTH
from anyorder.decoding.parts import check_finite, join_hypotheses
from anyorder.decoding.revision import Revision
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.sentence import Sentence, encode_sentences
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.trajectory import Trajectory, to_writes
from anyorder.device import inference_dtype, resolve_device
from anyorder.errors import InputError, check_number
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
    """Translates with one model, in any order."""

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
        schedule: str | int | Schedule = AUTO,
        length: str = DEFAULT_LENGTH,
        references: Sequence[str] | None = None,
        seed: int = 1,
        batch_tokens: int | None = None,
        revision: str | Revision = "none",
        on_step: Callable[[Step], None] | None = None,
        top_k: int = TOP_K,
        strict: bool = False,
        beam: int | str = 1,
        length_penalty: float = 1.0,
        temperature: float = 0.0,
        top_p: float = 1.0,
    ) -> list[Trajectory]:
        """Translate sentences.

        A problematic sentence never stops the others; its trajectory has a `note`. An empty sentence gives an empty
        translation. One that is too long for the model is split into sentences, or else clauses, which are translated
        separately; a clause that is still too long is truncated.

        Args:
            texts: One or several plain sentences.
            direction: Source and target language, such as `de-en`.
            order: Which position to fill next, by name (`margin`, `outer-in:stride=2`) or as an `Order`; by default the
                model's learned order, or `margin` if it has none.
            schedule: How many positions to fill per step: `one`, a number, `cosine:10`, `threshold:0.9`; `auto` is the
                schedule published with the revision, or `one` without a revision.
            length: How to choose the target length: `gold`, `predicted`, `candidates:N`, `table:N` or `fixed:N`.
            references: Reference translations, for `length="gold"`.
            seed: Random seed for orders, revisions and sampled tokens.
            batch_tokens: Target tokens to decode per batch. On CUDA, rounding may change a few results.
            revision: Which filled positions to mask again after a step: `none`, `mask-predict:10`, `gibbs`, `p2`.
            on_step: Called for every sentence and step with what was filled and the top candidates. If a sentence was
                split, positions and steps are relative to its part.
            top_k: Number of candidates at each masked position.
            strict: Whether to raise an `InputError` for a problematic sentence.
            beam: Beam size for each sentence and length: `N` (tokens), `positions:N` or `joint:N`. 1 is greedy.
            length_penalty: Hypotheses of different lengths are ranked by total log-probability / length **
                length_penalty; with 1 this is the mean.
            temperature: Sampling temperature; 0 always picks the most likely token.
            top_p: Nucleus sampling: sample from the smallest set of tokens whose total probability reaches this.
        """
        texts = [texts] if isinstance(texts, str) else texts
        if isinstance(references, str):
            references = [references]
        if references is not None and len(references) != len(texts):
            raise InputError(f"{len(texts)} sentences but {len(references)} references")
        config = DecodingConfig(
            AUTO if order is None else order, schedule, revision, length, seed, batch_tokens, beam, length_penalty,
            temperature, top_p,
        )  # fmt: skip
        return list(self.stream(texts, direction, config, references, on_step=on_step, top_k=top_k, strict=strict))

    def n_best(
        self, texts: str | Sequence[str], direction: str, count: int, config: DecodingConfig | None = None
    ) -> list[list[Trajectory]]:
        """At most `count` different translations of every sentence, best first.

        They come from the beams of all length candidates. If a sentence was split, translation k joins the k-th
        translations of its parts.
        """
        check_number("count", count, at_least=1)
        config = config or DecodingConfig()
        sentences = encode_sentences(self.model, [texts] if isinstance(texts, str) else texts, direction, None)
        return list(self._decode_ranked(sentences, direction, config, n_best=count))

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
            references: One reference translation per sentence, for the length rule `gold`.
            on_progress: Called with the number of finished hypotheses.
            on_step: See `translate`.
            top_k: See `translate`.
            source_name: Name of the sentences in messages, such as a file name.
            reference_name: Name of the references in messages.
            strict: See `translate`.
        """
        config = config or DecodingConfig()
        if references is not None and config.length != "gold":
            raise InputError(f"are for the length rule gold, not for {config.length}", "references")
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
        """Subword ids of plain sentences, for canvases; an `InputError` for one that is too long for the model."""
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
        for [best] in self._decode_ranked(sentences, direction, config, on_progress, on_step, top_k):
            yield best

    def _decode_ranked(
        self,
        sentences: Iterable[Sentence],
        direction: str,
        config: DecodingConfig,
        on_progress: Callable[[int], None] = lambda sentences: None,
        on_step: Callable[[Step], None] | None = None,
        top_k: int = TOP_K,
        n_best: int = 1,
    ) -> Iterator[list[Trajectory]]:
        """Of every sentence its best trajectories, best first."""
        self.direction_languages(direction)  # an unknown one is the direction's fault, not the order's
        decoding = config.bind(self.model, direction)
        signature = str(decoding.signature)
        order = decoding.order.name or decoding.order.identity
        remaining, first = iter(sentences), 0
        while chunk := list(islice(remaining, CHUNK)):
            parts = [sentence.fit(self.model.max_length) for sentence in chunk]
            numbers = [first + i for i, own in enumerate(parts) for _ in own]
            flat = [part for own in parts for part in own]
            ranked = iter(self._decode_parts(flat, numbers, direction, decoding, on_progress, on_step, top_k, n_best))
            for sentence, own in zip(chunk, parts, strict=True):
                yield [
                    self._trajectory(sentence, hypotheses, direction, order, signature)
                    for hypotheses in _across_parts(list(islice(ranked, len(own))))
                ]
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
        n_best: int,
    ) -> list[list[Hypothesis]]:
        """Of every one its best hypotheses, of any length, best first. numbers: what a callback calls them."""
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
        decoded = decode_distributed(self.model, canvases, decoding, on_progress, callback, n_best)
        check_finite(decoded, self.model.name)
        found: list[list[Hypothesis]] = [[] for _ in sentences]
        for (i, _), own in zip(tried, decoded, strict=True):
            found[i] += own
        return [best_first(own, decoding.length_penalty)[:n_best] or [_EMPTY] for own in found]

    def _trajectory(
        self, sentence: Sentence, parts: Sequence[Hypothesis], direction: str, order: str, signature: str
    ) -> Trajectory:
        hypothesis = join_hypotheses(parts)
        tokens = self.model.to_tokens(hypothesis.ids)
        writes = to_writes(hypothesis.writes, self.model.to_tokens)
        for end in accumulate(len(part.ids) for part in parts[:-1]):
            if end:
                tokens[end - 1] = _ending(tokens[end - 1])
                writes = writes and [
                    replace(write, token=_ending(write.token)) if write.position == end - 1 else write
                    for write in writes
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
            forwards=hypothesis.forwards,
        )


_EMPTY = Hypothesis(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def _ending(token: str) -> str:
    """The last token of a part of a sentence: no word goes on in the next part."""
    return token.removesuffix(CONTINUES) or CONTINUES


def _across_parts(ranked: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
    """From the ranked hypotheses of each part to ranked lists with one of each; a short ranking repeats its last."""
    return [[own[min(k, len(own) - 1)] for own in ranked] for k in range(max(map(len, ranked)))]


def sentence_key(seed: int, source: np.ndarray, length: int) -> int:
    """A number for the sentence: whatever batch or process it comes in, it gets the same random order."""
    digest = hashlib.blake2b(source.astype("<i8").tobytes(), digest_size=8, key=f"{seed}/{length}".encode())
    return int.from_bytes(digest.digest(), "little", signed=True)

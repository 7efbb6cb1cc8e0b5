"""The library's front door: text in, trajectories out."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from anyorder.data.text import Text
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.distributed import decode_distributed
from anyorder.decoding.engine import Hypothesis, Request
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order
from anyorder.orders.learned import default_order


def load(name: str | Path, device: str | torch.device = "auto") -> "Translator":
    """A translator for a model: a bundled name such as `de-en`, a folder, or a hub id.

    On CUDA it runs in bfloat16, on the CPU in float32.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    return Translator(TranslationModel.from_pretrained(name, device, dtype))


class Translator:
    """Translates with one model in any order."""

    def __init__(self, model: TranslationModel):
        self.model = model

    def translate(
        self,
        texts: Sequence[str],
        direction: str,
        order: str | Order | None = None,
        budget: str | int = "one",
        length: str = "predicted",
        references: Sequence[str] | None = None,
        seed: int = 1,
        batch_tokens: int | None = None,
    ) -> list[Trajectory]:
        """Translate sentences.

        Args:
            texts: Plain sentences. An empty one gives an empty translation.
            direction: Source and target language, such as `de-en`.
            order: Which position is filled next, by name (`margin`, `outer-in:stride=2`) or as an `Order`; the model's
                learned order if not given, or `margin` where it has none.
            budget: Positions filled in one step: `one` or a number.
            length: How the target's length is found: `gold`, `predicted`, `candidates:N`, `table:N` or `fixed:N`.
            references: Reference translations, for `length="gold"`.
            seed: For orders that draw hash_uniform.
            batch_tokens: Target tokens under way together; results do not depend on it.
        """
        order = order or default_order(self.model, direction)
        how = DecodingConfig.of(order, budget, length, seed, batch_tokens)
        source, target = direction_languages(self.model, direction)
        gold = None
        if references is not None:
            if len(references) != len(texts):
                raise InputError(f"{len(texts)} sentences but {len(references)} references")
            gold = [len(ids) for ids in self.encode(references, target, "reference")]
        return self.decode(texts, self.encode(texts, source), direction, how, gold)

    def encode(
        self, texts: Sequence[str], language: str, where: str = "input", first_line: int = 1
    ) -> list[np.ndarray]:
        """Subword ids of plain sentences; an `InputError` names the line that the model has no room for."""
        encoded = [np.array(ids, np.int64) for ids in self.model.vocabulary.encode(self.words(texts, language))]
        self.check_room([len(ids) for ids in encoded], range(first_line, first_line + len(encoded)), where)
        return encoded

    def check_room(self, lengths: Iterable[int], lines: Iterable[int], where: str) -> None:
        """An `InputError` for the first line that has more subwords than the model has positions."""
        room = self.model.config.transformer.max_positions - 2
        for length, line in zip(lengths, lines, strict=True):
            if length > room:
                raise InputError(f"{where}, line {line}: {length} subwords, the model has room for {room}")

    def words(self, texts: Sequence[str], language: str) -> list[str]:
        """Plain sentences as lines of words."""
        text = self._text[language]
        return [text.words(line) for line in texts]

    def decode(
        self,
        texts: Sequence[str],
        sources: Sequence[np.ndarray],
        direction: str,
        how: DecodingConfig,
        gold: Sequence[int] | None = None,
        advance: Callable[[int], None] = lambda sentences: None,
    ) -> list[Trajectory]:
        """`translate` for sentences that are already encoded. gold: lengths of the references."""
        how = how.with_order(how.order.bind(self.model, direction))
        filled = self.fill(sources, direction, how, gold, advance)
        vocabulary, made = self.model.vocabulary, how.signature
        return [
            Trajectory(
                source=source,
                text=text,
                tokens=vocabulary.pieces(one.ids),
                steps=one.steps.tolist(),
                logprobs=[round(float(value), 6) for value in one.logprobs],
                order=how.order.name,
                length=len(one.ids),
                signature=made,
            )
            for source, text, one in zip(texts, self.sentences(filled, direction), filled, strict=True)
        ]

    def fill(
        self,
        sources: Sequence[np.ndarray],
        direction: str,
        how: DecodingConfig,
        gold: Sequence[int] | None = None,
        advance: Callable[[int], None] = lambda sentences: None,
    ) -> list[Hypothesis]:
        """The ids, steps and log-probabilities that `decode` makes trajectories of."""
        present = [i for i, ids in enumerate(sources) if len(ids) and (gold is None or gold[i])]
        candidates = how.length.candidates(
            self.model, [sources[i] for i in present], direction, None if gold is None else [gold[i] for i in present]
        )
        asked = [(i, length) for i, lengths in zip(present, candidates, strict=True) for length in lengths]
        requests = [Request(sources[i], length, sentence_key(how.seed, sources[i], length)) for i, length in asked]
        order = how.order.bind(self.model, direction)
        filled = decode_distributed(self.model, requests, direction, order, how.budget, how.batch_tokens, advance)
        best: dict[int, Hypothesis] = {}
        for (i, _), one in zip(asked, filled, strict=True):
            if i not in best or one.logprobs.mean() > best[i].logprobs.mean():
                best[i] = one
        return [best.get(i, _NOTHING) for i in range(len(sources))]

    def sentences(self, filled: Sequence[Hypothesis], direction: str) -> list[str]:
        """Finished targets as a reader expects them."""
        text = self._text[direction_languages(self.model, direction)[1]]
        return [text.sentence(self.model.vocabulary.words(one.ids)) for one in filled]

    @cached_property
    def _text(self) -> dict[str, Text]:
        config = self.model.config
        return {language: Text(language, config.text) for language in config.languages}


_NOTHING = Hypothesis(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def direction_languages(model: TranslationModel, direction: str) -> tuple[str, str]:
    source, target = model.config.direction(direction)
    return model.config.languages[source], model.config.languages[target]


def sentence_key(seed: int, source: np.ndarray, length: int) -> int:
    """A number for the sentence: whatever batch or process it comes in, it draws the same hash_uniform."""
    digest = hashlib.blake2b(source.astype("<i8").tobytes(), digest_size=8, key=f"{seed}/{length}".encode())
    return int.from_bytes(digest.digest(), "little", signed=True)

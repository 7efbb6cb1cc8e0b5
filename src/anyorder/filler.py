"""Decoding without a source: texts with masks or prompts to continue in, trajectories out.

It does for masked language models what `Translator` does for translation models, with the same decoding engine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from anyorder.data.lines import Problem, clean_line, join_notes, refuse
from anyorder.decoding.beam import make_beam
from anyorder.decoding.callbacks import TOP_K, Step, step_callback
from anyorder.decoding.config import AUTO, BoundDecoding, DecodingConfig
from anyorder.decoding.distributed import decode_distributed
from anyorder.decoding.lengths import GIVEN
from anyorder.decoding.parts import check_finite
from anyorder.decoding.revision import NoRevision, Revision, make_revision
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.trajectory import GENERATE, INFILL, Trajectory, to_writes
from anyorder.device import inference_dtype, resolve_device
from anyorder.errors import InputError, check_number
from anyorder.models.adapter import MASK, TransformersModel
from anyorder.models.base import Canvas
from anyorder.models.pretrained import is_transformers, load_transformers
from anyorder.orders import Order, make_order
from anyorder.tasks import TASKS, make_task
from anyorder.tasks.base import BLANKS
from anyorder.tasks.encoder import TASK_KEY
from anyorder.translator import CHUNK, Translator, sentence_key
from anyorder.translator import load as load_translator

LEFT_TO_RIGHT = "left-to-right"
DEFAULT_LENGTH = 64


def load(name: str | Path, device: str | torch.device = "auto") -> "Translator | Filler":
    """A `Translator` for a translation model, a `Filler` for a masked language model.

    On CUDA it runs in bfloat16, on the CPU in float32.

    Args:
        name: A bundled name such as `de-en`, a folder, or a hub id. The hub id of a masked language model needs the
            prefix `hf:`; its folder may have it.
        device: `auto`, `cpu` or `cuda`.
    """
    return load_filler(name, device) if is_transformers(name) else load_translator(name, device)


def load_filler(name: str | Path, device: str | torch.device = "auto") -> "Filler":
    """A `Filler` for a Transformers masked language model: a folder or a hub id, with or without `hf:`."""
    device = resolve_device(device)
    return Filler(load_transformers(name, device, inference_dtype(device)))


@dataclass(frozen=True)
class _Line:
    """One line, encoded."""

    text: str
    tokens: np.ndarray
    """(T,) ids of the canvas."""
    problems: tuple[Problem, ...]
    """Why it is not used as it is."""
    can_fill: bool


class Filler:
    """Fills masks with one model, in any order."""

    def __init__(self, model: TransformersModel):
        self.model = model
        self._generating = model.generating()

    def __repr__(self) -> str:
        return f"Filler({self.model.name!r}, device='{self.model.device}')"

    def fill(
        self,
        texts: str | Sequence[str],
        order: str | Order | None = None,
        schedule: str | int | Schedule = AUTO,
        revision: str | Revision = "none",
        beam: int | str = 1,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 1,
        batch_tokens: int | None = None,
        on_step: Callable[[Step], None] | None = None,
        top_k: int = TOP_K,
        strict: bool = False,
    ) -> list[Trajectory]:
        """Fill the masks in texts.

        A text that cannot be filled never stops the others: it is returned unchanged, and its trajectory has a `note`.

        Args:
            texts: One or several texts, with `[MASK]` (or the model's own mask token) for every token to fill in.
            order: Which position to fill next, by name or as an `Order`; by default the model's learned order, or
                `margin` if it has none.
            schedule: How many positions to fill per step: `one`, a number, `cosine:10`, `threshold:0.9`; by default the
                schedule published with the revision. Without a revision it is `one`, or `blocks:B` for a block-causal
                model with blocks of B positions.
            revision: Which filled positions to mask again after a step.
            beam: Beam size for each text: `N` (tokens), `positions:N` or `joint:N`. 1 is greedy.
            temperature: Sampling temperature; 0 always picks the most likely token.
            top_p: Nucleus sampling: sample from the smallest set of tokens whose total probability reaches this.
            seed: Random seed for orders, revisions and sampled tokens.
            batch_tokens: Tokens to decode per batch. On CUDA, rounding may change a few results.
            on_step: Called for every text and step with what was filled and the top candidates.
            top_k: Number of candidates at each masked position.
            strict: Whether to raise an `InputError` for a text that cannot be filled.
        """
        config = DecodingConfig(
            AUTO if order is None else order, schedule, revision, GIVEN, seed, batch_tokens, beam,
            temperature=temperature, top_p=top_p,
        )  # fmt: skip
        texts = [texts] if isinstance(texts, str) else texts
        return list(self.stream(texts, config, on_step=on_step, top_k=top_k, strict=strict))

    def generate(
        self,
        prompts: str | Sequence[str],
        length: int = DEFAULT_LENGTH,
        order: str | Order | None = None,
        schedule: str | int | Schedule = AUTO,
        revision: str | Revision = "none",
        beam: int | str = 1,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 1,
        batch_tokens: int | None = None,
        on_step: Callable[[Step], None] | None = None,
        top_k: int = TOP_K,
        strict: bool = False,
    ) -> list[Trajectory]:
        """Continue prompts: append `length` masks to each and fill them. The text ends at the first end token.

        Args:
            prompts: One or several prompts; an empty prompt generates from scratch.
            length: Number of tokens to generate.
            order: See `fill`.
            schedule: See `fill`.
            revision: See `fill`.
            beam: See `fill`.
            temperature: See `fill`.
            top_p: See `fill`.
            seed: See `fill`.
            batch_tokens: See `fill`.
            on_step: See `fill`.
            top_k: See `fill`.
            strict: See `fill`.
        """
        config = DecodingConfig(
            AUTO if order is None else order, schedule, revision, GIVEN, seed, batch_tokens, beam,
            temperature=temperature, top_p=top_p,
        )  # fmt: skip
        prompts = [prompts] if isinstance(prompts, str) else prompts
        return list(self.stream(prompts, config, length, on_step=on_step, top_k=top_k, strict=strict))

    def canvas(self, text: str, seed: int = 1) -> Canvas:
        """A text with masks to fill by hand (`decoding.stepper`); an `InputError` if it cannot be filled."""
        [line] = self._encode([text], None)
        if not line.can_fill:
            raise InputError(f"text: {line.problems[-1].error}")
        return _canvas(line.tokens, INFILL, seed)

    def stream(
        self,
        texts: Iterable[str],
        config: DecodingConfig | None = None,
        length: int | None = None,
        on_progress: Callable[[int], None] = lambda texts: None,
        on_step: Callable[[Step], None] | None = None,
        top_k: int = TOP_K,
        source_name: str = "input",
        strict: bool = False,
    ) -> Iterator[Trajectory]:
        """Fill any number of texts in bounded memory.

        Args:
            texts: Texts with masks; with a length, prompts.
            config: How to decode; its length rule is ignored.
            length: Tokens to generate after each prompt; None fills the masks of the texts.
            on_progress: Called with the number of finished texts.
            on_step: See `fill`.
            top_k: See `fill`.
            source_name: Name of the texts in messages, such as a file name.
            strict: See `fill`.
        """
        check_number("length", length, at_least=1, at_most=self.model.max_length)
        task = INFILL if length is None else GENERATE
        config = self.with_blocks(config or DecodingConfig())
        config = replace(config, length=GIVEN if length is None else f"fixed:{length}")
        decoding = config.bind(self._model_for(task), task)
        return self._stream(texts, decoding, length, on_progress, on_step, top_k, source_name if strict else None)

    def _stream(
        self,
        texts: Iterable[str],
        decoding: BoundDecoding,
        length: int | None,
        on_progress: Callable[[int], None],
        on_step: Callable[[Step], None] | None,
        top_k: int,
        strict_name: str | None,
    ) -> Iterator[Trajectory]:
        """strict_name: what messages call the texts, if one that cannot be filled is an error."""
        remaining, first = iter(texts), 0
        task = INFILL if length is None else GENERATE
        model = self._model_for(task)
        while chunk := list(islice(remaining, CHUNK)):
            lines = self._encode(chunk, length)
            for number, line in enumerate(lines, start=first + 1):
                if strict_name is not None:
                    refuse(line.problems, number, {"source": strict_name})
            present = [i for i, line in enumerate(lines) if line.can_fill]
            canvases = [_canvas(lines[i].tokens, task, decoding.seed) for i in present]
            callback = on_step and step_callback(model, canvases, [first + i for i in present], on_step, top_k)
            decoded = decode_distributed(model, canvases, decoding, on_progress, callback)
            check_finite(decoded, model.name)
            best = {i: hypotheses[0] for i, hypotheses in zip(present, decoded, strict=True)}
            for i, line in enumerate(lines):
                yield self._trajectory(line, best.get(i), decoding, task)
            first += len(chunk)

    def with_blocks(self, config: DecodingConfig) -> DecodingConfig:
        """The config with the default schedule of a block-causal model: one block after the other."""
        size, beam = self.model.block_size, make_beam(config.beam)
        if size is None:
            return config
        if beam.size > 1 and (config.order == AUTO or make_order(config.order).name != LEFT_TO_RIGHT):
            raise beam.error(f"{self.model.name} is filled in blocks, so the order must be {LEFT_TO_RIGHT}")
        if beam.size > 1 or config.schedule != AUTO or not isinstance(make_revision(config.revision), NoRevision):
            return config
        return replace(config, schedule=f"blocks:{size}")

    def _model_for(self, task: str) -> TransformersModel:
        return self._generating if task == GENERATE else self.model

    def _encode(self, texts: Sequence[str], length: int | None) -> list[_Line]:
        cleaned = [clean_line(text) for text in texts]
        masks = np.full(length or 0, self.model.mask_token, np.int64)
        encoded = self.model.encode([text for text, _ in cleaned])
        lines = []
        for (text, problems), ids in zip(cleaned, encoded, strict=True):
            tokens = np.concatenate([ids, masks])
            unfit = self._unfit(tokens)
            if unfit and length is None:
                unfit = self._no_puzzle(text) or unfit
            lines.append(_Line(text, tokens, problems + unfit, not unfit))
        return lines

    def _unfit(self, tokens: np.ndarray) -> tuple[Problem, ...]:
        """Why a canvas cannot be filled, if it cannot."""
        room = self.model.max_length
        if len(tokens) > room:
            error = f"{len(tokens):,} tokens, the model has room for {room:,}"
            return (Problem("source", f"oversized source ({error})", error),)
        if len(tokens) == 0:
            return (Problem("source", "empty source", "is empty, expected a text with masks"),)
        if not (tokens == self.model.mask_token).any():
            return (Problem("source", "unmasked source", "has no mask, so there is nothing to fill"),)
        return ()

    def _no_puzzle(self, text: str) -> tuple[Problem, ...]:
        """What keeps a text from being one of the puzzles that the model is for, if it is for puzzles."""
        name = str(getattr(self.model.network.config, TASK_KEY, ""))
        if name in TASKS:
            try:
                make_task(name).read(text.strip().replace(MASK, BLANKS[0]))
            except InputError as error:
                return (Problem("source", f"unreadable puzzle ({error})", str(error)),)
        return ()

    def _trajectory(self, line: _Line, hypothesis: Hypothesis | None, decoding: BoundDecoding, task: str) -> Trajectory:
        model = self.model
        unfilled = Trajectory(
            source=line.text,
            text=line.text,
            tokens=[],
            steps=[],
            logprobs=[],
            order=decoding.order.name or decoding.order.identity,
            length=0,
            signature=str(decoding.signature),
            model=model.name,
            task=task,
            note=join_notes(line.problems),
        )
        if hypothesis is None:
            is_given = len(line.tokens) > 0 and not (line.tokens == model.mask_token).any()
            return replace(unfilled, canvas=[*model.to_tokens(line.tokens)]) if is_given else unfilled
        ids, filled = hypothesis.ids, line.tokens == model.mask_token
        ends = np.flatnonzero(filled & np.isin(ids, list(model.end_tokens)))
        tokens = model.to_tokens(ids)
        return replace(
            unfilled,
            text=model.to_text(ids[: ends[0]] if len(ends) else ids, task),
            tokens=[token for token, is_filled in zip(tokens, filled, strict=True) if is_filled],
            steps=hypothesis.steps[filled].tolist(),
            logprobs=[round(float(value), 6) for value in hypothesis.logprobs[filled]],
            length=int(filled.sum()),
            canvas=[None if is_filled else token for token, is_filled in zip(tokens, filled, strict=True)],
            writes=to_writes(hypothesis.writes, model.to_tokens),
            forwards=hypothesis.forwards,
        )


def _canvas(tokens: np.ndarray, task: str, seed: int) -> Canvas:
    """Its key, for random orders, follows from the seed and its tokens."""
    return Canvas(tokens, None, task, sentence_key(seed, tokens, len(tokens)))

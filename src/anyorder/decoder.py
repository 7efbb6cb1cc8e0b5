"""The main entry point of the library: a model and a task; text in, trajectories out.

The command line, the explorer, evaluation and validation all decode in this way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from anyorder import progress as bars
from anyorder.data.line_problems import refuse
from anyorder.decoding.config import AUTO, BoundDecoding, DecodingConfig
from anyorder.decoding.engine import usual_batch_tokens
from anyorder.decoding.revision import Revision
from anyorder.decoding.sampling import RankBy
from anyorder.decoding.schedules import Schedule
from anyorder.decoding.search import best_first, search
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.stepper import NUM_CANDIDATES, Step, step_callback
from anyorder.decoding.trajectory import Trajectory
from anyorder.device import DType, resolve_device, resolve_dtype
from anyorder.errors import InputError, check_number
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import TransformersModel, is_transformers, load_transformers, wrap_transformers
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import Order
from anyorder.tasks import TASKS, Generate, Infill, PuzzleTask, Task, Translation, make_task
from anyorder.tasks.masked import DEFAULT_LENGTH, End
from anyorder.tasks.prompts import as_prompts
from anyorder.tasks.puzzles import TASK_KEY
from anyorder.tasks.tensors import GeneratedIds, TensorSettings

CHUNK = 4096
"""At most so many lines are decoded before the first of them is handed out: sorted by length they fill batches well."""
FIRST, BATCHES = 16, 8
"""Where results are awaited one by one, so many lines come first, then twice as many, and so on, as long as they fill
at most so many batches."""
NAMES = {"source": "input", "reference": "reference"}


class Options(TypedDict, total=False):
    """How to decode, besides the order: the fields of `DecodingConfig`, and what to show and refuse."""

    schedule: str | int | Schedule
    revision: str | Revision
    length: str
    seed: int
    batch_tokens: int | None
    beam: int | str
    length_penalty: float
    temperature: float
    top_p: float
    top_k: int
    rank_by: RankBy
    guidance: float
    cache: str
    on_step: Callable[[Step], None] | None
    """Called for every text and step with what was filled and the top candidates."""
    num_candidates: int
    """Number of candidates at each masked position."""
    strict: bool
    """Whether to raise an `InputError` for a line that cannot be used as it is."""
    progress: bool
    """Whether to show a progress bar."""


def load(
    model: Any, tokenizer: Any = None, task: str | Task | None = None, device: str | torch.device = "auto",
    dtype: DType | torch.dtype = "auto",
) -> "Decoder":  # fmt: skip
    """A decoder for a translation model or a masked language model.

    Args:
        model: A bundled name such as `de-en`, a folder, or a hub id, which may name a branch, tag or commit
            (`name@revision`); the hub id of a masked language model needs the prefix `hf:`, its folder may have it. Or
            a model in memory: one of ours, or one of Transformers.
        tokenizer: The tokenizer of a Transformers model in memory, which stays on its device and in its precision.
        task: What to do, such as `en-de`, `infill` or `sudoku-4x4`; by default what the model is made for.
        device: `auto`, `cpu` or `cuda`.
        dtype: Its precision: `float32`, `bfloat16` or `float16`; `auto` is bfloat16 on CUDA and float32 on the CPU.
    """
    if (tokenizer is not None or not isinstance(model, str | Path)) and dtype != "auto":
        raise InputError("is for models that are loaded; one in memory keeps its own", "dtype")
    if tokenizer is not None:
        return Decoder(wrap_transformers(model, tokenizer), task)
    if not isinstance(model, str | Path):
        return Decoder(model, task)
    place = resolve_device(device)
    loader = load_transformers if is_transformers(model) else TranslationModel.from_pretrained
    return Decoder(loader(model, place, resolve_dtype(dtype, place)), task)


class Decoder:
    """Decodes with one model, in any order.

    Args:
        model: A `TranslationModel`, a `TransformersModel`, or another `Model`.
        task: What to do with it: a name or a `Task`. By default, a masked model solves the puzzles that it was trained
            on, or else fills masks; a model that translates in several directions needs to be told which.
    """

    def __init__(self, model: Any, task: str | Task | None = None):
        if not callable(getattr(model, "pack", None)):
            raise InputError(f"{type(model).__name__}: is not a model to decode with; give load its tokenizer, too")
        self.model: Any = model
        self._task = _usual_task(model) if task is None else make_task(task)
        if self._task is not None:
            self._task.check(model)

    def __repr__(self) -> str:
        task = f", task={self._task.name!r}" if self._task else ""
        return f"Decoder({self.model.name!r}{task}, device='{self.model.device}')"

    @property
    def task(self) -> Task:
        """What the model is asked to do."""
        if self._task is None:
            if isinstance(self.model, TranslationModel):
                directions = ", ".join(self.model.config.directions)
                raise InputError(f"is missing: {self.model.name} translates {directions}", "direction")
            raise InputError(f"is missing: say what {type(self.model).__name__} is asked to do", "task")
        return self._task

    def with_task(self, task: str | Task | None) -> "Decoder":
        """The same model for another task; for its own if None is given."""
        return Decoder(self.model, task)

    def translate(
        self, texts: str | Sequence[str], direction: str, order: str | Order | None = None,
        references: str | Sequence[str] | None = None, **options: Unpack[Options],
    ) -> list[Trajectory]:  # fmt: skip
        """Translate sentences.

        A problematic sentence never stops the others; its trajectory has a `note`. An empty sentence gives an empty
        translation. One that is too long for the model is split into sentences, or else clauses, which are translated
        separately; a clause that is still too long is truncated.

        Args:
            texts: One or several plain sentences.
            direction: Source and target language, such as `de-en`.
            order: Which position to fill next, by name (`margin`, `outer-in:stride=2`) or as an `Order`; by default the
                model's learned order, or `margin` if it has none.
            references: Reference translations, for `length="gold"`.
            options: See `DecodingConfig` and `Options`. If a sentence was split, the positions and steps that `on_step`
                gets are relative to its part.
        """
        return self.with_task(direction).run(texts, order, references, **options)

    def fill(
        self, texts: str | Sequence[str], order: str | Order | None = None, **options: Unpack[Options]
    ) -> list[Trajectory]:
        """Fill the masks in texts.

        A text that cannot be filled never stops the others: it is returned unchanged, and its trajectory has a `note`.

        Args:
            texts: One or several texts, with `[MASK]` (or the model's own mask token) for every token to fill in.
            order: See `translate`.
            options: See `DecodingConfig` and `Options`.
        """
        return self.with_task(Infill()).run(texts, order, **options)

    def generate(
        self, prompts: Any, length: int = DEFAULT_LENGTH, order: str | Order | None = None, chat: bool = False,
        system: str | None = None, stop: str | Sequence[str] | None = (), end: End = "free", early_stop: bool = True,
        **options: Any,
    ) -> list[Trajectory]:  # fmt: skip
        """Continue prompts: append `length` masks to each and fill them.

        A trajectory has the `completion`, which ends at the first end token or stop string, and all `tokens` that were
        filled, `completion_length` of which spell it. Its `text` is the prompt and the completion; in a chat, the
        answer alone. A prompt that cannot be used never stops the others: its trajectory has a `note`.

        Args:
            prompts: One or several; every one is read as it is, line breaks included. A prompt is a text (an empty one
                generates from scratch), a list of token ids, which are all that the model reads before the masks, a
                conversation (a list of messages with `role` and `content`), or a dictionary as in a line of JSON: with
                `prompt` and perhaps `suffix`, `messages`, or `canvas` (a text with masks, or ids with None).
            length: Number of tokens to generate.
            order: See `translate`.
            chat: Whether a text is what a user says, to be put through the tokenizer's chat template.
            system: The system message before it.
            stop: Texts; a completion ends before the first of them.
            end: When end tokens are filled in: `free`, like other tokens; `last`, where only they are left; `never`.
            early_stop: Whether a schedule in blocks stops after the block with which the completion ends. The rest is
                then not recorded.
            options: See `DecodingConfig` and `Options`.
        """
        return self.with_task(Generate(length, chat, system, stop, end, early_stop)).run(
            as_prompts(prompts), order, **options
        )

    def generate_ids(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, generation_config: Any = None,
        order: str | Order | None = None, schedule: str | int | Schedule = AUTO, revision: str | Revision = "none",
        seed: int = 1, batch_tokens: int | None = None, **settings: Any,
    ) -> Tensor | GeneratedIds:  # fmt: skip
        """Continue token ids: takes and returns tensors as `generate` of Transformers does.

        A prompt is all that the model reads before the masks, exactly as given. The result of a row does not depend on
        the others.

        Args:
            input_ids: (B, T) the prompts, padded on the left or on the right.
            attention_mask: (B, T) 0 at padding. By default, padding is wherever the padding token is, unless that token
                also ends texts.
            generation_config: A `GenerationConfig`. What it sets besides the settings below is an `InputError` if it
                could change the ids.
            order, schedule, revision, seed, batch_tokens: See `DecodingConfig`.
            settings: By the names of Transformers: `max_new_tokens` or `max_length`, `eos_token_id` and `pad_token_id`
                (by default, the model's), `do_sample` with `temperature` and `top_p`, `num_beams`, and
                `return_dict_in_generate`, which also returns when each token was filled in.

        Returns:
            (B, T + new) the prompts as they are, padding included, and the new tokens. They end with the longest row;
            after its first end token, a row is padded.
        """
        Infill().check(self.model)
        theirs = TensorSettings(self.model, generation_config, settings, input_ids)
        decoder = Decoder(theirs.model(self.model), Generate(theirs.length))
        trajectories = decoder.run(
            theirs.prompts(input_ids, attention_mask), order, strict=True, schedule=schedule, revision=revision,
            seed=seed, batch_tokens=batch_tokens, **theirs.decoding,
        )  # fmt: skip
        return theirs.tensors(input_ids, trajectories, self.model)

    def solve(
        self, puzzles: str | Sequence[str], order: str | Order | None = None, **options: Unpack[Options]
    ) -> list[Trajectory]:
        """Solve puzzles of the task that the model was trained on, or of the decoder's own.

        Args:
            puzzles: One or several, a character per cell, with 0 or . for an empty one.
            order: See `translate`.
            options: See `DecodingConfig` and `Options`.
        """
        task = self._task if isinstance(self._task, PuzzleTask) else _usual_task(self.model)
        if not isinstance(task, PuzzleTask):
            raise InputError(f"is missing: {self.model.name} does not say which puzzles it solves", "task")
        return self.with_task(task).run(puzzles, order, **options)

    def run(
        self, texts: str | Sequence[Any], order: str | Order | None = None,
        references: str | Sequence[str] | None = None, on_step: Callable[[Step], None] | None = None,
        num_candidates: int = NUM_CANDIDATES, strict: bool = False, progress: bool = False, **config: Any,
    ) -> list[Trajectory]:  # fmt: skip
        """Do the decoder's task; see `translate`."""
        texts = [texts] if isinstance(texts, str) else texts
        references = [references] if isinstance(references, str) else references
        if references is not None and len(references) != len(texts):
            raise InputError(f"{len(texts)} sentences but {len(references)} references")
        decoding = DecodingConfig(order=AUTO if order is None else order, **config)
        with bars.bar("decoding", len(texts), f"{self.task.unit}s", progress) as bar:
            found = self.stream(
                texts, decoding, references, bar.advance, on_step, num_candidates, strict=strict, eager=False
            )
            return list(found)

    def n_best(
        self, texts: str | Sequence[str], count: int, config: DecodingConfig | None = None
    ) -> list[list[Trajectory]]:
        """At most `count` different results for every text, best first.

        They come from the beams of all length candidates. If a sentence was split, translation k joins the k-th
        translations of its parts.
        """
        check_number("count", count, at_least=1, whole=True)
        examples = self.task.examples(self.model, [texts] if isinstance(texts, str) else texts)
        return list(self._decode(examples, config, count))

    def stream(
        self,
        lines: Iterable[Any],
        config: DecodingConfig | None = None,
        references: Iterable[str] | None = None,
        on_progress: Callable[[int], None] = lambda lines: None,
        on_step: Callable[[Step], None] | None = None,
        num_candidates: int = NUM_CANDIDATES,
        names: Mapping[str, str] = NAMES,
        strict: bool = False,
        eager: bool = True,
    ) -> Iterator[Trajectory]:
        """Decode any number of lines in bounded memory.

        Args:
            lines: What the task reads: sentences, texts with masks, prompts or puzzles.
            config: How to decode.
            references: One reference per line, for the length rule `gold`.
            on_progress: Called with the number of finished hypotheses.
            on_step, num_candidates, strict: See `Options`.
            names: What messages call the `source` and the `reference`, such as the names of files.
            eager: Whether to hand out the first results soon, by decoding few lines at first.
        """
        config = config or DecodingConfig()
        if references is not None and config.length != "gold":
            raise InputError(f"are for the length rule gold, not for {config.length}", "references")
        examples = self.read(line_blocks(lines, references, names, self._block), names, strict)
        return self.decode(examples, config, on_progress, on_step, num_candidates, eager)

    @property
    def _block(self) -> int:
        """How many lines are read at a time."""
        return CHUNK

    def read(self, blocks: Iterable["LineBlock"], names: Mapping[str, str], strict: bool) -> Iterable[Any]:
        """The examples of blocks of lines; see `stream`."""
        for first, lines, references in blocks:
            for number, example in enumerate(self.task.examples(self.model, lines, references), start=first):
                if strict:
                    refuse(example.problems, number, names)
                yield example

    def decode(
        self,
        examples: Iterable[Any],
        config: DecodingConfig | None = None,
        on_progress: Callable[[int], None] = lambda lines: None,
        on_step: Callable[[Step], None] | None = None,
        num_candidates: int = NUM_CANDIDATES,
        eager: bool = False,
    ) -> Iterator[Trajectory]:
        """Decode examples that the task has read already. eager: see `stream`."""
        for [best] in self._decode(examples, config, 1, on_progress, on_step, num_candidates, eager):
            yield best

    def canvas(self, text: str, length: int | None = None, seed: int = 1) -> Canvas:
        """A canvas to fill by hand (`decoding.stepper`). length: of a translation."""
        return self.task.canvas(self.model, text, length, seed)

    def bind(self, config: DecodingConfig) -> BoundDecoding:
        """The config with what the task determines, and names replaced by objects."""
        return self.task.bind(config, self.model)

    def _decode(
        self,
        examples: Iterable[Any],
        config: DecodingConfig | None,
        n_best: int = 1,
        on_progress: Callable[[int], None] = lambda lines: None,
        on_step: Callable[[Step], None] | None = None,
        num_candidates: int = NUM_CANDIDATES,
        eager: bool = False,
    ) -> Iterator[list[Trajectory]]:
        """Of every example its best trajectories, best first."""
        task, decoding = self.task, self.bind(config or DecodingConfig())
        model = task.model_for(self.model)
        remaining, first = iter(examples), 0
        size = min(FIRST, CHUNK) if eager else CHUNK
        while chunk := list(islice(remaining, size)):
            by_example = task.canvases(self.model, chunk, decoding)
            canvases = [canvas for parts in by_example for part in parts for canvas in part]
            numbers = [i for i, parts in enumerate(by_example, start=first) for part in parts for _ in part]
            callback = on_step and step_callback(model, canvases, numbers, on_step, num_candidates)
            found = iter(search(model, canvases, decoding, on_progress, callback, n_best, task.end_check(model)))
            hypotheses = [[[one for _ in part for one in next(found)] for part in parts] for parts in by_example]
            ranked = [[self._rank(part, decoding, n_best) for part in parts] for parts in hypotheses]
            for example, parts in zip(chunk, ranked, strict=True):
                yield [task.trajectory(self.model, example, own, decoding) for own in _across_parts(parts)]
            first += len(chunk)
            if eager:
                each = sum(len(canvas.tokens) + 2 for canvas in canvases) // len(chunk)
                room = BATCHES * (decoding.batch_tokens or usual_batch_tokens(model))
                size = min(2 * size, CHUNK, max(1, room // max(1, each)))

    def _rank(self, hypotheses: list[Hypothesis], decoding: BoundDecoding, n_best: int) -> list[Hypothesis | None]:
        """The best hypotheses of a part, of any length, best first; [None] if there was nothing to fill."""
        if not all(np.isfinite(hypothesis.logprobs).all() for hypothesis in hypotheses):
            raise InputError(f"{self.model.name}: its probabilities are not numbers, so its weights must be damaged")
        return [*best_first(hypotheses, decoding.length_penalty)[:n_best]] or [None]


LineBlock = tuple[int, list[Any], list[str] | None]
"""The number of the first line, counted from 1; the lines; and their references, if there are any."""


def line_blocks(
    lines: Iterable[Any], references: Iterable[str] | None, names: Mapping[str, str], size: int
) -> Iterator[LineBlock]:
    """Lines in blocks; an `InputError` if there are not as many references. names: see `Decoder.stream`."""
    remaining, first = iter(lines), 1
    expected = None if references is None else iter(references)
    while block := list(islice(remaining, size)):
        held = None if expected is None else list(islice(expected, len(block)))
        if held is not None and len(held) < len(block):
            raise InputError(f"{names['source']} has more lines than {names['reference']}")
        yield first, block, held
        first += len(block)
    if expected is not None and next(expected, None) is not None:
        raise InputError(f"{names['source']} has fewer lines than {names['reference']}")


def _usual_task(model: Any) -> Task | None:
    """What the model is made for; None if it does not say, or translates in several directions."""
    if isinstance(model, TranslationModel):
        directions = model.config.directions
        return Translation(directions[0]) if len(directions) == 1 else None
    if not isinstance(model, TransformersModel):
        return None
    name = getattr(model.network.config, TASK_KEY, None)
    return make_task(name) if name in TASKS else Infill()


def _across_parts(ranked: Sequence[Sequence[Hypothesis | None]]) -> list[list[Hypothesis | None]]:
    """From the ranked hypotheses of each part to ranked lists with one of each; a short ranking repeats its last."""
    return [[own[min(k, len(own) - 1)] for own in ranked] for k in range(max(map(len, ranked)))]

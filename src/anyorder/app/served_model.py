"""What may be requested of a model, and the response that is made of the results.

Any of its tasks may, by the names of orders, schedules, revisions and length rules.

It knows nothing about HTTP: a wrong request is an `InputError`. A request becomes calls for the queue, one per order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from anyorder.app import schemas
from anyorder.app.batching import BATCH_TOKENS, QueuedCall, Result
from anyorder.decoder import Decoder, load
from anyorder.decoding.config import AUTO, DEFAULT_LENGTH, DecodingConfig
from anyorder.decoding.revision import make_revision
from anyorder.decoding.schedules import SCHEDULES, make_schedule
from anyorder.decoding.stepper import Fill, StepCache, StepState, check_fills, step
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError, unknown
from anyorder.evaluation.bleu import sentence_bleu
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import PREFIX
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import ORDERS, Order, make_order
from anyorder.orders.learned import DEFAULT, order_names
from anyorder.registry import summary
from anyorder.tasks import PuzzleTask, Task
from anyorder.tasks.puzzles import EMPTY, Examples

Answer = TypeVar("Answer")
Work = tuple[list[QueuedCall[Any, Result]], Callable[[list[Result]], Answer]]
"""What a request asks for: calls for the queue, and the function that makes the response of their results."""

LEARNED = "learned"
MAX_PASSES = 11
"""How often a revision may write every position."""


def load_models(sources: Sequence[str], device: str = "auto") -> dict[str, "ServedModel"]:
    """The models by name. sources: Bundled names, folders or hub ids. Nothing else is read from disk later."""
    models: dict[str, ServedModel] = {}
    for source in sources:
        folder = Path(source.removeprefix(PREFIX))
        name = folder.resolve().name if folder.is_dir() else source  # the page must not learn its path
        if name in models:
            raise InputError(f"two models are called '{name}': rename the folder of one")
        models[name] = ServedModel(name, load(source, device=device))
    return models


class ServedModel:
    """One model with its tasks, and for each of them the orders, bound and ready to decode."""

    def __init__(self, name: str, decoder: Decoder):
        model = decoder.model
        self.name, self.model = name, model
        translates = isinstance(model, TranslationModel)
        tasks = model.config.directions if translates else [decoder.task]
        self.decoders = {one.task.name: one for one in map(decoder.with_task, tasks)}
        """By task. Only a translation model has several: its directions."""
        self.orders = _bind_orders(self.decoders)
        """By task and name, the model's learned orders first."""
        self.puzzle = decoder.task if not translates and isinstance(decoder.task, PuzzleTask) else None
        self.kind: schemas.Kind = "translation" if translates else "puzzle" if self.puzzle else "infill"
        """What the page calls a text and a reference."""
        self.lengths: list[str] = []
        """Rules that find a target's length, the default first; empty if the text determines it."""
        if translates:
            self.lengths += [DEFAULT_LENGTH, "predicted"] * model.config.predicts_length
            self.lengths += ["table:4"] * (model.length_table is not None)
        self.step_cache = StepCache()
        """Only for the thread that runs the model."""

    def decoder(self, task: str | None) -> Decoder:
        """The decoder for one of the model's tasks; None stands for the only one."""
        if task is None and len(self.decoders) > 1:
            raise InputError(f"is missing: {self.name} is for {', '.join(self.decoders)}", "task")
        name = next(iter(self.decoders)) if task is None else task
        if name not in self.decoders:
            raise unknown("task", name, self.decoders)
        return self.decoders[name]

    def order(self, name: str, task: Task) -> Order:
        """An order by name, with or without options.

        `learned` takes no option: it would be a path on this machine's disk.
        """
        served = self.orders[task.name]
        if name in served:
            return served[name]
        base, _, options = name.partition(":")
        if base == LEARNED or base not in ORDERS or not options:
            raise unknown("order", name, served)
        return make_order(name).bind(self.model, task.mode)

    def schedule(self, requested: str | int) -> str:
        """The name of a schedule, as `DecodingConfig` takes it; it must not fill more positions than the model has."""
        name, longest = str(requested).strip(), self.model.max_length
        if name.isdecimal() and int(name) > longest:
            raise InputError(f"{name}: expected at most {longest} positions per step", "schedule")
        if name != AUTO:
            make_schedule(name)
        return name

    def revision(self, requested: str) -> str:
        """The name of a revision, as `DecodingConfig` takes it; it must not keep the server busy for long."""
        name, most = requested.strip(), MAX_PASSES * self.model.max_length
        steps = make_revision(name).last_step(self.model.max_length)
        if steps > most:
            raise InputError(f"{name}: may take {steps:,} steps; at most {most:,} are made here", "revision")
        return name

    def usual_schedule(self, revision: str = "none") -> str:
        """The schedule that is used if a request names none."""
        task = next(iter(self.decoders.values())).task
        schedule = task.complete(DecodingConfig(revision=revision), self.model).schedule
        return make_revision(revision).usual_schedule if schedule == AUTO else str(schedule)

    def length(self, requested: str | int | None) -> str:
        """The name of a length rule, as `DecodingConfig` takes it."""
        if requested is None:
            return DEFAULT_LENGTH
        if self.kind != "translation":
            raise InputError("is given, but this model does not translate", "length")
        if isinstance(requested, str):
            if requested not in self.lengths:
                raise unknown("length", requested, [*self.lengths, "a number"])
            return requested
        if not 1 <= requested <= self.model.max_length:
            raise InputError(f"{requested}: expected a number from 1 to {self.model.max_length}", "length")
        return f"fixed:{requested}"

    def info(self) -> schemas.ModelInfo:
        """What the model is, and what to offer."""
        puzzle, grid = self.puzzle, None
        if puzzle is not None:
            grid = schemas.Grid(columns=puzzle.columns, rows=puzzle.rows, box=puzzle.box, symbols=list(puzzle.symbols))
        return schemas.ModelInfo(
            name=self.name,
            kind=self.kind,
            orders={task: list(orders) for task, orders in self.orders.items()},
            lengths=self.lengths,
            schedules=_schedule_choices(self.kind, self.usual_schedule()),
            revisions=[
                schemas.RevisionChoice(name=name, label=label, usual_schedule=self.usual_schedule(name))
                for name, label in REVISION_LABELS.items()
            ],
            longest=self.model.max_length,
            grid=grid,
        )

    def check(self, query: schemas.CheckQuery) -> schemas.CheckResponse:
        """What a schedule and a revision do; an `InputError` if the model cannot be decoded with them."""
        revision = None if query.revision is None else self.revision(query.revision)
        usual = self.usual_schedule(revision or "none")
        schedule = None if query.schedule is None else self.schedule(query.schedule)
        return schemas.CheckResponse(
            schedule=schedule and _describe_schedule(usual if schedule == AUTO else schedule),
            revision=revision and summary(make_revision(revision)),
            usual_schedule=revision and usual,
        )

    def decode(self, query: schemas.DecodeQuery) -> Work[Trajectory, schemas.DecodeResponse]:
        """A text decoded in several orders.

        Texts with the same task and settings are decoded in one batch; none depends on the others.
        """
        decoder = self.decoder(query.task)
        config = DecodingConfig(
            schedule=self.schedule(query.schedule),
            revision=self.revision(query.revision),
            length=self.length(query.length),
            batch_tokens=BATCH_TOKENS,
        )
        number = query.length if isinstance(query.length, int) else None
        # Only checks the text; the length rule of a translation runs on the model, so not here.
        canvas = decoder.canvas(query.text, number or (1 if self.kind == "translation" else None))
        judge = _judge(decoder.task, query)
        [example] = decoder.task.examples(self.model, [query.text])
        calls = []
        for name in query.orders:
            own = replace(config, order=self.order(name, decoder.task))
            bound = decoder.bind(own)
            cost = len(canvas.tokens)
            if canvas.source is not None and number is None:
                cost = bound.length.count * (len(canvas.source) + 2)
            # The key holds what the task adds to the config, too, such as the blocks of a block-causal model.
            key = self.name, decoder.task.name, str(bound.signature)
            calls.append(QueuedCall(partial(decoder.decode, config=own), example, key, cost))

        def respond(runs: Sequence[Trajectory]) -> schemas.DecodeResponse:
            responses = []
            for run in runs:
                tokens = dict(zip(run.positions, run.tokens, strict=True))
                filled = [tokens.get(i, given) for i, given in enumerate(run.canvas or [None] * run.length)]
                response = schemas.Run.model_validate(run, from_attributes=True)
                responses.append(response.model_copy(update=vars(judge(run.text, filled))))
            return schemas.DecodeResponse(runs=responses)

        return calls, respond

    def fill_by_hand(self, query: schemas.StepQuery) -> Work[StepState, schemas.StepResponse]:
        """The state after some positions were filled by hand."""
        decoder = self.decoder(query.task)
        self.length(query.length)
        canvas: Canvas = decoder.canvas(query.text, query.length)
        judge = _judge(decoder.task, query)
        fills = [Fill(fill.position, fill.token) for fill in query.filled]
        check_fills(self.model, canvas, fills)
        order = None if query.order is None else self.order(query.order, decoder.task)
        run = partial(step, self.model, canvas, order=order, num_candidates=query.num_candidates, cache=self.step_cache)

        def respond(states: Sequence[StepState]) -> schemas.StepResponse:
            [state] = states
            text, verdict = None, schemas.Verdict()
            if None not in state.tokens:
                text = self.model.to_text(state.ids, decoder.task.mode)
                verdict = judge(text, state.tokens)
            logprobs = [None if logprob is None else round(logprob, 6) for logprob in state.logprobs]
            fields = {**vars(state), **vars(verdict), "logprobs": logprobs, "text": text, "next": state}
            return schemas.StepResponse.model_validate(fields, from_attributes=True)

        return [QueuedCall(partial(map, run), fills)], respond

    def new_puzzle(self, query: schemas.PuzzleQuery) -> Work[Examples, schemas.Puzzle]:
        """A puzzle and its solution, the same ones for the same seed."""
        puzzle = self.puzzle
        if puzzle is None:
            raise InputError(f"{self.name}: expected a model that solves puzzles", "model")

        def respond(generated: Sequence[Examples]) -> schemas.Puzzle:
            [one] = generated
            return schemas.Puzzle(text=puzzle.write(one.puzzles[0]), reference=puzzle.write(one.solutions[0]))

        return [QueuedCall(partial(map, partial(puzzle.generate, 1)), query.seed)], respond


def _judge(task: Task, query: schemas.Query) -> Callable[[str, Sequence[str | None]], schemas.Verdict]:
    """What judges an answer: a function of the finished text and the tokens of its canvas.

    An `InputError` if the reference is for a puzzle, and no answer can equal it.
    """
    reference = query.reference if query.reference and query.reference.strip() else None
    if not isinstance(task, PuzzleTask):
        if reference is None:
            return lambda text, tokens: schemas.Verdict()
        return lambda text, tokens: schemas.Verdict(bleu=round(sentence_bleu(text, reference), 2))
    solution = None
    if reference is not None:
        try:
            solution = task.read(reference)[None]
        except InputError as error:
            raise InputError(f"reference: {error}") from None
        if (solution == EMPTY).any():
            raise InputError("reference: has empty cells")
    puzzle, numbers = task.read(query.text)[None], task.numbers

    def judge(text: str, tokens: Sequence[str | None]) -> schemas.Verdict:
        cells = np.array([[numbers.get(token or "", EMPTY) for token in tokens]])
        solved = bool(task.is_right(puzzle, cells, solution)[0])
        if solution is None:
            return schemas.Verdict(solved=solved)
        return schemas.Verdict(solved=solved, wrong=[] if solved else np.flatnonzero(cells[0] != solution[0]).tolist())

    return judge


def _bind_orders(decoders: Mapping[str, Decoder]) -> dict[str, dict[str, Order]]:
    """Orders by task and name, as users write it. A learned order that works for no task is damaged, and its error
    says how."""
    bound: dict[str, dict[str, Order]] = {task: {} for task in decoders}
    model = next(iter(decoders.values())).model
    saved = order_names(model.path) if model.path else []
    learned = [LEARNED] * (DEFAULT in saved) + [f"{LEARNED}:{name}" for name in saved if name != DEFAULT]
    for name in [*learned, *(name for name in ORDERS if name != LEARNED)]:
        errors = []
        for task, decoder in decoders.items():
            try:
                bound[task][name] = make_order(name).bind(model, decoder.task.mode)
            except InputError as error:
                errors.append(error)
        if len(errors) == len(decoders):
            raise errors[0]
    return bound


REVISION_LABELS = {
    "none": "filled tokens stay",
    "mask-predict:4": "four passes that rewrite the least probable tokens",
    "p2:4": "four passes that rewrite what the model now doubts",
    "gibbs": "rewrite every token once, one at a time",
}
"""The revisions to offer, none first, and what they do."""


def _schedule_choices(kind: schemas.Kind, default: str) -> list[schemas.ScheduleChoice]:
    """A short list, the default first. Texts with masks have few of them, so their steps and blocks are smaller."""
    size, word = (4, "four") if kind == "infill" else (8, "eight")
    groups = {
        "Positions per step": {
            "one": "one position per step",
            "2": "two positions per step",
            "4": "four positions per step",
        },
        "Number of steps": {
            "steps:1": "everything at once",
            f"steps:{size}": f"{word} steps of equal size",
            f"cosine:{size}": f"{word} steps, small ones first",
            "dilated": "increasingly fine grids, with the order dilated",
        },
        "Where the model is confident": {
            "threshold:0.7": "all tokens with a probability of 70 % or more",
            "threshold:0.9": "all tokens with a probability of 90 % or more",
            "factor:1": "the more tokens at once, the more probable they must be",
            "entropy-bound:1": "until the entropies add up to 1 nat",
            "klass": "tokens that are probable and no longer change",
        },
        "Block by block": {
            f"blocks:{size}": f"{word} positions from the left, then the next {word}",
            f"blocks:{size}+threshold:0.7": "in each block, all tokens with 70 % or more",
        },
    }
    label = "one position per step, in the blocks of the model" if default != "one" else "one position per step"
    choices = [schemas.ScheduleChoice(name=default, label=label, group="Positions per step")]
    for group, labels in groups.items():
        choices += [
            schemas.ScheduleChoice(name=n, label=label, group=group) for n, label in labels.items() if n != default
        ]
    return choices


def _describe_schedule(name: str) -> str:
    """What a schedule does, in one line. name: one that `make_schedule` takes."""
    base = name.partition(":")[0].strip()
    if base in SCHEDULES:
        return summary(SCHEDULES[base])
    return "One position per step." if base in ("one", "1") else f"{base} positions per step."

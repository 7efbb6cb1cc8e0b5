"""What may be requested of a model: any of its tasks, by the names of orders, schedules, revisions and length rules.

It knows nothing about HTTP: a wrong request is an `InputError`. A request becomes calls for the queue, one per order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anyorder.app.batching import QueuedCall
from anyorder.app.limits import MAX_PASSES
from anyorder.app.schemas import DecodeQuery, Kind, StepQuery, Verdict
from anyorder.decoder import Decoder, load
from anyorder.decoding.config import AUTO, DEFAULT_LENGTH, DecodingConfig
from anyorder.decoding.revision import make_revision
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.stepper import Fill, StepCache, StepState, check_fills, step
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError, unknown
from anyorder.evaluation.bleu import sentence_bleu
from anyorder.models.base import Canvas
from anyorder.models.hf.pretrained import PREFIX
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import ORDERS, Order, make_order
from anyorder.orders.learned import DEFAULT, order_names
from anyorder.tasks import PuzzleTask, Task
from anyorder.tasks.puzzles import EMPTY

LEARNED = "learned"


def load_models(sources: Sequence[str], device: str = "auto") -> dict[str, "ServedModel"]:
    """The models by name. sources: Bundled names, folders or hub ids. Nothing else is read from disk later."""
    models: dict[str, ServedModel] = {}
    for source in sources:
        folder = Path(source.removeprefix(PREFIX))
        name = folder.resolve().name if folder.is_dir() else source  # the page must not learn its path
        if name in models:
            raise InputError(f"two models are called '{name}': rename the folder of one")
        models[name] = ServedModel(name, load(source, device=device))
    if not models:
        raise InputError("no model is given")
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
        self.kind: Kind = "translation" if translates else "puzzle" if self.puzzle else "infill"
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

    def decode_calls(self, query: DecodeQuery, batch_tokens: int) -> list[QueuedCall[Any, Trajectory]]:
        """A text decoded in several orders.

        Texts with the same task and settings are decoded in one batch; none depends on the others.
        """
        decoder = self.decoder(query.task)
        config = DecodingConfig(
            schedule=self.schedule(query.schedule),
            revision=self.revision(query.revision),
            length=self.length(query.length),
            batch_tokens=batch_tokens,
        )
        number = query.length if isinstance(query.length, int) else None
        # Only checks the text; the length rule of a translation runs on the model, so not here.
        canvas = decoder.canvas(query.text, number or (1 if self.kind == "translation" else None))
        _read_solution(decoder.task, query.reference)  # only checks it
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
        return calls

    def step_call(self, query: StepQuery) -> QueuedCall[Callable[[], StepState], StepState]:
        """The state after some positions were filled by hand."""
        decoder = self.decoder(query.task)
        self.length(query.length)
        canvas: Canvas = decoder.canvas(query.text, query.length)
        _read_solution(decoder.task, query.reference)  # only checks it
        fills = [Fill(fill.position, fill.token) for fill in query.filled]
        check_fills(self.model, canvas, fills)
        order = None if query.order is None else self.order(query.order, decoder.task)
        return single_call(partial(step, self.model, canvas, fills, order, query.top_k, self.step_cache))

    def new_puzzle(self, seed: int) -> tuple[str, str]:
        """A puzzle and its solution, the same ones for the same seed."""
        if self.puzzle is None:
            raise InputError(f"{self.name}: expected a model that solves puzzles", "model")
        examples = self.puzzle.generate(1, seed)
        return self.puzzle.write(examples.puzzles[0]), self.puzzle.write(examples.solutions[0])


def single_call(call: Callable[[], Any]) -> QueuedCall[Callable[[], Any], Any]:
    """A call that runs alone."""
    return QueuedCall(lambda calls: [one() for one in calls], call)


def judge(task: Task, text: str, answer: str, tokens: Sequence[str | None], reference: str | None) -> Verdict:
    """Judge an answer. text: what was asked. answer, tokens: the finished text, and the tokens of its canvas."""
    if isinstance(task, PuzzleTask):
        solution = _read_solution(task, reference)
        numbers = task.numbers
        cells = np.array([[numbers.get(token or "", EMPTY) for token in tokens]])
        solved = bool(task.is_right(task.read(text)[None], cells, solution)[0])
        if solution is None:
            return Verdict(solved=solved)
        return Verdict(solved=solved, wrong=[] if solved else np.flatnonzero(cells[0] != solution[0]).tolist())
    if not reference or not reference.strip():
        return Verdict()
    return Verdict(bleu=round(sentence_bleu(answer, reference), 2))


def _read_solution(task: Task, line: str | None) -> np.ndarray | None:
    """(1, cells) of a puzzle's solution, if there is one; an `InputError` if no answer can equal it."""
    if not isinstance(task, PuzzleTask) or line is None or not line.strip():
        return None
    try:
        solution = task.read(line)[None]
    except InputError as error:
        raise InputError(f"reference: {error}") from None
    if (solution == EMPTY).any():
        raise InputError("reference: has empty cells")
    return solution


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

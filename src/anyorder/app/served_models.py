"""What may be requested of a model: to translate, to fill masks, or to solve puzzles.

It knows nothing about HTTP: a wrong request is an `InputError`. A request becomes calls for the queue, one per order.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from anyorder.app.batching import QueuedCall
from anyorder.app.choices import Kind
from anyorder.app.limits import MAX_CHARACTERS, MAX_PASSES
from anyorder.decoding.config import AUTO, DecodingConfig
from anyorder.decoding.lengths import DEFAULT_LENGTH
from anyorder.decoding.revision import make_revision
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.sentence import Sentence
from anyorder.decoding.stepper import StepCache
from anyorder.decoding.trajectory import INFILL, Trajectory
from anyorder.errors import InputError, unknown
from anyorder.evaluation.evaluate_puzzles import masked_text, solve_puzzles
from anyorder.filler import Filler
from anyorder.models.base import Canvas, SavedModel
from anyorder.models.translation import TranslationModel
from anyorder.orders import ORDERS, Order, make_order
from anyorder.orders.storage import DEFAULT, order_names
from anyorder.tasks import PuzzleTask
from anyorder.tasks.base import EMPTY
from anyorder.tasks.canvases import CellTokens
from anyorder.tasks.puzzles import PuzzleSet
from anyorder.translator import Translator, sentence_key

LEARNED = "learned"


@dataclass(frozen=True)
class Settings:
    """How a text is decoded, by the names in a request."""

    orders: Sequence[str]
    schedule: str | int = AUTO
    revision: str = "none"


class ServedModel(ABC):
    """One model with its orders, bound and ready to decode."""

    kind: ClassVar[Kind]
    """What it does."""
    model: SavedModel

    def __init__(self, name: str, model: SavedModel, tasks: Sequence[str]):
        """tasks: the directions that the model translates, or `infill`."""
        self.name = name
        self.model = model
        self.orders = _bind_orders(model, tasks)
        """By task and name, the model's learned orders first."""
        self.step_cache = StepCache()
        """Only for the thread that runs the model."""

    @property
    def learned_orders(self) -> list[str]:
        names = (name for orders in self.orders.values() for name in orders if name.startswith(LEARNED))
        return list(dict.fromkeys(names))

    def order(self, name: str, task: str) -> Order:
        """An order by name, with or without options.

        `learned` takes no option: it would be a path on this machine's disk.
        """
        served = self.orders[task]
        if name in served:
            return served[name]
        base, _, options = name.partition(":")
        if base == LEARNED or base not in ORDERS or not options:
            raise unknown("order", name, served)
        return make_order(name).bind(self.model, task)

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
        return make_revision(revision).usual_schedule

    def configs(self, settings: Settings, task: str, batch_tokens: int, length: str) -> list[DecodingConfig]:
        """One for each order."""
        config = DecodingConfig(
            schedule=self.schedule(settings.schedule),
            revision=self.revision(settings.revision),
            length=length,
            batch_tokens=batch_tokens,
        )
        return [replace(config, order=self.order(name, task)) for name in settings.orders]

    @abstractmethod
    def canvas(self, text: str, direction: str | None, length: int | None) -> Canvas:
        """What to fill by hand; an `InputError` if the text does not fit. Only translation uses the other two."""


class ServedTranslator(ServedModel):
    """Translates sentences."""

    kind = "translation"
    model: TranslationModel

    def __init__(self, name: str, translator: Translator):
        model = translator.model
        super().__init__(name, model, model.config.directions)
        self.translator = translator
        lengths = [DEFAULT_LENGTH, "predicted"] if model.config.predicts_length else []
        self.lengths = lengths + ["table:4"] * (model.length_table is not None)
        """Rules that find a target's length, the default first."""

    def length(self, requested: str | int) -> str:
        """The name of a length rule, as `DecodingConfig` takes it."""
        if isinstance(requested, str):
            if requested not in self.lengths:
                raise unknown("length", requested, [*self.lengths, "a number"])
            return requested
        longest = self.model.max_length
        if not 1 <= requested <= longest:
            raise InputError(f"{requested}: expected a number from 1 to {longest}", "length")
        return f"fixed:{requested}"

    def encode(self, text: str, direction: str) -> np.ndarray:
        """The ids of a sentence; an `InputError` if it is empty or too long."""
        if direction not in self.orders:
            raise unknown("direction", direction, self.orders)
        if len(text) > MAX_CHARACTERS:
            raise InputError(f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are translated")
        [ids] = self.model.encode([text], self.model.languages(direction)[0])
        if not len(ids):
            raise InputError("the text is empty")
        if len(ids) > self.model.max_length:
            raise InputError(f"the text has {len(ids)} subwords; the model has room for {self.model.max_length}")
        return ids

    def canvas(self, text: str, direction: str | None, length: int | None) -> Canvas:
        if direction is None or length is None:
            raise InputError("is missing: this model translates", "direction" if direction is None else "length")
        ids = self.encode(text, direction)
        self.length(length)
        return self.model.blank_canvas(ids, length, direction, sentence_key(DecodingConfig().seed, ids, length))

    def calls(
        self, text: str, direction: str, settings: Settings, length: str | int, batch_tokens: int
    ) -> list[QueuedCall[Sentence, Trajectory]]:
        """Translations in several orders.

        Sentences with the same direction and settings are decoded in one batch; none depends on the others.
        """
        sentence = Sentence(text, self.encode(text, direction))
        configs = self.configs(settings, direction, batch_tokens, self.length(length))
        return [self._call(sentence, direction, config) for config in configs]

    def _call(self, sentence: Sentence, direction: str, config: DecodingConfig) -> QueuedCall[Sentence, Trajectory]:
        bound = config.bind(self.model, direction)
        is_fixed = bound.length.kind == "fixed"
        return QueuedCall(
            partial(self._translate, direction, config),
            sentence,
            batch_key=(self.name, direction, str(bound.signature)),
            cost=bound.length.count + 2 if is_fixed else bound.length.count * (len(sentence.ids) + 2),
        )

    def _translate(self, direction: str, config: DecodingConfig, sentences: Sequence[Sentence]) -> list[Trajectory]:
        return list(self.translator.decode(sentences, direction, config))


class ServedFiller(ServedModel):
    """Fills the masks of texts."""

    kind: ClassVar[Kind] = "infill"

    def __init__(self, name: str, filler: Filler):
        super().__init__(name, filler.model, [INFILL])
        self.filler = filler

    def canvas(self, text: str, direction: str | None = None, length: int | None = None) -> Canvas:
        for field, value in (("direction", direction), ("length", length)):
            if value is not None:
                raise InputError("is given, but this model does not translate", field)
        return self.filler.canvas(self._masked(text))

    def usual_schedule(self, revision: str = "none") -> str:
        schedule = self.filler.with_blocks(DecodingConfig(revision=revision)).schedule
        return super().usual_schedule(revision) if schedule == AUTO else str(schedule)

    def calls(self, text: str, settings: Settings, batch_tokens: int) -> list[QueuedCall[str, Trajectory]]:
        """The masks filled in several orders; texts with the same settings are filled in one batch."""
        cost = len(self.canvas(text).tokens)
        calls = []
        for requested in self.configs(settings, INFILL, batch_tokens, DEFAULT_LENGTH):
            config = self.filler.with_blocks(requested)  # the key must tell blocks from the schedule `one`
            key = self.name, str(config.bind(self.model, INFILL).signature)
            calls.append(QueuedCall(partial(self._fill, config), text, key, cost))
        return calls

    def _masked(self, text: str) -> str:
        """The text with a mask wherever something is to be filled in."""
        return text

    def _fill(self, config: DecodingConfig, texts: Sequence[str]) -> list[Trajectory]:
        return list(self.filler.stream(texts, config))


@dataclass(frozen=True)
class Verdict:
    """What is right and wrong about an answer."""

    solved: bool
    wrong: list[int] | None
    """The cells that differ from the solution, if the answer is wrong; None if the solution is not known."""


class ServedPuzzles(ServedFiller):
    """Solves puzzles: a text is a puzzle, with one character per cell."""

    kind = "puzzle"

    def __init__(self, name: str, filler: Filler, task: PuzzleTask):
        super().__init__(name, filler)
        self._cells = CellTokens(filler.model, task)  # fails if the model is for something else
        self.task = task

    def new_puzzle(self, seed: int) -> tuple[str, str]:
        """A puzzle and its solution, the same ones for the same seed."""
        examples = self.task.generate(1, seed)
        return self.task.write(examples.puzzles[0]), self.task.write(examples.solutions[0])

    def read(self, line: str, field: str = "text") -> np.ndarray:
        """(1, cells) of a puzzle or a solution."""
        try:
            return self.task.read(line)[None]
        except InputError as error:
            raise InputError(f"{field}: {error}") from None

    def read_solution(self, line: str | None) -> np.ndarray | None:
        """(1, cells) of a solution, if there is one."""
        if line is None or not line.strip():
            return None
        solution = self.read(line, "reference")
        if (solution == EMPTY).any():
            raise InputError("reference: has empty cells")
        return solution

    def answer(self, ids: np.ndarray) -> np.ndarray:
        """(1, cells) of a filled canvas. ids: (cells,)"""
        return self._cells.answers(ids[None])

    def judge(self, text: str, answer: np.ndarray, solution: np.ndarray | None) -> Verdict:
        """Whether an answer, (1, cells), is right."""
        solved = bool(self.task.is_right(self.read(text), answer, solution)[0])
        wrong = np.flatnonzero(answer[0] != solution[0]).tolist() if solution is not None and not solved else []
        return Verdict(solved, None if solution is None else wrong)

    def _masked(self, text: str) -> str:
        puzzle = self.read(text)
        if not (puzzle == EMPTY).any():
            raise InputError("text: has no empty cell")
        return masked_text(self.task, puzzle[0])

    def _fill(self, config: DecodingConfig, texts: Sequence[str]) -> list[Trajectory]:
        puzzles = np.concatenate([self.read(text) for text in texts])
        return solve_puzzles(self.filler, self.task, PuzzleSet(puzzles, None, [], []), config)


def _bind_orders(model: SavedModel, tasks: Sequence[str]) -> dict[str, dict[str, Order]]:
    """Orders by task and name. A learned order that works for no task is damaged, and its error says how."""
    bound: dict[str, dict[str, Order]] = {task: {} for task in tasks}
    for name in _learned_names(model):
        errors = []
        for task in tasks:
            try:
                bound[task][name] = make_order(name).bind(model, task)
            except InputError as error:
                errors.append(error)
        if len(errors) == len(tasks):
            raise errors[0]
    for task in tasks:
        for name in ORDERS:
            if name != LEARNED:
                bound[task][name] = make_order(name).bind(model, task)
    return bound


def _learned_names(model: SavedModel) -> list[str]:
    """The names that users write, the default order first."""
    names = order_names(model.path) if model.path else []
    return [LEARNED] * (DEFAULT in names) + [f"{LEARNED}:{name}" for name in names if name != DEFAULT]

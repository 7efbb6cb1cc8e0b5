"""What a model is asked to do. A task turns lines into canvases and filled canvases into trajectories.

`Decoder` and everything above it know only this interface. To add a task that has one right answer per line, subclass
`PuzzleTask` (`tasks/puzzles.py`); for anything else, subclass `Task` and register it::

    @anyorder.register_task("my-task")
    class MyTask(anyorder.Task): ...
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from anyorder.data.line_problems import Problem, join_notes
from anyorder.decoding.config import BoundDecoding, DecodingConfig
from anyorder.decoding.state import Hypothesis
from anyorder.decoding.trajectory import Trajectory, to_writes
from anyorder.errors import InputError
from anyorder.models.base import Canvas
from anyorder.registry import register


class Example(Protocol):
    """One line, read for a model."""

    @property
    def text(self) -> str:
        """The line as trajectories record it."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why it is not used as it is."""


class Task(ABC):
    """What a model is asked to do.

    The methods take the model, so that one task serves several models.
    """

    name: str = ""
    """As users write it: a direction such as `de-en`, `infill`, `generate`, or the name it was registered under."""
    unit: ClassVar[str] = "text"
    """What is counted, in the singular."""

    @property
    def mode(self) -> str:
        """What the model and learned orders call the task. All that fill masks are `infill` to them."""
        return self.name

    def check(self, model: Any) -> None:
        """Raise an `InputError` if the model cannot do this."""
        return

    def model_for(self, model: Any) -> Any:
        """The model as the engine is to use it, such as with end tokens allowed."""
        return model

    def complete(self, config: DecodingConfig, model: Any) -> DecodingConfig:
        """The config with what the task or the model determines, such as the length rule."""
        return config

    def bind(self, config: DecodingConfig, model: Any) -> BoundDecoding:
        """The config with what the task determines, and names replaced by objects."""
        return self.complete(config, model).bind(self.model_for(model), self.mode)

    def end_check(self, model: Any) -> Callable[[Canvas, np.ndarray], bool] | None:
        """Says of the first tokens of a canvas whether what follows need not be filled; None if all is filled."""
        return None

    @abstractmethod
    def examples(self, model: Any, lines: Sequence[str], references: Sequence[str] | None = None) -> list[Any]:
        """Read lines of any content; what is wrong with a line is one of its `problems`.

        references: one per line, if there are any; a translation is then decoded with the length of its reference.
        """

    @abstractmethod
    def canvases(self, model: Any, examples: Sequence[Any], decoding: BoundDecoding) -> list[list[list[Canvas]]]:
        """What to fill for each example: its parts, and for each part the canvases to try; the best one is kept.

        Several canvases differ in length. A part without canvases has nothing to fill.
        """

    @abstractmethod
    def trajectory(
        self, model: Any, example: Any, parts: Sequence[Hypothesis | None], decoding: BoundDecoding
    ) -> Trajectory:
        """The record of an example, from the hypotheses of its parts; None where there was nothing to fill."""

    def record(
        self,
        model: Any,
        example: Any,
        decoding: BoundDecoding,
        hypothesis: Hypothesis,
        filled: np.ndarray | slice = slice(None),
        **fields: Any,
    ) -> Trajectory:
        """A trajectory with all that follows from the hypothesis and the settings.

        filled: which positions were masked. fields: `text`, `tokens` and others, which may also replace what follows.
        """
        steps = hypothesis.steps[filled].tolist()
        common = {
            "source": example.text,
            "steps": steps,
            "logprobs": [round(float(value), 6) for value in hypothesis.logprobs[filled]],
            "order": decoding.order.name or decoding.order.identity,
            "length": len(steps),
            "signature": str(decoding.signature),
            "model": model.name,
            "task": self.name,
            "writes": to_writes(hypothesis.writes, model.to_tokens),
            "note": join_notes(example.problems),
            "forwards": hypothesis.forwards,
        }
        return Trajectory(**{**common, **fields})

    def canvas(self, model: Any, text: str, length: int | None = None, seed: int = 1) -> Canvas:
        """A canvas to fill by hand (`decoding.stepper`), which the explorer needs; an `InputError` if there is none.

        length: of the target, for tasks that have one.
        """
        raise InputError(f"{self.name}: cannot be filled by hand, so the explorer cannot show it")


NOTHING = Hypothesis(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
"""The hypothesis where there was nothing to fill."""


def canvas_key(seed: int, tokens: np.ndarray, length: int) -> int:
    """A number for a canvas: whatever batch or process it comes in, it gets the same random order.

    tokens: (N,) ids that identify it: those of the source, or else its own.
    """
    digest = hashlib.blake2b(tokens.astype("<i8").tobytes(), digest_size=8, key=f"{seed}/{length}".encode())
    return int.from_bytes(digest.digest(), "little", signed=True)


TASKS: dict[str, type[Task]] = {}
"""The registered tasks by name."""
Registered = TypeVar("Registered", bound=type[Task])


def register_task(name: str) -> Callable[[Registered], Registered]:
    """Decorator: register the task under this name."""
    return register("a task", name, TASKS)

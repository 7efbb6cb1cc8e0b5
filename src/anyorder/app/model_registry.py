"""The models that the explorer serves, and what may be requested of each. Nothing is read from disk after the start.

It knows nothing of HTTP: a wrong request is an `InputError`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from anyorder.app.limits import MAX_CHARACTERS
from anyorder.decoding.lengths import DEFAULT_LENGTH
from anyorder.decoding.stepper import StepCache
from anyorder.errors import InputError, unknown
from anyorder.models.translation import TranslationModel
from anyorder.orders import ORDERS, Order, make_order
from anyorder.orders.storage import DEFAULT, order_names
from anyorder.translator import Translator, load

LEARNED = "learned"
SCHEDULES = ["one", "2", "4", "8", "threshold:0.9", "threshold:0.5"]
"""What the page offers; others are possible."""


@dataclass(frozen=True)
class ServedModel:
    """One model with its orders, bound and ready to decode."""

    name: str
    translator: Translator
    orders: dict[str, dict[str, Order]]
    """By direction and name, the model's learned orders first."""
    lengths: list[str]
    """Rules that find a target's length, the default first."""
    step_cache: StepCache = field(default_factory=StepCache)
    """Only for the thread that runs the model."""

    @classmethod
    def from_translator(cls, name: str, translator: Translator) -> "ServedModel":
        model = translator.model
        lengths = [DEFAULT_LENGTH, "predicted"] if model.config.predicts_length else []
        return cls(name, translator, _bind_orders(model), lengths + ["table:4"] * (model.length_table is not None))

    @property
    def model(self) -> TranslationModel:
        return self.translator.model

    @property
    def learned_orders(self) -> list[str]:
        names = (name for orders in self.orders.values() for name in orders if name.startswith(LEARNED))
        return list(dict.fromkeys(names))

    def order(self, name: str, direction: str) -> Order:
        """An order by name, with options if wanted.

        `learned` takes none: its option would be a path on this machine's disk.
        """
        served = self.orders[direction]
        if name in served:
            return served[name]
        base, _, options = name.partition(":")
        if base == LEARNED or base not in ORDERS or not options:
            raise unknown("order", name, served)
        return make_order(name).bind(self.model, direction)

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

    def schedule(self, requested: str | int) -> str:
        """The name of a schedule, as `DecodingConfig` takes it; it must not fill more positions than the model has."""
        name, longest = str(requested).strip(), self.model.max_length
        if name.isdecimal() and int(name) > longest:
            raise InputError(f"{name}: expected at most {longest} positions a step", "schedule")
        return name

    def check_direction(self, direction: str) -> None:
        if direction not in self.orders:
            raise unknown("direction", direction, self.orders)

    def encode(self, text: str, direction: str) -> np.ndarray:
        """The ids of a sentence; an `InputError` if it is empty or too long."""
        if len(text) > MAX_CHARACTERS:
            raise InputError(f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are translated")
        [ids] = self.model.encode([text], self.model.languages(direction)[0])
        if not len(ids):
            raise InputError("the text is empty")
        if len(ids) > self.model.max_length:
            raise InputError(f"the text has {len(ids)} subwords; the model has room for {self.model.max_length}")
        return ids


class ModelRegistry:
    """Served models by name."""

    def __init__(self, names: Sequence[str], device: str = "auto"):
        self.models: dict[str, ServedModel] = {}
        for source in names:
            name = Path(source).resolve().name if Path(source).is_dir() else source  # the page must not learn the path
            if name in self.models:
                raise InputError(f"two models are called '{name}': rename the folder of one")
            self.models[name] = ServedModel.from_translator(name, load(source, device))
        if not self.models:
            raise InputError("no model is given")

    def __getitem__(self, name: str) -> ServedModel:
        if name not in self.models:
            raise unknown("model", name, self.models)
        return self.models[name]


def _bind_orders(model: TranslationModel) -> dict[str, dict[str, Order]]:
    """Orders by direction and name. A learned order that serves no direction is damaged, and its error says how."""
    directions = model.config.directions
    bound: dict[str, dict[str, Order]] = {direction: {} for direction in directions}
    for name in _learned_names(model):
        errors = []
        for direction in directions:
            try:
                bound[direction][name] = make_order(name).bind(model, direction)
            except InputError as error:
                errors.append(error)
        if len(errors) == len(directions):
            raise errors[0]
    for direction in directions:
        for name in ORDERS:
            if name != LEARNED:
                bound[direction][name] = make_order(name).bind(model, direction)
    return bound


def _learned_names(model: TranslationModel) -> list[str]:
    """The names that users write, the default order first."""
    names = order_names(model.path) if model.path else []
    return [LEARNED] * (DEFAULT in names) + [f"{LEARNED}:{name}" for name in names if name != DEFAULT]

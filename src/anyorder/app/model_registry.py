"""The models that the explorer offers, and what may be asked of each. Nothing is read from disk after the start."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from anyorder.app.middleware import CHARACTERS
from anyorder.decoding.stepper import Memory
from anyorder.errors import InputError, unknown
from anyorder.models.translation import TranslationModel
from anyorder.orders import REGISTRY, Order, make_order
from anyorder.orders.learned import DEFAULT, order_names
from anyorder.translator import Translator, direction_languages, load

LEARNED = "learned"


@dataclass(frozen=True)
class ServedModel:
    """One model."""

    name: str
    translator: Translator
    orders: dict[str, dict[str, Order]]
    """By direction and name, the model's own learned orders first."""
    lengths: list[str]
    """Ways to find a target's length, beside giving it."""
    memory: Memory = field(default_factory=Memory)
    """Only for the thread that works with the model."""

    @classmethod
    def of(cls, name: str, model: TranslationModel) -> "ServedModel":
        orders = _orders(model)
        lengths = ["predicted", "candidates:4"] if model.config.predicts_length else []
        return cls(name, Translator(model), orders, lengths + ["table:4"] * (model.length_table is not None))

    @property
    def model(self) -> TranslationModel:
        return self.translator.model

    @property
    def longest(self) -> int:
        """Subwords of a source or a target."""
        return self.model.config.transformer.max_positions - 2

    def order(self, name: str, direction: str) -> Order:
        """By name; options may follow, but not of `learned`: those would be places on this machine's disk."""
        offered = self.orders[direction]
        if name in offered:
            return offered[name]
        base, _, options = name.partition(":")
        if base == LEARNED or base not in REGISTRY or not options:
            raise unknown("order", name, offered)
        return make_order(name).bind(self.model, direction)

    def length(self, given: str | int) -> str:
        """As `make_length` reads it."""
        if isinstance(given, str):
            if given not in self.lengths:
                raise unknown("length", given, [*self.lengths, "a number"])
            return given
        if not 1 <= given <= self.longest:
            raise InputError(f"length {given}: expected a number from 1 to {self.longest}")
        return f"fixed:{given}"

    def check_direction(self, direction: str) -> None:
        if direction not in self.orders:
            raise unknown("direction", direction, self.orders)

    def encode(self, text: str, direction: str) -> np.ndarray:
        """The ids of a sentence that is neither empty nor too long."""
        if len(text) > CHARACTERS:
            raise InputError(f"the text has {len(text)} characters, at most {CHARACTERS} are translated")
        language = direction_languages(self.model, direction)[0]
        ids = np.array(self.model.vocabulary.encode(self.translator.words([text], language))[0], np.int64)
        if not len(ids):
            raise InputError("the text is empty")
        if len(ids) > self.longest:
            raise InputError(f"the text has {len(ids)} subwords, the model has room for {self.longest}")
        return ids


class ModelRegistry:
    """Models by name."""

    def __init__(self, names: Sequence[str], device: str = "auto"):
        self.offers: dict[str, ServedModel] = {}
        for given in names:
            name = Path(given).resolve().name if Path(given).is_dir() else given  # a page need not know where it lies
            if name in self.offers:
                raise InputError(f"two models are called '{name}': rename the folder of one")
            self.offers[name] = ServedModel.of(name, load(given, device).model)
        if not self.offers:
            raise InputError("no model given")

    def __getitem__(self, name: str) -> ServedModel:
        if name not in self.offers:
            raise unknown("model", name, self.offers)
        return self.offers[name]


def _orders(model: TranslationModel) -> dict[str, dict[str, Order]]:
    """By direction. A learned order that serves no direction is damaged, and its error says how."""
    directions = model.config.directions
    found: dict[str, dict[str, Order]] = {direction: {} for direction in directions}
    for name in _learned_names(model):
        errors = []
        for direction in directions:
            try:
                found[direction][name] = make_order(name).bind(model, direction)
            except InputError as error:
                errors.append(error)
        if len(errors) == len(directions):
            raise errors[0]
    for direction in directions:
        for name in REGISTRY:
            if name != LEARNED:
                found[direction][name] = make_order(name).bind(model, direction)
    return found


def _learned_names(model: TranslationModel) -> list[str]:
    """As users write them, the default first."""
    names = order_names(model.path) if model.path else []
    return [LEARNED] * (DEFAULT in names) + [f"{LEARNED}:{name}" for name in names if name != DEFAULT]

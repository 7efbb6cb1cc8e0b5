"""The models that the explorer serves, by name. Nothing is read from disk after startup."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from anyorder.app.served_models import ServedFiller, ServedModel, ServedPuzzles, ServedTranslator
from anyorder.errors import InputError, unknown
from anyorder.filler import load
from anyorder.models.pretrained import PREFIX
from anyorder.tasks import make_task
from anyorder.tasks.encoder import task_name
from anyorder.translator import Translator

Kind = TypeVar("Kind", bound=ServedModel)
DOES = {"translation": "translates", "infill": "fills masks", "puzzle": "solves puzzles"}
"""What a model does, by kind."""


class ModelRegistry:
    """Served models by name."""

    def __init__(self, names: Sequence[str], device: str = "auto"):
        self.models: dict[str, ServedModel] = {}
        for source in names:
            name = _public_name(source)
            if name in self.models:
                raise InputError(f"two models are called '{name}': rename the folder of one")
            self.models[name] = _load(name, source, device)
        if not self.models:
            raise InputError("no model is given")

    def __getitem__(self, name: str) -> ServedModel:
        if name not in self.models:
            raise unknown("model", name, self.models)
        return self.models[name]

    def find(self, name: str, kind: type[Kind]) -> Kind:
        """A model of that kind and no other."""
        served = self[name]
        if type(served) is not kind:
            raise InputError(f"{name}: expected a model that {DOES[kind.kind]}; it {DOES[served.kind]}", "model")
        return served


def _public_name(source: str) -> str:
    """What users call a model: the page must not learn its path."""
    folder = Path(source.removeprefix(PREFIX))
    return folder.resolve().name if folder.is_dir() else source


def _load(name: str, source: str, device: str) -> ServedModel:
    loaded = load(source, device)
    if isinstance(loaded, Translator):
        return ServedTranslator(name, loaded)
    task = task_name(loaded.model.path) if loaded.model.path else ""
    return ServedPuzzles(name, loaded, make_task(task)) if task else ServedFiller(name, loaded)

"""anyorder learns, decodes and analyzes the order in which an undirected (masked) sequence model generates its tokens.

>>> import anyorder
>>> decoder = anyorder.load("de-en")                                               # doctest: +SKIP
>>> decoder.translate("Guten Morgen!", direction="de-en", order="margin")          # doctest: +SKIP
"""

TYPE_CHECKING = False  # typing's own, without the time to import it
if TYPE_CHECKING:  # `as` says that a name is exported
    from typing import Any

    from anyorder.analysis.analyze import analyze as analyze
    from anyorder.decoder import Decoder as Decoder
    from anyorder.decoder import load as load
    from anyorder.decoding.config import DecodingConfig as DecodingConfig
    from anyorder.decoding.revision import Revision as Revision
    from anyorder.decoding.revision import register_revision as register_revision
    from anyorder.decoding.schedules import AdaptiveSchedule as AdaptiveSchedule
    from anyorder.decoding.schedules import FixedSchedule as FixedSchedule
    from anyorder.decoding.schedules import register_schedule as register_schedule
    from anyorder.decoding.signature import Signature as Signature
    from anyorder.decoding.step_maps import read_step_maps as read_step_maps
    from anyorder.decoding.step_maps import write_step_maps as write_step_maps
    from anyorder.decoding.stepper import Step as Step
    from anyorder.decoding.trajectory import Trajectory as Trajectory
    from anyorder.decoding.trajectory import read_systems as read_systems
    from anyorder.decoding.trajectory import read_trajectories as read_trajectories
    from anyorder.decoding.trajectory import to_dataframe as to_dataframe
    from anyorder.decoding.trajectory import write_trajectories as write_trajectories
    from anyorder.errors import InputError as InputError
    from anyorder.evaluation.evaluate import evaluate as evaluate
    from anyorder.evaluation.evaluate_orders import evaluate_orders as evaluate_orders
    from anyorder.learning.learn_order import learn_order as learn_order
    from anyorder.learning.rewards import register_reward as register_reward
    from anyorder.models.base import Model as Model
    from anyorder.models.hf.families import Family as Family
    from anyorder.models.hf.families import register_family as register_family
    from anyorder.models.native.translation_model import TranslationModel as TranslationModel
    from anyorder.orders.base import Order as Order
    from anyorder.orders.base import State as State
    from anyorder.orders.base import register_order as register_order
    from anyorder.orders.export import export_order as export_order
    from anyorder.plugins import load_plugin as load_plugin
    from anyorder.report.plots import plot_heat_maps as plot_heat_maps
    from anyorder.tasks.base import Task as Task
    from anyorder.tasks.base import register_task as register_task
    from anyorder.tasks.puzzles import PuzzleTask as PuzzleTask
    from anyorder.training.train import train_task as train_task

__version__ = "0.2.0"

_PUBLIC = {
    "analysis.analyze": ["analyze"],
    "decoder": ["Decoder", "load"],
    "decoding.config": ["DecodingConfig"],
    "decoding.revision": ["Revision", "register_revision"],
    "decoding.schedules": ["AdaptiveSchedule", "FixedSchedule", "register_schedule"],
    "decoding.signature": ["Signature"],
    "decoding.step_maps": ["read_step_maps", "write_step_maps"],
    "decoding.stepper": ["Step"],
    "decoding.trajectory": ["Trajectory", "read_systems", "read_trajectories", "to_dataframe", "write_trajectories"],
    "errors": ["InputError"],
    "evaluation.evaluate": ["evaluate"],
    "evaluation.evaluate_orders": ["evaluate_orders"],
    "learning.learn_order": ["learn_order"],
    "learning.rewards": ["register_reward"],
    "models.base": ["Model"],
    "models.hf.families": ["Family", "register_family"],
    "models.native.translation_model": ["TranslationModel"],
    "orders.base": ["Order", "State", "register_order"],
    "orders.export": ["export_order"],
    "plugins": ["load_plugin"],
    "report.plots": ["plot_heat_maps"],
    "tasks.base": ["Task", "register_task"],
    "tasks.puzzles": ["PuzzleTask"],
    "training.train": ["train_task"],
}
"""The public names of each module."""
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> "Any":
    """Import public names on first use: importing the package does not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'anyorder' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"anyorder.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Public names, for tab completion."""
    return __all__

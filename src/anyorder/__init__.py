"""anyorder learns, decodes and analyzes the order in which an undirected (masked) sequence model generates its tokens.

>>> import anyorder
>>> decoder = anyorder.load("de-en")                                               # doctest: +SKIP
>>> decoder.translate("Guten Morgen!", direction="de-en", order="margin")          # doctest: +SKIP
"""

TYPE_CHECKING = False  # typing's own, without the time to import it
if TYPE_CHECKING:
    from typing import Any

    from anyorder.analysis.analyze import analyze
    from anyorder.decoder import Decoder, load
    from anyorder.decoding.callbacks import Step
    from anyorder.decoding.config import DecodingConfig
    from anyorder.decoding.revision import Revision, register_revision
    from anyorder.decoding.schedules import AdaptiveSchedule, FixedSchedule, register_schedule
    from anyorder.decoding.signature import Signature
    from anyorder.decoding.trajectory import (
        Trajectory,
        read_systems,
        read_trajectories,
        to_dataframe,
        write_trajectories,
    )
    from anyorder.errors import InputError
    from anyorder.evaluation.evaluate import evaluate
    from anyorder.evaluation.evaluate_orders import evaluate_orders
    from anyorder.learning.learn_order import learn_order
    from anyorder.learning.rewards import register_reward
    from anyorder.models.base import Model
    from anyorder.models.hf.families import Family, register_family
    from anyorder.models.native.translation_model import TranslationModel
    from anyorder.orders.base import Order, State, register_order
    from anyorder.plugins import load_plugin
    from anyorder.report.plots import plot_heat_maps
    from anyorder.tasks.base import Task, register_task
    from anyorder.tasks.puzzles import PuzzleTask
    from anyorder.training.train import train_task

__version__ = "0.2.0"

_MODULES = {
    "AdaptiveSchedule": "decoding.schedules.base",
    "Decoder": "decoder",
    "DecodingConfig": "decoding.config",
    "Family": "models.hf.families",
    "FixedSchedule": "decoding.schedules.base",
    "InputError": "errors",
    "Model": "models.base",
    "Order": "orders.base",
    "PuzzleTask": "tasks.puzzles",
    "Revision": "decoding.revision",
    "Signature": "decoding.signature",
    "State": "orders.base",
    "Step": "decoding.callbacks",
    "Task": "tasks.base",
    "Trajectory": "decoding.trajectory",
    "TranslationModel": "models.native.translation_model",
    "analyze": "analysis.analyze",
    "evaluate": "evaluation.evaluate",
    "evaluate_orders": "evaluation.evaluate_orders",
    "learn_order": "learning.learn_order",
    "load": "decoder",
    "load_plugin": "plugins",
    "plot_heat_maps": "report.plots",
    "read_systems": "decoding.trajectory",
    "read_trajectories": "decoding.trajectory",
    "register_family": "models.hf.families",
    "register_order": "orders.base",
    "register_revision": "decoding.revision",
    "register_reward": "learning.rewards",
    "register_schedule": "decoding.schedules.base",
    "register_task": "tasks.base",
    "to_dataframe": "decoding.trajectory",
    "train_task": "training.train",
    "write_trajectories": "decoding.trajectory",
}
__all__ = [
    "AdaptiveSchedule",
    "Decoder",
    "DecodingConfig",
    "Family",
    "FixedSchedule",
    "InputError",
    "Model",
    "Order",
    "PuzzleTask",
    "Revision",
    "Signature",
    "State",
    "Step",
    "Task",
    "Trajectory",
    "TranslationModel",
    "__version__",
    "analyze",
    "evaluate",
    "evaluate_orders",
    "learn_order",
    "load",
    "load_plugin",
    "plot_heat_maps",
    "read_systems",
    "read_trajectories",
    "register_family",
    "register_order",
    "register_revision",
    "register_reward",
    "register_schedule",
    "register_task",
    "to_dataframe",
    "train_task",
    "write_trajectories",
]


def __getattr__(name: str) -> "Any":
    """Import public names on first use: importing the package does not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'anyorder' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"anyorder.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Public names, for tab completion."""
    return __all__

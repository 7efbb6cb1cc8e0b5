"""anyorder learns, decodes and analyzes the order in which an undirected (masked) sequence model generates its tokens.

>>> import anyorder
>>> translator = anyorder.load("de-en")                                            # doctest: +SKIP
>>> translator.translate("Guten Morgen!", direction="de-en", order="margin")       # doctest: +SKIP
"""

TYPE_CHECKING = False  # typing's own, without the time to import it
if TYPE_CHECKING:
    from typing import Any

    from anyorder.analysis.analyze import analyze
    from anyorder.decoding.callbacks import Step
    from anyorder.decoding.config import DecodingConfig
    from anyorder.decoding.revision import Revision, register_revision
    from anyorder.decoding.schedules import AdaptiveSchedule, FixedSchedule, register_schedule
    from anyorder.decoding.signature import Signature
    from anyorder.decoding.trajectory import Trajectory, read_systems, read_trajectories, write_trajectories
    from anyorder.errors import InputError
    from anyorder.evaluation.evaluate import evaluate
    from anyorder.evaluation.evaluate_orders import evaluate_orders
    from anyorder.models.base import Model
    from anyorder.models.translation import TranslationModel
    from anyorder.orders.base import Order, State, register_order
    from anyorder.plugins import load_plugin
    from anyorder.report.plots import plot_heat_maps
    from anyorder.training.learn_order import learn_order
    from anyorder.training.rewards import register_reward
    from anyorder.translator import Translator, load

__version__ = "0.2.0"

_MODULES = {
    "AdaptiveSchedule": "decoding.schedules",
    "DecodingConfig": "decoding.config",
    "FixedSchedule": "decoding.schedules",
    "InputError": "errors",
    "Model": "models.base",
    "Order": "orders.base",
    "Revision": "decoding.revision",
    "Signature": "decoding.signature",
    "State": "orders.base",
    "Step": "decoding.callbacks",
    "Trajectory": "decoding.trajectory",
    "TranslationModel": "models.translation",
    "Translator": "translator",
    "analyze": "analysis.analyze",
    "evaluate": "evaluation.evaluate",
    "evaluate_orders": "evaluation.evaluate_orders",
    "learn_order": "training.learn_order",
    "load": "translator",
    "load_plugin": "plugins",
    "plot_heat_maps": "report.plots",
    "read_systems": "decoding.trajectory",
    "read_trajectories": "decoding.trajectory",
    "register_order": "orders.base",
    "register_revision": "decoding.revision",
    "register_reward": "training.rewards",
    "register_schedule": "decoding.schedules",
    "write_trajectories": "decoding.trajectory",
}
__all__ = [
    "AdaptiveSchedule",
    "DecodingConfig",
    "FixedSchedule",
    "InputError",
    "Model",
    "Order",
    "Revision",
    "Signature",
    "State",
    "Step",
    "Trajectory",
    "TranslationModel",
    "Translator",
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
    "register_order",
    "register_revision",
    "register_reward",
    "register_schedule",
    "write_trajectories",
]


def __getattr__(name: str) -> "Any":
    """Public names are imported when they are first used: importing the package does not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'anyorder' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"anyorder.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Public names, for tab completion."""
    return __all__

"""anyorder learns, decodes and analyses the order in which an undirected (masked) sequence model generates its tokens.

>>> import anyorder
>>> translator = anyorder.load("de-en")                                            # doctest: +SKIP
>>> translator.translate(["Guten Morgen!"], direction="de-en", order="margin")     # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyorder.decoding.trajectory import Trajectory
    from anyorder.models.translation import TranslationModel
    from anyorder.orders import Order
    from anyorder.translator import Translator, load

__version__ = "0.1.0"
__all__ = ["TranslationModel", "Order", "Trajectory", "Translator", "__version__", "load"]

_HOMES = {
    "TranslationModel": "anyorder.models.translation",
    "Order": "anyorder.orders",
    "Trajectory": "anyorder.decoding.trajectory",
    "Translator": "anyorder.translator",
    "load": "anyorder.translator",
}


def __getattr__(name: str) -> Any:
    """Public names arrive when they are first used: importing the package does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'anyorder' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)

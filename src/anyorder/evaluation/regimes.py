"""The systems of an evaluation that decodes: every order with every schedule and every revision, by name."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.revision import Revision
from anyorder.decoding.schedules import Schedule
from anyorder.errors import InputError
from anyorder.orders import Order


def name_regimes(
    config: DecodingConfig,
    orders: Sequence[str | Order],
    schedules: Sequence[str | int | Schedule] | None = None,
    revisions: Sequence[str | Revision] | None = None,
) -> dict[str, DecodingConfig]:
    """The config of each system by name: the order's, then the schedule's and the revision's if there are several.

    Args:
        config: Everything else, and the schedule and revision if none are given.
        orders: The orders to compare.
        schedules: The schedules to compare.
        revisions: The revisions to compare.
    """
    if not orders:
        raise InputError("is empty: name an order", "orders")
    schedules = [config.schedule] if schedules is None else schedules
    revisions = [config.revision] if revisions is None else revisions
    named: dict[str, DecodingConfig] = {}
    for order, schedule, revision in product(orders, schedules, revisions):
        parts = [order, *([schedule] if len(schedules) > 1 else []), *([revision] if len(revisions) > 1 else [])]
        name = " ".join(map(_name, parts))
        regime = replace(config, order=order, schedule=schedule, revision=revision)
        if named.setdefault(name, regime) != regime:
            raise InputError(f"two systems are called '{name}': give their orders or schedules different names")
    return named


def _name(part: str | int | Order | Schedule | Revision) -> str:
    return str(part) if isinstance(part, str | int) else part.name or type(part).__name__

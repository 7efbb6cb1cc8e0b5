"""Orders by name. A new one is a small class with `@register("its-name")` in one of these modules."""

from anyorder.orders import confidence, fixed, learned  # noqa: F401 - importing them registers their orders
from anyorder.orders.base import REGISTRY, Order, State, make_order, register, split_orders

__all__ = ["REGISTRY", "Order", "State", "make_order", "register", "split_orders"]

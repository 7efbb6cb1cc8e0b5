"""Orders by name. A new one is a small class or function with `@register_order("its-name")`."""

from anyorder.orders import heuristics, learned  # noqa: F401 - importing them registers their orders
from anyorder.orders.base import ORDERS, Order, State, make_order, register_order, split_orders

__all__ = ["ORDERS", "Order", "State", "make_order", "register_order", "split_orders"]

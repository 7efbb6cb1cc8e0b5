"""`anyorder orders`: the orders by name."""

from rich.table import Table

from anyorder.progress import Screen


def orders() -> None:
    """List every order, what it needs of the model, and what it does."""
    from anyorder.orders import REGISTRY

    table = Table(box=None)
    for name in ("order", "needs", "what is filled first"):
        table.add_column(name)
    for name, kind in sorted(REGISTRY.items()):
        first_line = (kind.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, kind.needs, first_line)  # type: ignore[attr-defined]
    Screen().print(table)

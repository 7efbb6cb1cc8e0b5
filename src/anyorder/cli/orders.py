"""`anyorder orders` lists orders, schedules and revisions; `anyorder export-order` writes a learned one for engines."""

from pathlib import Path

from rich.markup import escape
from rich.table import Table

from anyorder.progress import Screen
from anyorder.registry import summary


def orders() -> None:
    """List every order, schedule and revision with a short description, including those of plugins."""
    from anyorder.decoding.revision import REVISIONS
    from anyorder.decoding.schedules import SCHEDULES
    from anyorder.orders import ORDERS

    order_table = Table("order", "needs", "which position is filled first", box=None)
    for name, order in sorted(ORDERS.items()):
        order_table.add_row(escape(name), order.needs, escape(summary(order)))
    schedule_table = Table("schedule", "how many positions a step fills", box=None)
    schedule_table.add_row("one", "One position, as in the paper.")
    schedule_table.add_row("N", "N positions, such as 4.")
    revision_table = Table("revision", "what is masked again after a step", box=None)
    for table, registry in ((schedule_table, SCHEDULES), (revision_table, REVISIONS)):
        for name, entry in sorted(registry.items()):
            table.add_row(escape(name), escape(summary(entry)))
    Screen().print(order_table, "", schedule_table, "", revision_table)


def export_order(order: str, /, out: Path) -> None:
    """Write a learned order as one file of plain PyTorch.

    Its function scores(input_ids, masked, mask_id, logits, hidden) scores the masked
    positions of a text or a block, as an engine has them; examples/sglang_order.py calls it from SGLang.

    Args:
        order: A learned order: learned:FOLDER, or a bundled one such as learned:de-en/confidence.
        out: The Python file to write; its name ends in .py.
    """
    from anyorder.orders.export import export_order as write_order

    write_order(order, out)
    if out.is_file():
        print(f"wrote {out}")

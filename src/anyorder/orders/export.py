"""Write a learned order as one file of plain PyTorch (`exported.py`, with its constants filled in)."""

import base64
import re
from pathlib import Path

from anyorder.errors import InputError
from anyorder.files import atomic_file
from anyorder.orders import exported
from anyorder.orders.base import Order, make_order
from anyorder.orders.learned import LearnedOrder, UnboundLearnedOrder, find_order, load_order
from anyorder.orders.policy import FEATURES, SCALES

_WEIGHTS = (
    "read.weight", "read.bias", "read_features.weight", "read_features.bias", "read_speed",
    "out", "linear", "accept_out", "accept_linear",
)  # fmt: skip
"""What `exported.py` computes with."""


def export_order(order: str | Order, file: Path) -> None:
    """Write a learned order as one file of plain PyTorch.

    The file does not import anyorder. Its `scores(input_ids, masked, mask_id, logits, hidden)` gives the same scores as
    the order, in float32. If the order decides how many positions a step fills, `accepts` with the same arguments and a
    speed says which.

    Args:
        order: `learned:PATH` with the path of its folder, a bundled `learned:MODEL/NAME`, or an order of a decoder.
        file: The Python file to write.
    """
    if file.suffix != ".py":
        raise InputError(f"{file}: is to be a Python file, so its name must end in .py", "out")
    order = make_order(order)
    if isinstance(order, UnboundLearnedOrder):
        network, record = load_order(find_order(order.place, None, ""))
        order = LearnedOrder(network, order.name, record.fingerprint)
    if not isinstance(order, LearnedOrder):
        raise InputError(f"{order.identity}: is not a learned order", "order")
    network = order.network
    tensors = {name: value.detach().float().cpu().contiguous() for name, value in network.state_dict().items()}
    if tensors.keys() - set(_WEIGHTS):
        raise InputError(f"{order.identity}: has attention, which cannot be exported", "order")
    constants = {
        "NAME": order.identity,
        "NEEDS": order.needs,
        "SCALES": [SCALES.get(name, 1.0) for name in FEATURES] if network.config.uses_features else [],
        "WEIGHTS": {
            name: (tuple(value.shape), base64.b64encode(value.numpy().astype("<f4").tobytes()).decode())
            for name, value in tensors.items()
        },
    }
    text = Path(exported.__file__).read_text(encoding="utf-8")
    for name, constant in constants.items():
        text, found = re.subn(rf"(?m)^({name}(?:: .*)?) = .*$", lambda it: f"{it[1]} = {constant!r}", text)  # noqa: B023
        assert found == 1, name
    with atomic_file(file) as stream:
        stream.write(text)

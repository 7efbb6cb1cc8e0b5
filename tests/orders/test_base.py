"""What an order declares and what it reads."""

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyorder.decoding.engine import decode
from anyorder.decoding.schedules import make_schedule
from anyorder.errors import InputError
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders import State, make_order
from anyorder.orders.base import Needs, function_order
from tests.orders.test_learned import canvases

BOTH = 'needs="hidden" or needs="logits"'


@pytest.mark.parametrize(
    ("function", "needs", "message"),
    [
        (lambda state: state.spread(state.logits.max(-1).values), "nothing", 'state.logits, which is only computed if it declares needs="logits"'),
        (lambda state: state.spread(torch.log_softmax(state.logits, -1)[:, 0]), "hidden", "state.logits"),
        (lambda state: state.spread(state.hidden[:, 0]), "logits", 'state.hidden, which is only computed if it declares needs="hidden"'),
        (lambda state: -state.opening[:, :1] + state.positions, "both", "state.opening, which is only computed if it declares needs_opening=True"),
        (lambda state: state.tokens * 1.0, "nothing", f"state.tokens, which is only computed if it declares {BOTH}"),
        (lambda state: state.spread(state.lengths), "nothing", f"state.where, which is only computed if it declares {BOTH}"),
    ],
)  # fmt: skip
def test_what_is_read_but_not_declared_is_named(
    function: Callable[[State], Tensor], needs: Needs, message: str, model: TranslationModel
) -> None:
    order = function_order(function, needs)()
    order.name = "mine"
    with pytest.raises(InputError, match="^order 'mine': reads state") as raised:
        decode(model, canvases(model), order, make_schedule("2"))
    assert message in str(raised.value)


def test_other_errors_stay_what_they_are(model: TranslationModel) -> None:
    with pytest.raises(TypeError, match="real number"):
        decode(
            model,
            canvases(model),
            function_order(lambda state: state.positions * float(None), "nothing")(),
            make_schedule("one"),
        )  # type: ignore[arg-type]
    careful = function_order(
        lambda state: (state.positions + (state.logits is None)).expand(state.masked.shape), "nothing"
    )
    decode(model, canvases(model), careful(), make_schedule("one"))


@pytest.mark.parametrize("name", ["left-to-right", "uniform", "outer-in:stride=2", "margin"])
def test_orders_can_be_sent_to_other_processes(name: str) -> None:
    assert pickle.loads(pickle.dumps(make_order(name))).name == name

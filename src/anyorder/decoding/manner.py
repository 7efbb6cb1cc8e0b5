"""How to decode: order, budget, length and seed, made from the names that users write."""

from dataclasses import dataclass, replace

from anyorder import __version__
from anyorder.decoding.budget import Budget, make_budget
from anyorder.decoding.lengths import LengthChoice, make_length
from anyorder.errors import check_number
from anyorder.orders import Order, make_order


@dataclass(frozen=True)
class Manner:
    """Everything that decides a trajectory besides the model and the sentence."""

    order: Order
    budget: Budget
    length: LengthChoice
    seed: int = 1
    """For orders that draw lots."""
    batch_tokens: int | None = None
    """Target tokens under way together; results do not depend on it."""

    @classmethod
    def of(
        cls,
        order: str | Order,
        budget: str | int = "one",
        length: str = "predicted",
        seed: int = 1,
        batch_tokens: int | None = None,
    ) -> "Manner":
        """From names; an `InputError` says what is wrong with one."""
        check_number("--seed", seed, least=0, most=(1 << 32) - 1)
        check_number("--batch-tokens", batch_tokens, least=1)
        made = order if isinstance(order, Order) else make_order(order)
        return cls(made, make_budget(budget), make_length(length), seed, batch_tokens)

    def with_order(self, order: str | Order) -> "Manner":
        return replace(self, order=order if isinstance(order, Order) else make_order(order))

    @property
    def signature(self) -> str:
        """One string that travels with every score and picture."""
        return signature(self.order.identity, self.budget.name, self.length.name, self.seed)


def signature(order: str, budget: str, length: str, seed: int) -> str:
    return f"order:{order}|budget:{budget}|beam:1|length:{length}|seed:{seed}|version:anyorder.{__version__}"

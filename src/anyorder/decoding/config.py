"""How to decode: order, budget, length and seed, made from the names that users write."""

from dataclasses import dataclass, replace

from anyorder import __version__
from anyorder.decoding.lengths import LengthChoice, make_length
from anyorder.decoding.schedules import Schedule, make_schedule
from anyorder.errors import check_number
from anyorder.orders import Order, make_order


@dataclass(frozen=True)
class DecodingConfig:
    """Everything that decides a trajectory besides the model and the sentence."""

    order: Order
    budget: Schedule
    length: LengthChoice
    seed: int = 1
    """For orders that draw hash_uniform."""
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
    ) -> "DecodingConfig":
        """From names; an `InputError` says what is wrong with one."""
        check_number("--seed", seed, at_least=0, at_most=(1 << 32) - 1)
        check_number("--batch-tokens", batch_tokens, at_least=1)
        made = order if isinstance(order, Order) else make_order(order)
        return cls(made, make_schedule(budget), make_length(length), seed, batch_tokens)

    def with_order(self, order: str | Order) -> "DecodingConfig":
        return replace(self, order=order if isinstance(order, Order) else make_order(order))

    @property
    def signature(self) -> str:
        """One string that travels with every score and picture."""
        return signature(self.order.identity, self.budget.name, self.length.name, self.seed)


def signature(order: str, budget: str, length: str, seed: int) -> str:
    return f"order:{order}|budget:{budget}|beam:1|length:{length}|seed:{seed}|version:anyorder.{__version__}"

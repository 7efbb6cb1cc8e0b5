"""How to decode: order, schedule, revision, length and seed, by the names that users write."""

from dataclasses import dataclass

from anyorder import __version__
from anyorder.decoding.lengths import DEFAULT_LENGTH, LengthRule, make_length
from anyorder.decoding.revision import Revision, make_revision
from anyorder.decoding.schedules import Schedule, make_schedule
from anyorder.decoding.signature import Signature
from anyorder.errors import check_number
from anyorder.models.translation import TranslationModel
from anyorder.orders import Order, make_order
from anyorder.orders.storage import default_order

AUTO = "auto"
MAX_SEED = (1 << 32) - 1


@dataclass(frozen=True)
class DecodingConfig:
    """Everything that decides a trajectory besides the model and the sentence. Names are checked when it is made."""

    order: str | Order = AUTO
    """Which position is filled next; auto is the model's learned order, or margin where it has none."""
    schedule: str | int | Schedule = "one"
    """How many positions a step fills: one, a number, or threshold:0.9."""
    revision: str | Revision = "none"
    """Which filled positions are masked again after a step."""
    length: str = DEFAULT_LENGTH
    """How the target's length is found: gold, predicted, candidates:N, table:N or fixed:N."""
    seed: int = 1
    """For random orders."""
    batch_tokens: int | None = None
    """Target tokens under way together; results do not depend on it."""

    def __post_init__(self) -> None:
        check_number("seed", self.seed, at_least=0, at_most=MAX_SEED)
        check_number("batch_tokens", self.batch_tokens, at_least=1, at_most=1 << 24)
        if self.order != AUTO:
            make_order(self.order)
        make_schedule(self.schedule)
        make_revision(self.revision)
        make_length(self.length)

    def bind(self, model: TranslationModel, direction: str) -> "BoundDecoding":
        """The same with a model's own orders found and loaded."""
        order = default_order(model, direction) if self.order == AUTO else self.order
        return BoundDecoding(
            make_order(order).bind(model, direction),
            make_schedule(self.schedule),
            make_revision(self.revision),
            make_length(self.length),
            self.seed,
            self.batch_tokens,
        )


@dataclass(frozen=True)
class BoundDecoding:
    """A `DecodingConfig` for one model and direction, names replaced by what they name."""

    order: Order
    schedule: Schedule
    revision: Revision
    length: LengthRule
    seed: int
    batch_tokens: int | None

    @property
    def signature(self) -> Signature:
        """What travels with every trajectory, score and picture."""
        schedule, revision = (part.name or type(part).__name__ for part in (self.schedule, self.revision))
        return decoding_signature(self.order.identity, schedule, revision, self.length.name, self.seed)


def decoding_signature(order: str, schedule: str, revision: str, length: str, seed: int) -> Signature:
    return Signature(
        order=order,
        schedule=schedule,
        revision=revision,
        beam=1,
        length=length,
        seed=seed,
        version=f"anyorder.{__version__}",
    )

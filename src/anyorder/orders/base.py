"""What an order is: a score for every position that may be filled now. Orders have names, which may contain options.

An order never fills anything and never counts steps; the schedule decides how many positions a step fills.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from anyorder.errors import InputError
from anyorder.models.base import AllowedTokens, SavedModel, log_probability, token_log_probability
from anyorder.models.native.attention import Segments
from anyorder.registry import Named, from_name, register, split_names

Needs = Literal["nothing", "hidden", "logits", "both"]
_EVERY_TOKEN = AllowedTokens(np.ones(1, bool), torch.device("cpu"))


@dataclass(frozen=True)
class State:
    """What an order may look at: B sequences, padded to T positions, some of them still masked."""

    masked: Tensor
    """(B, T) bool: true where a position may be filled."""
    lengths: Tensor
    """(B,) int64"""
    keys: Tensor
    """(B,) int64: identifies the sentence and the seed, for random orders."""
    step: int
    """From 1."""
    where: Tensor | None = None
    """(M,) int64: masked positions as indices into the flattened (B, T), aligned with `hidden` and `logits`. All of
    them, unless the order is local and the schedule cannot fill some of them now."""
    segments: Segments | None = None
    """How many of them are in each sequence."""
    tokens: Tensor | None = None
    """(B, T) int64: the current tokens, for orders that need `hidden` or `logits`."""
    hidden: Tensor | None = None
    """(M, hidden_size), for orders that need it."""
    logits: Tensor | None = None
    """(M, vocab_size) float32, for orders that need it."""
    sampled: Tensor | None = None
    """(M,) int64: the tokens to write there, if positions are ranked by sampled tokens; None if by the best ones."""
    opening: Tensor | None = None
    """(B, hidden_size): the hidden state of the delimiter before each canvas, for orders that need it."""
    mask_token: int = 0
    allowed: AllowedTokens = _EVERY_TOKEN
    """The tokens that may be filled in."""
    fillable: Tensor | None = None
    """(B, T) bool: true where a position was initially masked; None if every position was."""
    opening_size: Tensor | int = 0
    """(B, 1) int64: how many of the model's delimiters come before each canvas."""

    @property
    def positions(self) -> Tensor:
        """(T,) 0, 1, 2, ..."""
        return torch.arange(self.masked.shape[1], device=self.masked.device)

    @property
    def filled(self) -> Tensor:
        """(B, T) bool: filled, not given."""
        inside = self.positions < self.lengths[:, None] if self.fillable is None else self.fillable
        return inside & ~self.masked

    @property
    def token_logprobs(self) -> Tensor:
        """(M,) of the token that would be written at each masked position: the best one that may be filled in, or the
        sampled one if positions are ranked by these."""
        assert self.logits is not None
        if self.sampled is None:
            return log_probability(self.logits, self.allowed.restrict(self.logits).amax(-1))
        return token_log_probability(self.logits, self.sampled)

    def spread(self, values: Tensor) -> Tensor:
        """Put values at the masked positions, -inf everywhere else: (M,) to (B, T), in double precision if they are."""
        assert self.where is not None
        values = values if values.dtype == torch.float64 else values.float()
        scores = values.new_full(self.masked.shape, -torch.inf)
        scores.view(-1).index_copy_(0, self.where, values)
        return scores


class _StrictState(State):
    """A state whose fields raise an `InputError` when read if they were not computed."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if value is None and name in _DECLARATIONS:
            raise InputError(f"reads state.{name}, which is only computed if it declares {_DECLARATIONS[name]}")
        return value


_DECLARATIONS = {
    "logits": 'needs="logits" or needs="both"',
    "hidden": 'needs="hidden" or needs="both"',
    "opening": "needs_opening=True",
} | dict.fromkeys(("tokens", "where", "segments"), 'needs="hidden" or needs="logits"')


class Order(Named, ABC):
    """One way to decide what is filled next."""

    needs: Needs = "nothing"
    """Which model outputs it uses."""
    needs_opening: bool = False
    """Whether it looks at the hidden state of the delimiter before the canvas."""
    is_local: bool = False
    """Whether the score of a position depends on the model's prediction at that position alone. If so, the engine
    computes only positions that the schedule can fill now."""

    @classmethod
    def parse(cls, options: str) -> Self:
        """Build it from the options in its name, such as `stride=2`."""
        numbers: dict[str, float] = {}
        for part in filter(None, options.split(",")):
            key, _, value = part.partition("=")
            try:
                numbers[key.strip()] = float(value)
                if not math.isfinite(numbers[key.strip()]):
                    raise ValueError
            except ValueError:
                raise InputError(f"option '{part}' should look like name=number") from None
        try:
            return cls(**numbers)
        except TypeError:
            names = ", ".join(signature(cls).parameters)
            raise InputError(f"it has no such option ({f'only {names}' if names else 'nor any other'})") from None

    def bind(self, model: SavedModel, task: str) -> "Order":
        """Bind the order to this model; most are the same for all. task: such as the direction `de-en`."""
        return self

    @property
    def identity(self) -> str:
        """Its name in signatures, plus anything else that affects its behavior."""
        return self.name or type(self).__name__

    @abstractmethod
    def scores(self, state: State) -> Tensor:
        """(B, T) float: the highest is filled first, ties go left. Only masked positions count."""

    def scores_as_declared(self, state: State) -> Tensor:
        """`scores`. If they fail because the order reads what it did not declare, the `InputError` says so."""
        try:
            return self.scores(state)
        except (AssertionError, AttributeError, TypeError) as first:  # what a None raises
            try:
                self.scores(_StrictState(**vars(state)))
            except InputError as error:
                raise InputError(f"order '{self.identity}': {error}") from None
            except Exception:
                raise first from None
            raise


ORDERS: dict[str, type[Order]] = {}
"""Orders by name."""

OrderOrFunction = TypeVar("OrderOrFunction", bound=Callable[..., Any])


def register_order(name: str, needs: Needs = "nothing") -> Callable[[OrderOrFunction], OrderOrFunction]:
    """Decorator: register the order under this name, in Python and on the command line.

    Apply it to a subclass of `Order`, whose constructor arguments become the options in the name, or to a plain
    function from a `State` to scores (B, T).

    Args:
        name: What users write.
        needs: For functions, which model outputs they use; classes declare it themselves.
    """

    def add(order: OrderOrFunction) -> OrderOrFunction:
        is_class = isinstance(order, type) and issubclass(order, Order)
        register("an order", name, ORDERS)(order if is_class else function_order(order, needs))
        return order

    return add


def function_order(function: Callable[[State], Tensor], needs: Needs) -> type[Order]:
    """A plain function of the state as a class of orders."""

    class FunctionOrder(Order):
        def scores(self, state: State) -> Tensor:
            return function(state)

        def __reduce__(self) -> tuple[Callable[[str], Order], tuple[str]]:
            return make_order, (self.name,)  # pickle finds no class that was made in a function

    FunctionOrder.needs = needs
    FunctionOrder.__doc__, FunctionOrder.__module__ = function.__doc__, function.__module__
    return FunctionOrder


def make_order(name: str | Order) -> Order:
    """The order of that name: `margin`, `outer-in:stride=2`, `easy-first:logp=1,negent=0.9`, `learned:PATH`."""
    if isinstance(name, Order):
        return name
    return from_name("order", name, ORDERS)


def split_orders(names: str) -> list[str]:
    """A comma-separated list in which an order's own options may contain commas.

    >>> split_orders("left-to-right,easy-first:logp=1,negent=0.9,margin")
    ['left-to-right', 'easy-first:logp=1,negent=0.9', 'margin']
    """
    found = split_names(names, lambda part: "=" in part and ":" not in part)
    if not found:
        raise InputError("no order is given")
    return found

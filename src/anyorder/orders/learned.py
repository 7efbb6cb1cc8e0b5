"""Learned orders: a policy network scores the masked positions (paper, section 3.2).

`hidden` is the paper's policy: two layers on the model's last hidden state. `features` also sees the model's confidence
at each position and what is filled around it, and starts from a heuristic order. `confidence` sees only these features,
and `linear` is a weighted sum of them; both ignore words and language, so they work with any model.
"""

from torch import Tensor

from anyorder.errors import InputError
from anyorder.models.base import SavedModel
from anyorder.orders.base import Order, State, register_order
from anyorder.orders.policy import PolicyInputs, PolicyNetwork, StatsFunction, extract_features, prediction_stats
from anyorder.orders.storage import DEFAULT, find_order, load_order


class LearnedOrder(Order):
    """A policy network, ready to decode."""

    def __init__(
        self,
        network: PolicyNetwork,
        name: str = "learned",
        fingerprint: str = "",
        stats_function: StatsFunction = prediction_stats,
    ):
        self.network = network
        self.name = name
        self.needs = network.config.needs
        self.fingerprint = fingerprint
        """Of the weights, if they come from a file."""
        self._stats_function = stats_function

    @property
    def identity(self) -> str:
        return f"{self.name}@{self.fingerprint}" if self.fingerprint else self.name

    def inputs(self, state: State) -> PolicyInputs:
        """What the network sees of a state."""
        config = self.network.config
        features = extract_features(state, self._stats_function) if config.uses_features else None
        return PolicyInputs(state.hidden if config.uses_hidden else None, features)

    def scores(self, state: State) -> Tensor:
        assert state.segments is not None
        return state.spread(self.network(self.inputs(state), state.segments))


@register_order("learned")
class UnboundLearnedOrder(Order):
    """Ranked by a policy: the model's own, or `learned:NAME`, `learned:PATH`, or a bundled `learned:MODEL/NAME`."""

    needs = "both"  # until it is bound; after that, what its kind needs

    def __init__(self, place: str = DEFAULT):
        self.place = place
        self._bound: dict[str, tuple[SavedModel, LearnedOrder]] = {}

    @classmethod
    def parse(cls, options: str) -> "UnboundLearnedOrder":
        return cls(options.strip() or DEFAULT)

    def bind(self, model: SavedModel, task: str) -> LearnedOrder:
        known = self._bound.get(task)
        if known is None or known[0] is not model:
            network, record = load_order(find_order(self.place, model, task))
            if mismatch := record.mismatch(model, task):
                raise InputError(f"order '{self.name}': {mismatch}")
            known = model, LearnedOrder(network.to(model.device).eval(), self.name, record.fingerprint)
            self._bound[task] = known
        return known[1]

    def scores(self, state: State) -> Tensor:
        raise TypeError("a learned order belongs to a model: bind it first")

"""The objective of learning an order for translation, without a run folder."""

from collections.abc import Sequence

from anyorder.data.store import Data
from anyorder.learning.config import RLConfig
from anyorder.learning.data import TranslationData
from anyorder.learning.learn_order import OrderObjective
from anyorder.models.native.translation_model import TranslationModel
from anyorder.orders.policy import PolicyConfig


def translation_order_objective(
    data: Data,
    model: TranslationModel,
    directions: Sequence[str],
    policy: PolicyConfig,
    rl: RLConfig,
    seed: int,
    compile: bool = False,
) -> OrderObjective:
    """Sizes not set in `rl` are those for the model's device."""
    pairs = TranslationData(data, model, directions, rl.with_sizes(model.device))
    return OrderObjective(pairs, policy, pairs.rl, seed, compile)

"""Options together: whatever combination is accepted, no text depends on its batch, and the record is consistent."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyorder import Decoder, InputError
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyConfig, PolicyNetwork
from tests.decoding.test_ends import make_decoder

PROMPTS = [
    "w1 w2", "w3 [MASK] w2", "w4 w5 w6 w7", "", [5, 6, 7], {"prompt": "w11", "suffix": "w2 w3"},
    {"canvas": "w1 [MASK] w2 [MASK] [MASK] w3"},
]  # fmt: skip
SCHEDULES = ["one", "steps:3", "timesteps:4", "threshold:0.3", "factor:2", "klass:0.1,10", "learned:0.7"]


def learned() -> LearnedOrder:
    """An order that decides how many positions to fill, and fills several."""
    torch.manual_seed(3)
    network = PolicyNetwork(PolicyConfig("confidence", count="bernoulli"), 64).eval()
    with torch.no_grad():
        network.out.normal_(std=0.2)
        network.accept_linear.copy_(torch.tensor([1.0, 4.0, 0.5]))
    return LearnedOrder(network, "learned:some")


ORDERS = ["margin", "max-prob", "uniform", "left-to-right", "outer-in", learned()]
OPTIONS: dict[str, list[Any]] = {
    "order": ORDERS,
    "revision": ["none", "none", "none", "mask-predict:3", "gibbs", "refine:2", "p2:3"],
    "sampling": [{}, {}, {"temperature": 1.0}, {"temperature": 1.0, "rank_by": "sampled", "top_k": 3}],
    "guidance": [0, 0, 2.0],
    "cache": ["none", "none", "prefix", "dual", "dual:2"],
    "end": ["free", "last", "never"],
    "stop": [(), "w1"],
}
SCHEDULED = [f"{blocks}{inner}" for blocks in ("", "blocks:4+", "blocks:3@text+") for inner in SCHEDULES]


@pytest.fixture(scope="module")
def decoders() -> dict[bool, Decoder]:
    """Whether it is block-causal."""
    return {False: make_decoder(None), True: make_decoder(4)}


@settings(max_examples=25)
@given(
    is_block_causal=st.booleans(),
    schedule=st.sampled_from(SCHEDULED),
    options=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in OPTIONS.items()}),
    prompts=st.lists(st.sampled_from(range(len(PROMPTS))), min_size=2, max_size=4, unique=True),
)
def test_options_together(
    decoders: dict[bool, Decoder], is_block_causal: bool, schedule: str, options: dict[str, Any], prompts: list[int]
) -> None:
    order = ORDERS[-1] if "learned" in schedule else options["order"]
    given_options = {**options, **options["sampling"], "schedule": schedule, "order": order}
    del given_options["sampling"]

    def generate(*chosen: int, **more: Any) -> list[Any]:
        return decoders[is_block_causal].generate([PROMPTS[i] for i in chosen], 7, **given_options, **more)

    try:
        runs = generate(*prompts)
    except InputError:  # these do not go together
        return
    alone = [run for i in prompts for run in generate(i)]
    assert [run.to_json() for run in runs] == [run.to_json() for run in alone]
    passes = 2 if options["guidance"] else 1
    for run, whole in zip(runs, generate(*prompts, early_stop=False), strict=True):
        last = max([*run.steps, *(write.step for write in run.writes or ())])
        assert run.forwards == passes * last
        assert np.isfinite(run.logprobs).all()
        assert "[MASK]" not in run.tokens
        assert options["end"] != "never" or not {"[SEP]", "w4"} & set(run.tokens)
        assert (run.text, run.completion) == (whole.text, whole.completion)
        assert run.steps == whole.steps[: run.length]
        assert run.logprobs == whole.logprobs[: run.length]

"""An exported order scores like the order, and needs nothing but PyTorch."""

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyorder.cli import main
from anyorder.device import to_device
from anyorder.errors import InputError
from anyorder.models.base import AllowedTokens
from anyorder.models.native.attention import Segments
from anyorder.orders.base import State
from anyorder.orders.export import export_order
from anyorder.orders.learned import LearnedOrder
from anyorder.orders.policy import PolicyConfig, PolicyNetwork

KINDS = ("confidence", "linear", "features", "hidden")
COUNTING = tuple(f"{kind} that counts" for kind in KINDS[:3])
HIDDEN, WORDS, MASK = 64, 11, 3


def loaded(file: Path) -> Any:
    place = importlib.util.spec_from_file_location("exported_order", file)
    assert place
    assert place.loader
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[LearnedOrder, Any]]:
    """An order of random weights of each kind, and its exported file."""
    found = {}
    for seed, kind in enumerate(KINDS + COUNTING):
        torch.manual_seed(seed)
        count = "bernoulli" if kind in COUNTING else "one"
        network = PolicyNetwork(PolicyConfig(kind.split()[0], count=count), HIDDEN)  # type: ignore[arg-type]
        with torch.no_grad():
            for weight in network.parameters():
                weight.normal_(std=0.3)
        order = LearnedOrder(network.eval(), f"learned:{kind}")
        file = tmp_path_factory.mktemp("orders") / f"{kind}.py"
        export_order(order, file)
        found[kind] = order, loaded(file)
    return found


@settings(max_examples=40)
@given(
    kind=st.sampled_from(KINDS + COUNTING),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.3, 0.7, 1.0]),
    speed=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_scores_are_those_of_the_order(
    pairs: dict[str, tuple[LearnedOrder, Any]], kind: str, lengths: list[int], seed: int, share: float, speed: float
) -> None:
    order, module = pairs[kind]
    order = order.at_speed(speed)
    random = torch.Generator().manual_seed(seed)
    count, width = len(lengths), max(lengths)
    inside = torch.arange(width) < torch.tensor(lengths)[:, None]
    masked = (torch.rand(count, width, generator=random) < share) & inside
    masked[:, 0] |= ~masked.any(1)  # a finished text has no scores to compare
    input_ids = torch.randint(WORDS, (count, width), generator=random).masked_fill(masked, MASK)
    logits = 3 * torch.randn(count, width, WORDS, generator=random)
    hidden = torch.randn(count, width, HIDDEN, generator=random)
    allowed = np.arange(WORDS) != MASK
    allowed[seed % 3] = False
    at = masked.flatten().nonzero().squeeze(1)
    state = State(
        masked,
        torch.tensor(lengths),
        torch.zeros(count, dtype=torch.int64),
        1,
        where=at,
        segments=Segments.of(masked.sum(1).numpy()),
        tokens=input_ids,
        hidden=hidden.flatten(0, 1)[at],
        logits=logits.flatten(0, 1)[at],
        mask_token=MASK,
        allowed=AllowedTokens(allowed, torch.device("cpu")),
    )
    expected = order.scores(state)
    arguments = input_ids, masked, MASK, logits, hidden, torch.tensor(lengths), to_device(allowed, "cpu"), speed
    found = module.scores(*arguments)
    if kind in COUNTING:
        accept = order.look(state).accept
        assert accept is not None
        is_clear = state.spread(accept.abs()) > 1e-4
        assert (module.accepts(*arguments) & is_clear).tolist() == (order.accepts(state) & is_clear).tolist()
    else:
        with pytest.raises(AssertionError, match="does not decide how many"):
            module.accepts(*arguments)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
    # Scores that differ in more than rounding rank alike.
    for ours, theirs in zip(expected, found, strict=True):
        gaps = ours[:, None] - ours[None, :]
        assert not ((gaps > 1e-4) & (theirs[:, None] <= theirs[None, :])).any()


def test_the_file_needs_only_torch(pairs: dict[str, tuple[LearnedOrder, Any]]) -> None:
    for _, module in pairs.values():
        tree = ast.parse(Path(module.__file__).read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in imports for alias in node.names if isinstance(node, ast.Import)}
        names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
        assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) == {"torch"}


def test_the_verb_writes_a_bundled_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-order", "learned:de-en/confidence", "--out", str(tmp_path / "order.py")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'order.py'}\n"
    assert (loaded(tmp_path / "order.py").NAME, loaded(tmp_path / "order.py").NEEDS) == (
        "learned:de-en/confidence@6eedf1ab",
        "logits",
    )


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("margin", "margin: is not a learned order"),
        ("learned:nowhere", "nowhere: no learned order there"),
        ("learned:de-en/nowhere", "unknown learned order of de-en 'nowhere'"),
        ("learned", "no learned order"),
    ],
)
def test_what_cannot_be_exported(tmp_path: Path, order: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-order", order, "--out", str(tmp_path / "order.py")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_attention_cannot_be_exported(tmp_path: Path) -> None:
    order = LearnedOrder(PolicyNetwork(PolicyConfig("hidden", attention=1), HIDDEN))
    with pytest.raises(InputError, match="has attention, which cannot be exported"):
        export_order(order, tmp_path / "order.py")


def test_an_export_is_a_python_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"order\.json: is to be a Python file, so its name must end in \.py"):
        export_order("learned:de-en/confidence", tmp_path / "order.json")

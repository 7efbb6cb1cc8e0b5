"""Every order with every schedule and revision."""

from pathlib import Path

import pytest

from anyorder.cli import main
from anyorder.data.vocabulary import Vocabulary
from anyorder.decoder import Decoder
from anyorder.decoding.config import DecodingConfig
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.trajectory import Trajectory
from anyorder.errors import InputError
from anyorder.evaluation.evaluate_orders import evaluate_orders, name_regimes
from anyorder.orders import Order, make_order
from anyorder.orders.heuristics import OuterIn
from anyorder.report.tables import evaluation_table
from tests.conftest import tiny, toy_pairs


def unnamed(order: Order) -> Order:
    order.name = ""
    return order


def test_names() -> None:
    config = DecodingConfig(length="gold", seed=3)
    assert list(name_regimes(config, ["margin", make_order("entropy")])) == ["margin", "entropy"]
    named = name_regimes(config, ["margin"], ["one", make_schedule(4)], ["none", "gibbs"])
    assert list(named) == ["margin one none", "margin one gibbs", "margin 4 none", "margin 4 gibbs"]
    assert named["margin one gibbs"] == DecodingConfig("margin", "one", "gibbs", "gold", 3)
    assert list(name_regimes(config, ["margin"], ["2", "4"])) == ["margin 2", "margin 4"]
    assert list(name_regimes(config, ["margin", "margin"])) == ["margin"]
    with pytest.raises(InputError, match="two systems are called 'OuterIn': give their orders"):
        name_regimes(config, [unnamed(OuterIn()), unnamed(OuterIn())])
    with pytest.raises(InputError, match="orders is empty: name an order"):
        name_regimes(config, [])
    with pytest.raises(InputError, match="unknown schedule 'two'"):
        name_regimes(config, ["margin"], ["one", "two"])


def test_forward_passes_are_counted(vocabulary: Vocabulary) -> None:
    translator = Decoder(tiny(vocabulary), "de-en")
    sources, references = (list(side) for side in zip(*toy_pairs(4, seed=4), strict=True))
    table = evaluate_orders(
        translator, sources, references, ["margin"], schedules=["one", "3"], revisions=["none", "refine:1"],
        against=["margin one none"], samples=20,
    )  # fmt: skip
    lengths = [len(ids) for ids in translator.model.encode(references, "en")]
    one, three = sum(lengths) / 4, sum(-(-length // 3) for length in lengths) / 4
    assert [(row.schedule, row.revision) for row in table.rows] == [
        (schedule, revision) for schedule in ("one", "3") for revision in ("none", "refine:1")
    ]
    assert [row.forwards for row in table.rows] == pytest.approx([one, 2 * one, three, 2 * three])
    assert "forwards" in [column.heading for column in evaluation_table(table).groups["all"]]
    same = evaluate_orders(translator, sources, references, ["margin", "entropy"], samples=20)
    assert "forwards" not in [column.heading for column in evaluation_table(same).groups["all"]]


def test_trajectories_of_others_take_as_many_as_their_last_step() -> None:
    line = '{"tokens": ["a", "b", "c"], "steps": [1, 3, 1]}'
    trajectory = Trajectory.from_json(line)
    assert trajectory.forwards == 3
    assert "forwards" not in trajectory.to_json()
    more = Trajectory.from_json(line.replace("}", ', "forwards": 7}'))
    assert Trajectory.from_json(more.to_json()).forwards == 7
    with pytest.raises(InputError, match="forwards: expected a whole number"):
        Trajectory.from_json(line.replace("}", ', "forwards": 1.5}'))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schedule", "one,two"], "unknown schedule 'two'"),
        (["--revision", "none,mask-predict:0"], "revision 'mask-predict:0': number of iterations 0"),
        (["--schedule", ""], "--schedule is empty: name a schedule"),
        (["--revision", ""], "--revision is empty: name a revision"),
        (["--max-length", ""], "--max-length '': expected a whole number from 1, or none"),
        (["--top-p", "0.5"], "--top-p 0.5: needs sampled tokens"),
    ],
)
def test_wrong_regimes(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", "--model", "de-en", "--direction", "de-en", "--json", str(tmp_path / "out"), *options]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

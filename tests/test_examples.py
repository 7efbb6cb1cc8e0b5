"""Each example is one short file of the user's own, and does what it says with no line changed in the package."""

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import anyorder
from anyorder import plugins
from anyorder.cli import main
from anyorder.decoding.revision import REVISIONS
from anyorder.decoding.schedules import SCHEDULES
from anyorder.learning.rewards import REWARDS
from anyorder.models.hf.families import FAMILIES
from anyorder.orders import ORDERS
from anyorder.report.html import pack_grid
from anyorder.tasks import TASKS, make_puzzle
from tests.models import checkpoints

EXAMPLES = Path(__file__).parents[1] / "examples"
LONGEST = 110


@pytest.fixture(autouse=True)
def _registered_only_here() -> Iterator[None]:
    """What an example registers is gone after the test."""
    registries = (ORDERS, SCHEDULES, REVISIONS, REWARDS, TASKS, FAMILIES, plugins._LOADED)
    before = [dict(registry) for registry in registries]
    yield
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)


def commands(name: str) -> list[list[str]]:
    """The arguments of the commands in an example's docstring."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    return [shlex.split(line)[1:] for line in re.findall(r"^    (anyorder .*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_examples_are_short_and_say_how_to_run_them(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LONGEST
    assert commands(file.name) or "python examples/" in file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_task_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained, scored, an order learned, shown in the report: the commands of the docstring, with fewer steps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arithmetic.py").write_bytes((EXAMPLES / "arithmetic.py").read_bytes())
    *all_but_explore, explore = commands("arithmetic.py")
    small = {
        "train-task": ["--run.steps", "2", "--encoder.hidden-size", "16", "--encoder.num-layers", "1",
                       "--encoder.num-heads", "2", "--fill.puzzles", "50", "--fill.validation-puzzles", "4"],
        "learn-order": ["--run.steps", "1", "--rl.sentences", "4", "--rl.rollouts", "2",
                        "--rl.validation-sentences", "2", "--policy.kind", "confidence"],
        "evaluate": ["--orders", "left-to-right,right-to-left", "--limit", "20", "--samples", "20", "--json", "out.json"],
        "puzzles": ["--count", "20"],
    }  # fmt: skip
    for command in all_but_explore:
        minutes = [i for i, word in enumerate(command) if word == "--run.minutes"]
        kept = [word for i, word in enumerate(command) if i not in minutes and i - 1 not in minutes]
        assert main([*kept, *small.get(command[0], [])]) == 0, (command, capsys.readouterr().err)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["order"] for row in rows] == ["left-to-right", "right-to-left"]
    assert all(row["puzzles"] == 20 for row in rows)
    [first, *_] = (tmp_path / "sums.txt").read_text().splitlines()
    assert re.fullmatch(r"\d{3}\+\d{3}=\.{4}", first)
    grid = pack_grid({"margin": list(anyorder.read_trajectories(tmp_path / "margin.jsonl"))})
    assert grid is not None
    assert (grid["columns"], grid["rows"]) == (12, 1)
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert explore[0] == "explore"
    [trajectory] = anyorder.load("runs/addition/model").solve("123+456=....", order="right-to-left")
    assert (trajectory.task, trajectory.steps) == ("addition", [4, 3, 2, 1])


def test_arithmetic_is_right() -> None:
    anyorder.load_plugin(EXAMPLES / "arithmetic.py")
    for name, right, wrong in (
        ("addition", "427+085=0512", "427+085=0513"),
        ("multiplication", "27*08=0216", "27*08=0261"),
    ):
        task = make_puzzle(name)
        examples = task.generate(30, seed=1)
        assert task.is_solved(examples.puzzles, examples.solutions).all()
        puzzle = task.read(right[: right.index("=") + 1] + "....")
        assert task.is_solved(puzzle[None], task.read(right)[None]).all()
        assert not task.is_solved(puzzle[None], task.read(wrong)[None]).any()
        assert not task.is_solved(puzzle[None], task.read(right.replace("27", "17", 1))[None]).any()
        assert task.read(task.write(puzzle)).tolist() == puzzle.tolist()


def test_orders_schedules_and_revisions_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands("own_order.py"):
        if command[0] == "translate":
            command[command.index("own_order.py")] = str(EXAMPLES / "own_order.py")
            assert main([*command, "--length", "fixed:6"]) == 0
    assert "1  __ __ morning __ __ __\n2  __ __ [morning ,] __ __" in capsys.readouterr().out
    assert ORDERS["middle-out"].__doc__ == "From the middle outwards."
    decoder = anyorder.load("de-en", device="cpu")
    [ours] = decoder.translate("Guten Morgen, Welt!", "de-en", "two-best", length="fixed:6")
    [margin] = decoder.translate("Guten Morgen, Welt!", "de-en", "margin", length="fixed:6")
    assert len(ours.tokens) == len(margin.tokens)
    assert sorted(ours.steps) == [1, 2, 3, 4, 5, 6]


def test_a_family_of_ones_own(tmp_path: Path) -> None:
    network = checkpoints.save("RobertaForMaskedLM", tmp_path)
    config = network.config.to_dict() | {"model_type": "my-roberta"}
    checkpoints.rewrite(tmp_path, config, lambda name: name.replace("roberta.", "encoder."))
    with pytest.raises(anyorder.InputError, match="model_type 'my-roberta' is not one of the masked models"):
        anyorder.load(f"hf:{tmp_path}", device="cpu")
    anyorder.load_plugin(EXAMPLES / "own_family.py")
    [trajectory] = anyorder.load(f"hf:{tmp_path}", device="cpu").fill("w1 [MASK] w3", order="margin")
    assert trajectory.positions == [1]
    with pytest.raises(anyorder.InputError, match="there is already a family 'bert'"):
        anyorder.register_family("bert", anyorder.Family("BertForMaskedLM"))


def test_a_learned_order_in_sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for SGLang's base class, whose loop over a block is this."""
    [export] = commands("sglang_order.py")
    monkeypatch.chdir(tmp_path)
    assert main(export) == 0

    class DllmAlgorithm:
        def __init__(self, config: SimpleNamespace):
            self.block_size, self.mask_id = config.block_size, config.mask_id

    name = "sglang.srt.dllm.algorithm.base"
    for number in range(1, name.count(".") + 2):
        part = ".".join(name.split(".")[:number])
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    sys.modules[name].DllmAlgorithm = DllmAlgorithm  # type: ignore[attr-defined]
    program = runpy.run_path(str(EXAMPLES / "sglang_order.py"))
    block, words, mask = 4, 7, 6
    config = SimpleNamespace(block_size=block, mask_id=mask, algorithm_config={"order": "order.py", "count": 2})
    algorithm = program["Algorithm"](config)
    logits = torch.randn(2 * block, words, generator=torch.Generator().manual_seed(1))
    logits[:, mask] = 9.0  # the mask itself is never filled in
    batch = SimpleNamespace(batch_size=2, input_ids=torch.tensor([1, mask, mask, mask, mask, mask, 2, 3]))
    masked = batch.input_ids.view(2, block) == mask
    scores = algorithm.order.scores(batch.input_ids.view(2, block), masked, mask, logits.view(2, block, words))
    best, last = scores[0].argsort(descending=True)[:2].sort().values, scores[0].argsort(descending=True)[2]
    assert algorithm.step(batch, logits, [None, None]) == [False, False]
    assert (batch.input_ids.view(2, block) == mask).nonzero().tolist() == [[0, int(last)]]
    assert batch.input_ids[best].tolist() == logits[best, :mask].argmax(1).tolist()
    assert algorithm.step(batch, logits, [None, None]) == [False, True]
    assert algorithm.step(batch, logits, [None, None]) == [True, True]
    assert batch.input_ids.tolist() == [1, *logits[1:6, :mask].argmax(1).tolist(), 2, 3]


@pytest.mark.slow
def test_a_model_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    program = runpy.run_path(str(EXAMPLES / "in_memory.py"))
    recovered = dict(program["main"](steps=600))
    assert list(recovered) == ["left-to-right", "uniform", "margin"]
    assert recovered["margin"] > recovered["left-to-right"] + 1
    assert "p = 1.0000" in capsys.readouterr().out

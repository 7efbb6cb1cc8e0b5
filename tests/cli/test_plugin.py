"""`--plugin`: a user's own file on the command line."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyorder.cli import TAKES_PLUGINS, main
from anyorder.data.vocabulary import Vocabulary
from anyorder.errors import InputError
from anyorder.orders import ORDERS
from anyorder.plugins import load_plugin
from tests.conftest import tiny

PLUGIN = '''
import anyorder
from dataclasses import dataclass
from beside_{name} import SIGN

@dataclass
class Option:
    sign: int = SIGN

@anyorder.register_order("{name}")
def order(state):
    """From the middle outwards."""
    middle = (state.lengths.unsqueeze(1) - 1) / 2
    return Option().sign * (state.positions - middle).abs()
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that registers the order `middle`. When the test ends, the order is gone."""
    orders = dict(ORDERS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_middle.py").write_text("SIGN = -1\n")
    (tmp_path / "my_orders.py").write_text(PLUGIN.format(name="middle"))
    yield tmp_path / "my_orders.py"
    ORDERS.clear()
    ORDERS.update(orders)
    for name in ("middle", "second", "third"):
        sys.modules.pop(f"beside_{name}", None)


def test_a_plugin_is_run_once_and_leaves_nothing_behind(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of the module beside it, which Python imports
    files = sorted(plugin.parent.iterdir())
    module = load_plugin(plugin)
    assert "middle" in ORDERS
    assert load_plugin(str(plugin)) is module
    assert module.Option(3).sign == 3
    assert sorted(plugin.parent.iterdir()) == files


@pytest.mark.parametrize(
    ("register", "name", "mine"),
    [
        ("order", "margin", "class Mine(anyorder.Order): ..."),
        ("schedule", "cosine", "class Mine(anyorder.FixedSchedule): ..."),
        ("revision", "gibbs", "class Mine(anyorder.Revision): ..."),
        ("reward", "bleu", "def mine(hypotheses, references): ..."),
        ("task", "sudoku-9x9", "class Mine(anyorder.PuzzleTask): ..."),
    ],
)
def test_a_plugin_replaces_nothing_that_is_built_in(tmp_path: Path, register: str, name: str, mine: str) -> None:
    """A signature names an order: it must mean the same everywhere."""
    file = tmp_path / f"my_{register}.py"
    file.write_text(f"import anyorder\n\n@anyorder.register_{register}('{name}')\n{mine}\n")
    with pytest.raises(InputError, match=f"there is already an? {register} '{name}': choose another name"):
        load_plugin(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = (1,\n", "{file}, line 1: SyntaxError: '(' was never closed"),
        ("import anyorder\n\n1 / 0\n", "{file}, line 3: ZeroDivisionError: division by zero"),
        ("def f():\n    raise ValueError('one\\ntwo')\nf()\n", "{file}, line 2: ValueError: one two"),
        ("import nowhere\n", "{file}, line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("import json\njson.loads('')\n", "{file}, line 2: JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("raise SystemExit\n", "{file}, line 1: SystemExit"),
    ],
)
def test_a_plugin_that_fails(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(content)
    with pytest.raises(InputError) as error:
        load_plugin(file)
    assert str(error.value) == message.format(file=file)


def test_no_plugin_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, message in ((tmp_path / "none.py", "no such file"), (tmp_path, "is a folder, expected a Python file")):
        assert main(["orders", "--plugin", str(path)]) == 2
        assert capsys.readouterr().err == f"anyorder orders: {path}: {message}\n"


def test_translate_with_an_order_of_ones_own(
    plugin: Path, vocabulary: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(vocabulary).save_pretrained(tmp_path / "model")
    common = ["translate", "--model", str(tmp_path / "model"), "--direction", "de-en", "--device", "cpu"]
    common += ["--order", "middle", "--length", "fixed:3", "--json", str(tmp_path / "out.jsonl"), "Hund"]
    assert main(common) == 2
    assert "unknown order 'middle'" in capsys.readouterr().err
    assert main([*common, "--plugin", str(plugin)]) == 0
    record = json.loads((tmp_path / "out.jsonl").read_text())
    assert record["steps"] == [2, 1, 3]
    assert record["order"] == "middle"


@pytest.mark.parametrize("given", ["{0}", "[{0}]", "[{0}, {0}]"])
def test_plugins_in_a_recipe(plugin: Path, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_text(f"plugin: {given.format(plugin)}\n")
    assert main(["orders", "--config", str(tmp_path / "recipe.yaml")]) == 0
    assert "From the middle outwards." in capsys.readouterr().out


def test_several_plugins(plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("second", "third"):
        (tmp_path / f"beside_{name}.py").write_text("SIGN = 1\n")
        (tmp_path / f"{name}.py").write_text(PLUGIN.format(name=name))
    assert main(["orders", "--plugin", f"{plugin},{tmp_path}/second.py", "--plugin", f"{tmp_path}/third.py"]) == 0
    assert capsys.readouterr().out.count("From the middle outwards.") == 3


def test_the_help_names_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in TAKES_PLUGINS:
        assert main([verb, "--help"]) == 0
        text = capsys.readouterr().out
        assert "--plugin PLUGIN" in text
        assert "--plugin+" not in text


def test_an_order_that_fails(
    plugin: Path, vocabulary: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's own mistake is one line that names the file and the line."""
    plugin.write_text("import anyorder\n\n@anyorder.register_order('broken')\ndef broken(state):\n    return state.x\n")
    tiny(vocabulary).save_pretrained(tmp_path / "model")
    common = ["--model", str(tmp_path / "model"), "--direction", "de-en", "--length", "fixed:2", "--device", "cpu"]
    assert main(["translate", *common, "--plugin", str(plugin), "--order", "broken", "Hund"]) == 2
    assert f"{plugin}, line 5: AttributeError: 'State' object has no attribute 'x'" in capsys.readouterr().err

"""The recipes are what their verbs take, and do what their first lines say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from anyorder.cli import main, verb_function
from anyorder.cli.parser import parse
from anyorder.data.store import Store
from anyorder.reproduce.jobs import SETTINGS
from anyorder.training.optimizer import rate_factor
from tests.conftest import tiny

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*/*.yaml"))


def read(recipe: Path) -> dict[str, Any]:
    """The options of the command in a recipe's comment."""
    command = re.search(r"^#   anyorder (\S+) --config (\S+)(?: --out (\S+))?$", recipe.read_text(), re.MULTILINE)
    assert command is not None, recipe
    verb, path, out = command.groups()
    assert ROOT / path == recipe
    arguments = ["--config", str(recipe), *(["--out", out] if out else [])]
    return parse(verb, verb_function(verb), arguments)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.parent.name}-{recipe.stem}")
def test_a_recipe_is_what_its_verb_takes(recipe: Path) -> None:
    assert read(recipe)["out"]


def test_the_recipes_of_six_directions_fit_together() -> None:
    recipes = {recipe.stem: read(recipe) for recipe in RECIPES if recipe.parent.name == "six-directions"}
    pairs = [f"data/six/{pair}" for pair in ("de-en", "ro-en", "zh-en")]
    assert recipes["train"]["data"] == recipes["learn-order"]["data"] == pairs
    for pair in pairs:
        prepared = recipes[f"prepare-{Path(pair).name}"]
        assert str(prepared["out"]) == pair
        assert prepared["tokenizer"] == str(recipes["vocabulary"]["out"])
        assert prepared["text"] == recipes["vocabulary"]["text"]
        held_out = {part.split("=")[0] for part in prepared["hold_out"].split(",")}
        assert held_out == {"selection", "order"}
        assert prepared["filters"].max_length + 2 < recipes["train"]["transformer"].max_positions


@pytest.mark.parametrize("name", ["a2c", "ppo-2019"])
def test_the_papers_recipes_run(name: str, store: Store, tmp_path: Path) -> None:
    """Two steps of a tiny model; what makes them the paper's is in the record of the order."""
    tiny(store.vocabulary).save_pretrained(tmp_path / "model")
    options = {"model": tmp_path / "model", "data": store.path, "out": tmp_path / "run"}
    options |= {"rl.sentences": 4, "rl.validation-sentences": 2, "run.steps": 2, "run.device": "cpu"}
    arguments = [str(part) for option, value in options.items() for part in (f"--{option}", value)]
    assert main(["learn-order", "--config", str(ROOT / "recipes" / "paper" / f"{name}.yaml"), *arguments]) == 0
    record = json.loads((tmp_path / "run" / "order" / "order.json").read_text())
    assert record["directions"] == ["de-en"]
    assert record["policy"]["dropout"] == 0.1
    assert record["rl"]["reward"] == {"a2c": "bleu-paper", "ppo-2019": "edit-distance"}[name]
    settings = read(ROOT / "recipes" / "paper" / f"{name}.yaml")
    run, rl = settings["run"], settings["rl"]
    updates = run.steps * (rl.epochs if rl.algorithm == "ppo" else 1)
    assert (updates, rl.sentences, rl.rollouts_per_sentence, run.learning_rate) == (97_000, 128, 1, 1e-4)
    table = SETTINGS["paper"]["hidden" if name == "a2c" else "ppo"]  # what `reproduce --scale paper` learns with
    assert settings["policy"] == table.policy
    for part in ("algorithm", "reward", "sentences", "rollouts", "gamma", "entropy_coef", "max_length"):
        assert getattr(rl, part) == getattr(table.rl, part), part
    for part in ("learning_rate", "warmup", "decay_from", "weight_decay", "max_grad_norm", "ema"):
        assert getattr(run, part) == getattr(table.run, part), part
    assert [rate_factor(run, step, step / run.steps) for step in (0, 100, run.steps - 1)] == [1, 1, 1]

"""The recipes are what their verbs take, and do what their first lines say."""

import re
from pathlib import Path
from typing import Any

import pytest

from anyorder.cli import TAKES_PLUGINS, VERBS, verb_function
from anyorder.cli.parser import parse

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*/*.yaml"))


def read(recipe: Path) -> dict[str, Any]:
    """The options of the command in a recipe's comment."""
    command = re.search(r"^#   anyorder (\S+) --config (\S+)(?: --out (\S+))?$", recipe.read_text(), re.MULTILINE)
    assert command is not None, recipe
    verb, path, out = command.groups()
    assert ROOT / path == recipe
    arguments = ["--config", str(recipe), *(["--out", out] if out else [])]
    return parse(verb, VERBS[verb], verb_function(verb), arguments, verb in TAKES_PLUGINS)


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

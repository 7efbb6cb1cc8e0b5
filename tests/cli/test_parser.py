"""Errors carry a field; the command line says which flag that is."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from anyorder.cli import main
from anyorder.cli.parser import SharedOptions, parse, with_flag
from anyorder.errors import InputError, check_number


@dataclass(frozen=True)
class RunConfig:
    log_every: int = 1

    def __post_init__(self) -> None:
        check_number("log_every", self.log_every, at_least=1, config=RunConfig)


@dataclass(frozen=True)
class TextRunConfig(RunConfig):
    batch_tokens: int = 100


class OtherConfig:
    pass


@dataclass(frozen=True)
class NoiseOptions(SharedOptions):
    noise_level: float = 0.5
    noisy: bool = False


def verb(
    input: list[str],
    /,
    noise: NoiseOptions,
    length: str = "gold",
    max_steps: int = 1,
    data: list[str] | None = None,
    run: TextRunConfig = TextRunConfig(),  # noqa: B008
    trace: bool = False,
    corpus_weights: dict[str, float] = {},  # noqa: B006
) -> None:
    """Do something."""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("0: expected more", "log_every", TextRunConfig), "--run.log-every 0: expected more"),
        (InputError("0: expected more", "log_every", RunConfig), "--run.log-every 0: expected more"),
        (InputError("0: expected more", "max_steps"), "--max-steps 0: expected more"),
        (InputError("0: expected more", "noise_level"), "--noise-level 0: expected more"),
        (InputError("0: expected more", "max_steps", OtherConfig), "--max-steps 0: expected more"),
        (InputError("0: expected more", "log_every", OtherConfig), "log_every 0: expected more"),
        (InputError("'x': no such file", "input"), "input 'x': no such file"),
        (InputError("a file is missing"), "a file is missing"),
    ],
)  # fmt: skip
def test_a_field_is_named_as_its_flag(error: InputError, line: str) -> None:
    assert with_flag(error, verb) == line


def test_a_base_class_in_the_signature_counts() -> None:
    def base_verb(run: RunConfig | None = None) -> None: ...

    assert with_flag(InputError("0: no", "batch_tokens", TextRunConfig), base_verb) == "--run.batch-tokens 0: no"


def test_a_config_checks_itself_when_it_is_parsed() -> None:
    with pytest.raises(InputError) as error:
        parse("train", verb, ["--run.log-every", "0"])
    assert with_flag(error.value, verb) == "--run.log-every 0: expected a number of at least 1"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"trace": False}),
        (["--trace"], {"trace": True}),
        (["--trace", "false", "--max-steps=3"], {"trace": False, "max_steps": 3}),
        (["--max_steps", "4", "one", "two"], {"max_steps": 4, "input": ["one", "two"]}),
        (["--trace", "--", "--length"], {"trace": True, "input": ["--length"]}),
        (["--data", "one", "two", "--trace"], {"data": ["one", "two"], "trace": True}),
        (["--corpus_weights.a_b", "2"], {"corpus_weights": {"a_b": 2.0}}),
        ([], {"noise": NoiseOptions(), "input": [], "data": None}),
        (["--noise-level", "2", "--noisy"], {"noise": NoiseOptions(2.0, True)}),
        (["--run.batch-tokens", "7"], {"run": TextRunConfig(batch_tokens=7)}),
        (["--corpus-weights.de-en/news-devsets", "2"], {"corpus_weights": {"de-en/news-devsets": 2.0}}),
    ],
)
def test_options_may_have_hyphens_and_switches_need_no_value(arguments: list[str], expected: dict[str, object]) -> None:
    values = parse("train", verb, arguments)
    assert values | expected == values


def test_null_in_a_recipe_is_the_default_of_a_shared_option(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("noise_level: null\nnoisy: true\n")
    values = parse("train", verb, ["--config", str(tmp_path / "recipe.yaml")])
    assert values["noise"] == NoiseOptions(0.5, True)
    assert values["noise"].changed() == {"noisy": True}


@pytest.mark.parametrize(("given", "expected"), [("one", ["one"]), ("[one, 2]", ["one", "2"])])
def test_a_recipe_may_give_one_of_several_values(given: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f"data: {given}\n")
    recipe = ["--config", str(tmp_path / "recipe.yaml")]
    assert parse("train", verb, recipe)["data"] == expected
    assert parse("train", verb, [*recipe, "--data", "three"])["data"] == ["three"]


def test_missing_options_are_named_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["puzzles", "--task", "sudoku-4x4"]) == 2
    assert "required: --out, --solutions (see" in capsys.readouterr().err

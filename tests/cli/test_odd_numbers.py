"""Absurd numbers in any option are refused before anything is done."""

import inspect
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from anyorder.cli import VERBS, main, verb_function
from anyorder.cli.parser import make_parser
from anyorder.errors import InputError, check_number

ODD = (10**400, 10**30, 1 << 63, math.nan, math.inf, -math.inf, -1, -(10**30))


def config_fields() -> Iterator[tuple[Any, str]]:
    """Every number in every config that a verb takes, by the default config and the field's name."""
    for verb in VERBS:
        for parameter in inspect.signature(verb_function(verb)).parameters.values():
            if not is_dataclass(parameter.default):
                continue
            hints = get_type_hints(type(parameter.default))
            for field in fields(parameter.default):
                kinds = set(get_args(hints[field.name])) or {hints[field.name]}
                if kinds & {int, float} and not kinds & {str}:
                    yield parameter.default, field.name


def test_numbers_of_configs() -> None:
    seen = 0
    for config, name in config_fields():
        for odd in ODD:
            with pytest.raises(InputError) as error:
                replace(config, **{name: odd})
            assert error.value.field, f"{name} {odd}"
            seen += 1
    assert seen > 300


def test_numbers_that_are_no_part_of_a_config() -> None:
    """So that the list below is complete."""
    found = set()
    for verb in VERBS:
        for action in make_parser(verb, verb_function(verb))._actions:
            hint = getattr(action, "_typehint", None)
            kinds = set(get_args(hint)) or {hint}
            if kinds & {int, float} and not kinds & {str} and "." not in action.dest:
                found.add((verb, action.dest))
    assert found == {(verb, name) for verb, names in OPTIONS.items() for name in names}


OPTIONS = {
    "prepare": ("vocabulary", "vocabulary_alpha", "workers"),
    "distill": ("pairs", "minutes", "beam", "seed"),
    "learn-order": ("mask_share",),
    "translate": ("seed", "batch_tokens", "length_penalty", "temperature", "top_p", "top_k", "guidance"),
    "infill": ("seed", "batch_tokens", "temperature", "top_p", "top_k", "guidance"),
    "generate": ("seed", "batch_tokens", "temperature", "top_p", "top_k", "guidance", "length"),
    "puzzles": ("count", "seed"),
    "evaluate": (
        "seed",
        "batch_tokens",
        "limit",
        "samples",
        "length_penalty",
        "temperature",
        "top_p",
        "top_k",
        "guidance",
        "mask_share",
    ),
    "analyze": ("samples", "null_samples", "seed"),
    "explore": ("port", "threads", "queue"),
    "reproduce": ("seeds", "steps", "baseline", "sentences", "samples", "batch_tokens", "train_steps"),
}


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, names in OPTIONS.items() for name in names])
def test_numbers_of_verbs(verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.de").write_text("Hund\n")
    (tmp_path / "a.jsonl").write_text('{"source": "Hund", "tokens": ["dog"], "steps": [1]}\n')
    model = ["--model", "de-en", "--direction", "de-en", "--device", "cpu"]
    base = {
        "prepare": ["--languages", "de", "--train", f"{tmp_path}/a.%", "--out", tmp_path / "store"],
        "distill": ["--data", tmp_path, "--baseline", tmp_path, "--out", tmp_path / "store"],
        "learn-order": [
            "--model",
            "sudoku-4x4",
            "--text",
            tmp_path / "a.de",
            "--out",
            tmp_path / "run",
            "--run.steps",
            1,
        ],
        "translate": [*model, "Hund"],
        "infill": ["--model", "sudoku-4x4", "[MASK]"],
        "generate": ["--model", "sudoku-4x4", "--prompt", "1"],
        "puzzles": ["--task", "sudoku-4x4", "--out", tmp_path / "puzzles", "--solutions", tmp_path / "solutions"],
        "evaluate": model,
        "analyze": [tmp_path / "a.jsonl", "--tagger", "none"],
        "explore": [],
        "reproduce": ["table2", "--model", "de-en", "--data", tmp_path, "--out", tmp_path / "results"],
    }[verb]
    flag = f"--{name.replace('_', '-')}"
    for odd in (10**30, 1 << 63, -1, ".nan", "1e400", "9" * 5000):
        assert main([verb, *map(str, base), f"{flag}={odd}"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert flag in error
    assert len(list(tmp_path.iterdir())) == 2


def test_a_bound_that_nobody_named() -> None:
    check_number("limit", 1 << 62, at_least=1)
    with pytest.raises(InputError, match="limit 1000000000000000000000: expected a number of at least 1 and at most"):
        check_number("limit", 10**21, at_least=1)

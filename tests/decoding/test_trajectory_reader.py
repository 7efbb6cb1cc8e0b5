"""Trajectories from files: ours, anyone's, and wrong ones."""

import gzip
from pathlib import Path

import pytest

from anyorder.decoding.trajectory import Trajectory, read_systems, read_trajectories
from anyorder.errors import InputError

OURS = Trajectory(
    "Hallo", "Hi there", ["Hi", "the@@", "re"], [1, 3, 2], [-0.1, -0.2, -0.3], "margin", 3, "order:margin"
)
LEAST = '{"tokens": ["Hi", "the@@", "re"], "steps": [1, 3, 2]}'


def test_what_translate_writes_comes_back(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(OURS.to_json() + "\n" + OURS.to_json() + "\n", encoding="utf-8")
    assert list(read_trajectories(tmp_path / "a.jsonl")) == [OURS, OURS]


def test_tokens_and_steps_are_enough(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(LEAST + "\n")
    expected = Trajectory("", "Hi there", ["Hi", "the@@", "re"], [1, 3, 2], [], "", 3, "")
    assert list(read_trajectories(tmp_path / "a.jsonl.gz")) == [expected]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"tokens": ["a"], "steps": [1], "x": ' + "[" * 100_000, "not JSON (nested too deeply)"),
        (r'{"tokens": ["a", "\ud800"], "steps": [1, 2]}', "not JSON"),
        (r'{"tokens": ["a"], "steps": [1], "source": "\udfff"}', "not JSON"),
        ("[1]", "expected an object, got a list"),
        ('{"steps": [1]}', "has no tokens"),
        ('{"tokens": ["a"]}', "has no steps"),
        ('{"tokens": "a", "steps": [1]}', "tokens: expected a list, got text"),
        ('{"tokens": [1], "steps": [1]}', "tokens[0]: expected text, got a whole number"),
        ('{"tokens": ["a"], "steps": [0]}', "steps[0]: expected a whole number >= 1"),
        ('{"tokens": ["a"], "steps": [1.5]}', "steps[0]: expected a whole number, got a number"),
        ('{"tokens": ["a"], "steps": [true]}', "steps[0]: expected a whole number, got true or false"),
        ('{"tokens": ["a"], "steps": [99999999999999999999]}', "steps[0]: expected a whole number <= 2147483647"),
        ('{"tokens": ["a", "b"], "steps": [1]}', "2 tokens but 1 steps"),
        ('{"tokens": ["a"], "steps": [1], "logprobs": [1, 2]}', "1 tokens but 2 logprobs"),
        ('{"tokens": ["a"], "steps": [1], "logprobs": ["x"]}', "logprobs[0]: expected a number, got text"),
        ('{"tokens": ["a"], "steps": [1], "logprobs": [NaN]}', "not JSON"),
        ('{"tokens": ["a"], "steps": [1], "source": 3}', "source: expected text or null, got a whole number"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, expected: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(f"{LEAST}\n{line}\n")
    with pytest.raises(InputError) as error:
        list(read_trajectories(file))
    assert str(error.value).startswith(f"{file}, line 2: {expected}")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(InputError, match="a.jsonl: is empty"):
        list(read_trajectories(tmp_path / "a.jsonl"))


def test_systems_go_by_the_names_of_their_files(tmp_path: Path) -> None:
    for name in ("x/one.jsonl", "y/one.jsonl", "y/two.v1.jsonl", "y/three.jsonl.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        data = (LEAST + "\n").encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)

    def names(*files: str) -> list[str]:
        return list(read_systems([tmp_path / file for file in files]))

    assert names("x/one.jsonl", "y/two.v1.jsonl", "y/three.jsonl.gz") == ["one", "two.v1", "three"]
    assert names("x/one.jsonl", "y/one.jsonl") == ["x/one", "y/one"]
    with pytest.raises(InputError, match="another file is called x/one"):
        names("x/one.jsonl", "x/one.jsonl")

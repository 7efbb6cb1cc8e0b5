"""Values from files are checked before they are used."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from anyorder.errors import InputError, check_number
from anyorder.records import Record, parse_json, read_json, read_record, read_tensors

T = TypeVar("T")


@dataclass(frozen=True)
class Inner:
    size: int = 4

    def __post_init__(self) -> None:
        check_number("size", self.size, at_least=1, at_most=10)


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    kind: Literal["a", "b"] = "a"
    share: float = 0.5
    on: bool = True
    languages: tuple[str, ...] = ()
    limit: int | None = None


WHOLE = {"name": "x", "inner": {"size": 3}, "kind": "b", "share": 1, "on": False, "languages": ["de"], "limit": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "expected an object, got a list"),
        ('{"a":' * 100_000, "not JSON"),
        ('{"a": NaN}', "not JSON"),
        ('{"a": 1' + "0" * 5000 + "}", "out of range"),
    ],
)
def test_damaged_json(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_json(tmp_path / "a.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "b.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path)
    (tmp_path / "c.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InputError, match="not JSON .*'utf-8'"):
        read_json(tmp_path / "c.json")


def test_a_config_from_a_record() -> None:
    assert Record("f", WHOLE).config(Outer) == Outer("x", Inner(3), "b", 1.0, False, ("de",), None)
    assert Record("f", {"name": "x", "inner": {}}).config(Outer) == Outer("x", Inner())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "f: name: 3, expected text"),
        ({"inner": [1]}, r"f: inner: \[1\], expected an object"),
        ({"inner": {"size": 10**30}}, "f: inner.size: 1000000000000000000000000000000, expected a whole number"),
        ({"inner": {"size": 11}}, "f: inner.size 11: expected a number of at least 1 and at most 10"),
        ({"inner": {"sise": 1}}, r"f: inner.sise: no such field \(known: size\)"),
        ({"kind": "c"}, "f: kind: \"c\", expected 'a' or 'b'"),
        ({"share": True}, "f: share: true, expected a number"),
        ({"on": 1}, "f: on: 1, expected true or false"),
        ({"languages": ["de", 2]}, r'f: languages: \["de", 2\], \[1\]: expected text'),
        ({"limit": 1 << 60}, "f: limit: 1152921504606846976, expected a whole number <= 9007199254740992"),
        ({"languages": "de"}, 'f: languages: "de", expected a list'),
        ({"limit": 1.5}, "f: limit: 1.5, expected a whole number"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Record("f", {**WHOLE, **change}).config(Outer)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"inner": {}}')
    record = read_record(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"a\.json: name: is missing"):
        record.config(Outer)
    with pytest.raises(InputError, match="step: is missing"):
        record.integer("step", at_most=9)
    assert record.integer("step", default=7) == 7


def taken(read: Callable[[], T]) -> tuple[T | None, str]:
    """The value, or the message of its refusal."""
    try:
        return read(), ""
    except InputError as error:
        return None, str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(field=st.sampled_from(sorted(WHOLE)), value=json_values)
def test_any_value_is_taken_or_refused(field: str, value: object) -> None:
    config, message = taken(lambda: Record("f", {**WHOLE, field: value}).config(Outer))
    if config is None:
        assert message.startswith("f: ")
        assert "\n" not in message
    else:
        assert isinstance(config.name, str)
        assert isinstance(config.inner.size, int)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_json_or_refused(text: str) -> None:
    value, message = taken(lambda: parse_json(text, "f"))
    assert isinstance(value, dict) or message.startswith("f: ")


def test_tensors_are_checked_before_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4)}, file)
    assert read_tensors(file, {"a": (2, 3), "b": (4,)})["b"].tolist() == [0, 0, 0, 0]
    for expected, message in (
        ({"a": (2, 3)}, "has unknown b"),
        ({"a": (2, 3), "b": (4,), "c": (1,)}, "lacks c"),
        ({"a": (3, 2), "b": (4,)}, r"a is \(2, 3\), expected \(3, 2\)"),
    ):
        with pytest.raises(InputError, match=message):
            read_tensors(file, expected)
    save_file({"a": torch.tensor([1.0, float("nan")])}, file)
    with pytest.raises(InputError, match="a holds numbers that are not finite"):
        read_tensors(file)
    file.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="damaged"):
        read_tensors(file)
    with pytest.raises(InputError, match="no such file"):
        read_tensors(tmp_path / "b.safetensors")

"""Files and folders appear whole or not at all."""

import gzip
import os
from pathlib import Path

import pytest

from anyorder.errors import InputError
from anyorder.files import (
    atomic_file,
    atomic_folder,
    check_writable,
    is_leftover,
    read_json,
    read_tensors,
    remove_leftovers,
    sha256,
)


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with atomic_file(file) as stream:
        stream.write("new")
        assert not file.exists()
    assert file.read_text() == "new"
    with pytest.raises(KeyError), atomic_file(file) as stream:
        _fail(stream)
    assert file.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def _fail(stream: object) -> None:
    stream.write("half")  # type: ignore[attr-defined]
    raise KeyError


def test_what_was_written_can_be_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyError), atomic_file(tmp_path / "a.gz", keep_on=(KeyError,)) as stream:
        _fail(stream)
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"half"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_file(tmp_path / "link") as stream:
        stream.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for file, message in ((tmp_path, "is a folder"), (tmp_path / "no" / "a.txt", "cannot be written")):
        with pytest.raises(InputError, match=message), atomic_file(file):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, expected a folder"):
        check_writable(tmp_path / "file" / "run")
    check_writable(tmp_path / "new" / "run")


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "model") as folder:
            (folder / "weights").write_text(content)
    assert (tmp_path / "model" / "weights").read_text() == "new"
    with pytest.raises(KeyError), atomic_folder(tmp_path / "model"):
        raise KeyError
    with pytest.raises(InputError, match="already exists"), atomic_folder(tmp_path / "model", replace=False):
        pass
    assert os.listdir(tmp_path) == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "new"


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name in ("a.partial-1", "b.old-2", "c"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["c"]
    assert [is_leftover(name) for name in ("a.partial-1", "b.old-2", "c")] == [True, True, False]


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not JSON"), ("[1]", "expected a JSON object"), ("[" * 100_000, "not JSON")]
)
def test_damaged_json(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "b.json")


def test_damaged_tensors(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="corrupted"):
        read_tensors(tmp_path / "a.safetensors")


def test_checksum(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a").startswith("ba7816bf")

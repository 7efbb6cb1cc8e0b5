"""Locks on what is written: one writer at a time, and nothing is left behind."""

import errno
import fcntl
import shutil
from pathlib import Path

import pytest

from anyorder import files
from anyorder.errors import InputError
from anyorder.files import atomic_file, lock_folder


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_folder(tmp_path), lock_folder(tmp_path), atomic_file(tmp_path / "a") as stream:
        stream.write("b")
    assert (tmp_path / "a").read_text() == "b"


def test_a_folder_that_is_replaced_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is on the folder that is there now, not on the one that was."""
    folder, lock = tmp_path / "run", files._lock
    folder.mkdir()

    def replace_first(descriptor: int) -> bool:
        monkeypatch.undo()
        shutil.rmtree(folder)
        return lock(descriptor)

    monkeypatch.setattr(files, "_lock", replace_first)
    with lock_folder(folder):
        assert folder.is_dir()
        with pytest.raises(InputError, match="run: another process is working there"), lock_folder(folder):
            pass
    assert list(folder.iterdir()) == []


def test_a_place_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be opened"), lock_folder(tmp_path / "file"):
        pass

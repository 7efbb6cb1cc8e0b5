"""Locks that stand for something else than a file: one holder at a time, and nothing is left behind."""

import errno
import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anyorder.errors import InputError
from anyorder.files.locks import is_locked, knows_locks, try_lock, wait_for_lock


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "locks" / "job"
    assert not is_locked(file)
    with try_lock(file) as first:
        with try_lock(file) as second, try_lock(tmp_path / "locks" / "other") as other:
            assert (first, second, other) == (True, False, True)
        assert is_locked(file)
    assert not is_locked(file)
    assert list(file.parent.iterdir()) == []
    with pytest.raises(KeyError), try_lock(file):
        raise KeyError
    with try_lock(file) as again:
        assert again


def test_what_a_killed_process_left_is_no_hindrance(tmp_path: Path) -> None:
    file = tmp_path / "job"
    file.touch()
    assert not is_locked(file)
    with try_lock(file) as held:
        assert held
    assert not file.exists()


def test_waiting(tmp_path: Path) -> None:
    waits, seen = threading.Event(), []

    def wait() -> None:
        with wait_for_lock(tmp_path / "job", waits.set):
            seen.append("second")

    with try_lock(tmp_path / "job"):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(30)
        seen.append("first")
    thread.join()
    assert seen == ["first", "second"]


def test_many_at_once_never_share_it(tmp_path: Path) -> None:
    """Also while the holder removes the file, and a process that goes removes the folder."""
    inside, most, taken = 0, 0, 0
    counting = threading.Lock()

    def work() -> None:
        nonlocal inside, most, taken
        for _ in range(200):
            with try_lock(tmp_path / "locks" / "job") as held:
                if not held:
                    continue
                with counting:
                    inside, taken = inside + 1, taken + 1
                    most = max(most, inside)
                with counting:
                    inside -= 1
            try:
                (tmp_path / "locks").rmdir()
            except OSError:
                continue

    with ThreadPoolExecutor(4) as pool:
        for worker in [pool.submit(work) for _ in range(4)]:
            worker.result()
    assert most == 1
    assert taken > 1


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert knows_locks(tmp_path)

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not knows_locks(tmp_path)
    with try_lock(tmp_path / "job") as held:
        assert held
        assert not is_locked(tmp_path / "job")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"), try_lock(tmp_path / "file" / "job"):
        pass

"""Files and folders appear whole or not at all."""

import errno
import fcntl
import gzip
import lzma
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from anyorder import files
from anyorder.errors import InputError
from anyorder.files import (
    CHECKSUMS,
    added_files,
    atomic_file,
    atomic_folder,
    check_writable,
    is_leftover,
    lock_folder,
    read_whole,
    recover_folder,
    remove_leftovers,
    replace_folder,
    sha256,
    verify,
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


def _fill_the_disk(file: Path) -> None:
    file.write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_files_are_added_together(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine").write_text("")
    with pytest.raises(InputError, match="cannot be written"), added_files(tmp_path / "figures") as folder:
        _fill_the_disk(folder / "a")
    assert os.listdir(tmp_path / "figures") == ["mine"]
    with added_files(tmp_path / "figures") as folder:
        (folder / "a").write_text("a")
    assert sorted(os.listdir(tmp_path / "figures")) == ["a", "mine"]
    assert os.listdir(tmp_path) == ["figures"]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name in ("a.partial", "b.old", "b", "c.old", "d"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.partial").write_text("")
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["b", "c", "d"]  # c was being replaced
    assert [is_leftover(name) for name in ("a.partial", "b.old", "c")] == [True, True, False]


def test_a_leftover_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "model.partial").mkdir()
    (tmp_path / "model.partial" / "half").write_text("")
    (tmp_path / "a.txt.partial").write_text("half of something longer")
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "weights").write_text("new")
    with atomic_file(tmp_path / "a.txt") as stream:
        stream.write("new")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "model"]
    assert sorted(os.listdir(tmp_path / "model")) == [CHECKSUMS, "weights"]


def test_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with added_files(Path()) as folder:
        (folder / "a").write_text("a")
    assert os.listdir(tmp_path / "here") == ["a"]
    with pytest.raises(InputError, match="already exists"), atomic_folder(Path(), replace=False):
        pass
    assert os.listdir(tmp_path) == ["here"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as stream:
        with pytest.raises(InputError, match="another process is writing it"), atomic_file(tmp_path / "a"):
            pass
        stream.write("first")
    assert (tmp_path / "a").read_text() == "first"
    with atomic_folder(tmp_path / "b") as folder:
        with pytest.raises(InputError, match="another process is writing it"), atomic_folder(tmp_path / "b"):
            pass
        (folder / "c").write_text("first")
    assert (tmp_path / "b" / "c").read_text() == "first"
    with lock_folder(tmp_path), pytest.raises(InputError, match="another process is working"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


def test_a_replacement_in_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On file systems that cannot exchange folders."""
    monkeypatch.setattr("anyorder.files._exchange", lambda a, b: False)
    for name in ("new", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    replace_folder(tmp_path / "new", tmp_path / "place")
    assert (tmp_path / "place" / "x").read_text() == "new"
    assert os.listdir(tmp_path) == ["place"]
    (tmp_path / "place").rename(tmp_path / "place.old")  # killed between the two steps
    recover_folder(tmp_path / "place")
    assert os.listdir(tmp_path) == ["place"]


def test_a_reader_never_meets_half_of_two_folders(tmp_path: Path) -> None:
    """Two files of a folder are always from the same version while another thread replaces it."""
    stop = threading.Event()

    def write(number: int) -> None:
        with atomic_folder(tmp_path / "order") as folder:
            for name in ("a", "b"):
                (folder / name).write_text(str(number))

    def replace() -> None:
        number = 0
        while not stop.is_set():
            write(number := number + 1)

    def read(folder: Path) -> tuple[str, str]:
        verify(folder, "a", "b")
        return (folder / "a").read_text(), (folder / "b").read_text()

    write(0)
    writer = threading.Thread(target=replace)
    writer.start()
    try:
        seen: list[tuple[str, str]] = []
        deadline = time.monotonic() + 60
        while len(seen) < 300 or (
            len(set(seen)) < 3 and time.monotonic() < deadline
        ):  # a sync of the disk takes a while
            seen.append(read_whole(tmp_path / "order", read))
    finally:
        stop.set()
        writer.join()
    assert all(a == b for a, b in seen)
    assert len(set(seen)) > 2


def test_files_are_compared_with_their_checksums(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "weights").write_bytes(b"abc")
    verify(tmp_path / "model", "weights")
    (tmp_path / "model" / "weights").write_bytes(b"abd")
    with pytest.raises(InputError, match="weights: damaged, it does not match"):
        verify(tmp_path / "model", "weights")
    (tmp_path / "model" / "other").write_bytes(b"abc")
    with pytest.raises(InputError, match="is not listed"):
        verify(tmp_path / "model", "other")
    verify(tmp_path, "anything")  # no checksums there


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/full: cannot be written"), atomic_file(Path("/dev/full")) as stream:
        stream.write("x" * 100_000)
    with pytest.raises(InputError, match="model: cannot be written"), atomic_folder(tmp_path / "model"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert os.listdir(tmp_path) == []


def test_equal_text_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz", "a.xz", "b.xz"):
        with atomic_file(tmp_path / name) as stream:
            stream.write("text")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert lzma.decompress((tmp_path / "a.xz").read_bytes()) == b"text"


def test_checksum(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a").startswith("ba7816bf")


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

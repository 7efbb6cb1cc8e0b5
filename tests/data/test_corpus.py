import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder.data.corpus import decode_lines, read_lines, read_parallel
from anyorder.errors import InputError

LINES = ["eins", "", "zwei\u2028drei", "vier\u0085fünf", "sechs"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_only_line_feeds_end_a_line(tmp_path: Path, suffix: str) -> None:
    content = "".join(line + "\n" for line in LINES).encode()
    content = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](content)
    file = tmp_path / f"text{suffix}"
    file.write_bytes(content)
    assert list(read_lines(file)) == LINES


def test_byte_order_mark_and_carriage_returns_go(tmp_path: Path) -> None:
    file = tmp_path / "windows.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert list(read_lines(file)) == ["one", "two"]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"))))
def test_any_text_comes_back(lines: list[str]) -> None:
    from io import BytesIO

    content = "".join(line + "\n" for line in lines).encode()
    assert list(decode_lines(BytesIO(content), "memory")) == lines


def test_invalid_utf8_names_the_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes(b"gut\nsch\xf6n\n")
    with pytest.raises(InputError, match=r"latin1.txt, line 2: invalid UTF-8 \(byte 0xf6 at column 4\)"):
        list(read_lines(file))


def test_invalid_utf8_far_into_a_large_file(tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    file.write_bytes(b"a line of text\n" * 200_000 + b"\xff\n")
    with pytest.raises(InputError, match="line 200001"):
        list(read_lines(file))


def test_unequal_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n")
    with pytest.raises(InputError, match="a has 3 lines but .*b has 2 lines"):
        list(read_parallel([tmp_path / "a", tmp_path / "b"]))


def test_truncated_archive(tmp_path: Path) -> None:
    file = tmp_path / "cut.xz"
    file.write_bytes(lzma.compress(b"line\n" * 1000)[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        list(read_lines(file))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(read_lines(tmp_path / "none"))


def test_invalid_utf8_may_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes(b"gut\nsch\xf6n\xe2\x82\n\xff\xfe\n\xe2\x82\xac")
    assert list(read_lines(file, "replace")) == ["gut", "sch\ufffdn\ufffd", "\ufffd\ufffd", "€"]


def test_a_file_without_an_end() -> None:
    with pytest.raises(
        InputError, match=r"/dev/zero: cannot be read after line 0 \(a line has more than 67,108,864 bytes\)"
    ):
        next(read_lines(Path("/dev/zero")))

"""The Host header: what is well formed, and which names a server answers to."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyorder.app.hosts import allowed_hosts, host_name, is_allowed

LOCAL = allowed_hosts("127.0.0.1")
GOOD = ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8600", "[::1]", "[::1]:65535", "[0:0:0:0:0:0:0:1]:80"]
BAD = [
    "", " ", "localhost:", "localhost:0", "localhost:080", "localhost:65536", "localhost:8e1", "localhost:-1", "localhost:80:80",
    "localhost:٣", "localhost.", "localhost. ", " localhost", "localhost\t", "localhost\n", "me@localhost", "me:secret@localhost",
    "localhost@evil.example", "localhost/", "localhost?", "localhost#", "localhost,localhost", "localhost\\", "löcalhost", "ｌocalhost",
    "::1", "[::1", "::1]", "[::1]x", "[::1%25lo]", "[localhost]", "[127.0.0.1]", "[]", "127.1", "127.0.0.1.", "0x7f.0.0.1",
    "2130706433", "0177.0.0.1", "127.0.0.01", "evil.example", "localhost.evil.example", "*", "a" * 70_000,
]  # fmt: skip


@pytest.mark.parametrize("header", GOOD)
def test_own_names(header: str) -> None:
    assert is_allowed(header, LOCAL)


@pytest.mark.parametrize("header", BAD)
def test_everything_else_is_refused(header: str) -> None:
    assert not is_allowed(header, LOCAL)


def is_own_name(header: str) -> bool:
    """The rule once more, written without a regular expression."""
    name, colon, port = header.lower().rpartition(":") if not header.endswith("]") else (header.lower(), "", "")
    if not colon:
        name, port = name or port, "1"
    if name.startswith("[") and name.endswith("]"):
        try:
            name = str(ipaddress.IPv6Address(name[1:-1]))
        except ValueError:
            return False
    elif ":" in name:
        return False
    is_port = port.isascii() and port.isdecimal() and str(int(port)) == port and 1 <= int(port) <= 65535
    return header.isascii() and name in LOCAL and is_port


PIECES = [
    "localhost",
    "127.0.0.1",
    "[::1]",
    "::1",
    "[",
    "]",
    ":",
    ".",
    "@",
    "8600",
    "0",
    "65536",
    "٣",
    " ",
    "%",
    "é",
    "\x00",
]


@given(st.one_of(st.text(max_size=20), st.lists(st.sampled_from(PIECES), max_size=4).map("".join)))
def test_the_syntax_is_strict(header: str) -> None:
    assert is_allowed(header, LOCAL) == is_own_name(header)


@given(st.ip_addresses(v=6), st.integers(1, 65535))
def test_addresses(address: ipaddress.IPv6Address, port: int) -> None:
    """An address is the same in every spelling, and any is allowed where a server is bound to all."""
    assert host_name(f"[{address}]:{port}") == host_name(f"[{address.exploded.upper()}]") == str(address)
    assert is_allowed(f"[{address}]:{port}", allowed_hosts("::"))
    assert is_allowed(f"[{address}]", allowed_hosts(str(address)))
    assert is_allowed(f"[{address}]", LOCAL) == (str(address) == "::1")


def test_names_of_a_server() -> None:
    assert is_allowed("Box.example:80", allowed_hosts("box.example"))
    assert not is_allowed("box.example", allowed_hosts("0.0.0.0"))
    for everywhere in ("0.0.0.0", "::"):
        assert is_allowed("192.0.2.7:8600", allowed_hosts(everywhere))
    assert not is_allowed("192.0.2.7", allowed_hosts("192.0.2.8"))

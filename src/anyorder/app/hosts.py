"""The Host header: its strict syntax, and the names to which a server answers."""

import ipaddress
import re
import socket

_HOST = re.compile(r"(?P<name>[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(?P<port>[1-9][0-9]{0,4}))?")
ANY_ADDRESS = "*"


def host_name(header: str) -> str | None:
    """The name in a Host header, without the port; None unless it is a plain name or an IP address.

    >>> host_name("LocalHost:8600"), host_name("[0:0::1]:8600"), host_name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    >>> [host_name(header) for header in ("localhost:", "localhost:99999", "me@localhost", "localhost.", "::1")]
    [None, None, None, None, None]
    """
    match = _HOST.fullmatch(header.lower()) if header.isascii() else None
    if match is None or int(match["port"] or 1) > 65535:
        return None
    name = match["name"]
    if not name.startswith("["):
        return name
    try:
        return str(ipaddress.IPv6Address(name[1:-1]))
    except ValueError:
        return None


def allowed_hosts(host: str) -> set[str]:
    """The names to which a server bound to `host` answers; `ANY_ADDRESS` stands for any IP address.

    A server bound to all addresses of a machine answers to any IP address, because an address cannot be rebound the way
    a name can.
    """
    names = {"localhost", "127.0.0.1", "::1"}
    if not _is_address(host):
        return names | {host.lower()}
    address = ipaddress.ip_address(host)
    return names | ({ANY_ADDRESS, socket.gethostname().lower()} if address.is_unspecified else {str(address)})


def is_allowed(header: str, hosts: set[str] | frozenset[str]) -> bool:
    """Whether a Host header is well formed and names one of these hosts."""
    name = host_name(header)
    return name is not None and (name in hosts or (ANY_ADDRESS in hosts and _is_address(name)))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

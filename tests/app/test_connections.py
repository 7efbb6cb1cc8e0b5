"""Connections that never finish a request: they are closed in time, and nobody waits for them."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")
pytest.importorskip("uvicorn", reason="the explorer needs the extra 'app'")

from anyorder.app.connections import ConnectionTable
from anyorder.app.limits import Limits
from anyorder.app.served_models import ServedTranslator
from anyorder.app.server import create_app
from anyorder.translator import Translator
from tests.app.servers import serving

HEAD = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
QUERY = {"model": "small", "direction": "de-en", "text": "Der Hund.", "orders": ["margin"], "length": 2}
QUICK = Limits(head_timeout=0.3, body_timeout=0.2, idle_timeout=0.4)


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with serving(create_app([str(folder)], device="cpu", limits=QUICK), QUICK) as port:
        yield port


def connect(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(data)
    return connection


def post(body: bytes) -> bytes:
    return HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def translate(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/api/translate", json.dumps(QUERY), {"Content-Type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    return status


class Connection:
    def __init__(self) -> None:
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


def add(table: ConnectionTable, client: str, is_working: bool = False) -> tuple[Connection, bool]:
    connection = Connection()
    has_room = table.add(connection, client)
    table.update(connection, is_working)
    return connection, has_room


def test_a_new_connection_replaces_the_one_that_waits_longest() -> None:
    table = ConnectionTable(Limits(connections=100, client_connections=3))
    working, *waiting = [add(table, "a", is_working=i == 0)[0] for i in range(3)]
    other, _ = add(table, "b")
    table.update(waiting[0], is_working=True)
    table.update(waiting[0], is_working=False)  # its request was answered: it waits anew
    newest, has_room = add(table, "a")
    assert has_room
    assert waiting[1].is_closed
    assert not any(connection.is_closed for connection in (working, waiting[0], other, newest))
    assert len(table) == 4


def test_connections_at_work_are_never_closed() -> None:
    table = ConnectionTable(Limits(connections=100, client_connections=3))
    working = [add(table, "a", is_working=True)[0] for _ in range(3)]
    late, has_room = add(table, "a")
    assert not has_room
    latest, has_room = add(table, "a")  # the refused one is the first to go
    assert has_room
    assert late.is_closed
    assert not any(connection.is_closed for connection in (*working, latest))
    for connection in (*working, late, latest):
        table.remove(connection)
        table.remove(connection)
    assert len(table) == 0


def test_a_full_table_takes_from_the_client_with_the_most_waiting() -> None:
    table = ConnectionTable(Limits(connections=6, client_connections=5))
    first, _ = add(table, "modest")
    greedy = [add(table, "greedy")[0] for _ in range(5)]
    new, has_room = add(table, "new")
    assert has_room
    assert [connection.is_closed for connection in greedy] == [True, False, False, False, False]
    assert not first.is_closed
    assert not new.is_closed
    full = ConnectionTable(Limits(connections=2, client_connections=5))
    assert [add(full, name, is_working=True)[1] for name in "abc"] == [True, True, False]


@pytest.mark.parametrize("data", [b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_head_that_does_not_end(port: int, data: bytes) -> None:
    """Further bytes gain no time, and the client is told."""
    start = time.monotonic()
    with connect(port, data) as connection:
        connection.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() - start < 5:
            try:
                answer = connection.recv(4096)
            except TimeoutError:
                connection.sendall(b"x")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'{"error":"the headers did not arrive within 0.3 seconds"}' in answer
        assert b"x-frame-options: DENY" in answer
        assert 0.25 < time.monotonic() - start < 3


def test_a_silent_connection_is_closed_without_a_word(port: int) -> None:
    with connect(port) as connection:
        assert read_to_end(connection) == b""


def test_a_body_that_does_not_end(port: int) -> None:
    for start in (HEAD + b"Content-Length: 90\r\n\r\n{", HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
        with connect(port, start) as connection:
            answer = read_to_end(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'{"error":"the body did not arrive within 0.2 seconds"}' in answer


def test_a_refused_body_is_not_read_for_ever(port: int) -> None:
    with connect(port, HEAD + b"Content-Length: 99999999999\r\n\r\n{") as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")


def test_an_idle_connection_is_closed(port: int) -> None:
    with connect(port, post(json.dumps(QUERY).encode()) * 2) as connection:  # two requests on one connection
        assert read_to_end(connection).count(b"HTTP/1.1 200 ") == 2


def test_what_is_not_http_gets_one_line_of_json(port: int) -> None:
    for data in (
        b"\x16\x03\x01 nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /" + b"a" * 70_000,
    ):
        with connect(port) as connection:
            connection.sendall(data)
            answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b'{"error":"Invalid HTTP request received."}')


def test_half_open_connections_do_not_keep_others_waiting(folder: Path) -> None:
    """Far more than one client may hold: the oldest give way, and the queue does not count them."""
    limits = Limits(client_connections=20, queue=1)
    with serving(create_app([str(folder)], device="cpu", limits=limits), limits) as port, ExitStack() as stack:
        held = [stack.enter_context(connect(port, b"GET / HTTP/1.1\r\nHost: loc")) for _ in range(100)]
        start = time.monotonic()
        assert translate(port) == 200
        assert time.monotonic() - start < 2
        assert is_closed(held[0])  # before its time was over


def test_a_client_whose_requests_fill_its_share(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused with the time to retry; the others are not disturbed."""
    arrived, release = threading.Semaphore(0), threading.Event()
    encode, decode = ServedTranslator.encode, Translator.decode

    def counted(*arguments: Any) -> Any:
        arrived.release()
        return encode(*arguments)

    def slow(*arguments: Any) -> Any:
        release.wait(10)
        return decode(*arguments)

    monkeypatch.setattr(ServedTranslator, "encode", counted)
    monkeypatch.setattr(Translator, "decode", slow)
    limits = Limits(client_connections=3)
    with serving(create_app([str(folder)], device="cpu", limits=limits), limits) as port, ExitStack() as stack:
        request = post(json.dumps(QUERY).encode())
        working = [stack.enter_context(connect(port, request)) for _ in range(3)]
        assert all(arrived.acquire(timeout=10) for _ in working)
        with connect(port, request) as late:
            answer = read_to_end(late)
        release.set()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 2" in answer
        assert b'{"error":"too many connections are open: try again soon"}' in answer
        assert all(connection.recv(4096).startswith(b"HTTP/1.1 200 ") for connection in working)

"""The real command on loopback: two hundred clients at once, wrong input on the wire, a clean shutdown."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")
pytest.importorskip("uvicorn", reason="the explorer needs the extra 'app'")

from anyorder.app.server import SPARE_CONNECTIONS, create_app, make_server
from anyorder.cli import main
from anyorder.decoder import Decoder, load
from tests.app.servers import serving
from tests.conftest import toy_pairs
from tests.processes import Fork, wait_until

TEXTS = [source for source, _ in toy_pairs(200, seed=11)]


class Server:
    def __init__(self, port: int):
        self.port = port

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def post(self, path: str, **query: object) -> tuple[int, Any]:
        return self.request("POST", path, json.dumps({"model": "small", "task": "de-en", **query}).encode())


class Process(Server):
    """A server in its own process."""

    def __init__(self, process: "subprocess.Popen[str]", port: int):
        super().__init__(port)
        self.process = process

    @property
    def memory(self) -> float:
        """Its peak resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextmanager
def running(*arguments: object) -> Iterator[Process]:
    command = [sys.executable, "-m", "anyorder", "explore", "--port", "0", "--device", "cpu", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            line = process.stdout.readline()
            assert "http://127.0.0.1:" in line, line + process.stderr.read()
            yield Process(process, int(line.partition("http://127.0.0.1:")[2].split()[0]))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Process]:
    with running("--model", folder) as server:
        yield server


def test_two_hundred_at_once(server: Process, folder: Path) -> None:
    """Every client gets its own translation, and the memory is bounded."""
    orders = ["margin", "left-to-right"]
    server.post("/api/decode", text=TEXTS[0], orders=orders, length=7)
    before = server.memory

    def request(i: int) -> tuple[int, Any]:
        if i % 10 == 0:
            return server.post("/api/step", text=TEXTS[i], length=5, filled=[{"position": 2}], order="margin")
        return server.post("/api/decode", text=TEXTS[i], orders=orders, length=7)

    with ThreadPoolExecutor(200) as pool:
        responses = list(pool.map(request, range(200)))
    assert [status for status, _ in responses] == [200] * 200
    decoder = load(folder, device="cpu")
    for column, order in enumerate(orders):
        expected = [trajectory.text for trajectory in decoder.translate(TEXTS, "de-en", order, length="fixed:7")]
        for i, (_, body) in enumerate(responses):
            if i % 10:
                assert body["runs"][column]["text"] == expected[i]
    assert all(body["tokens"][2] for i, (_, body) in enumerate(responses) if i % 10 == 0)
    assert server.memory - before < 150


def test_wrong_input_on_the_wire(server: Server) -> None:
    assert server.request("POST", "/api/decode", b"{")[0] == 400
    for size in (17_000, 500_000):
        status, body = server.request("POST", "/api/decode", b" " * size)
        assert status == 413
        assert body == {"error": "the request is too large: its body may have 16384 bytes"}
    status, body = server.request("GET", "/api/models", Host="evil.example")
    assert status == 400
    assert "Host" in body["error"]
    assert server.request("GET", "/api/models")[0] == 200


def test_a_false_content_length_is_refused_unread(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"POST /api/decode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n{")
        assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_end_is_read_up_to_a_limit(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"POST /api/decode HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall((b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 65)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_request_without_a_host_is_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /api/models HTTP/1.0\r\n\r\n")
        response = read_to_end(connection)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"(Host header)" in response


@pytest.fixture
def impatient(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server that waits only a moment for a body."""
    monkeypatch.setattr("anyorder.app.security.BODY_TIMEOUT", 0.2)
    with serving(create_app([str(folder)], device="cpu")) as port:
        yield port


@pytest.mark.parametrize("start", [b"Content-Length: 90\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"])
def test_a_body_that_does_not_end(impatient: int, start: bytes) -> None:
    head = b"POST /api/step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", impatient), timeout=10) as connection:
        connection.sendall(head + start)
        response = read_to_end(connection)
    assert response.startswith(b"HTTP/1.1 408 ")
    assert response.endswith(b'{"error":"the body did not arrive within 0.2 seconds"}')


def read_to_end(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_uvicorn_s_limits(folder: Path, impatient: int) -> None:
    config = make_server(create_app([str(folder)], device="cpu"), queue_size=40).config
    assert config.limit_concurrency == 40 + SPARE_CONNECTIONS  # the queue refuses first
    for head in (b"\x16\x03\x01 nonsense\r\n\r\n", b"GET /" + b"a" * 20_000):
        with socket.create_connection(("127.0.0.1", impatient), timeout=10) as connection:
            connection.sendall(head)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_disconnected_clients_are_dropped_from_the_queue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, release, decoded = threading.Event(), threading.Event(), []
    decode = Decoder.decode

    def slow(self: Decoder, sentences: Any, **options: Any) -> Any:
        started.set()
        release.wait(10)
        decoded.extend(sentence.text for sentence in sentences)
        return decode(self, sentences, **options)

    monkeypatch.setattr(Decoder, "decode", slow)
    with serving(create_app([str(folder)], device="cpu")) as port:
        server = Server(port)
        query = {"model": "small", "task": "de-en", "orders": ["margin"], "length": 7}
        connections = []
        for text in TEXTS[:20]:
            body = json.dumps({**query, "text": text}).encode()
            head = "POST /api/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connections.append(socket.create_connection(("127.0.0.1", server.port)))
            connections[-1].sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert started.wait(10)
        assert server.request("GET", "/api/models")[0] == 200
        for connection in connections:
            connection.close()
        time.sleep(0.3)
        release.set()
        assert server.post("/api/decode", text=TEXTS[20], orders=["margin"], length=7)[0] == 200
    assert decoded == [TEXTS[0], TEXTS[20]]


def test_several_models_and_a_clean_shutdown(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    for file in folder.iterdir():
        (tmp_path / "copy" / file.name).symlink_to(file)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model: {folder},{tmp_path / 'copy'}\n")
    process = Fork("explore", "--port", 0, "--device", "cpu", "--config", recipe)
    wait_until(lambda: process.output().endswith("\n"))
    port = int(process.output().partition("http://127.0.0.1:")[2].split()[0])
    names = [info["name"] for info in Server(port).request("GET", "/api/models")[1]["models"]]
    assert names == ["small", "copy"]
    line = process.output()
    process.send_signal(signal.SIGINT)
    ended = process.wait(timeout=10)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, line, "")


def test_two_models_of_one_name(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "twin").symlink_to(folder)
    assert main(["explore", "--port", "0", "--model", str(folder), "--model", str(tmp_path / "twin")]) == 2
    expected = "anyorder explore: two models are called 'small': rename the folder of one\n"
    assert capsys.readouterr() == ("", expected)


def test_a_port_in_use(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--port", str(server.port)]) == 2
    error = capsys.readouterr().err
    assert f"--port {server.port}: cannot listen on 127.0.0.1" in error
    assert error.count("\n") == 1
    assert main(["explore", "--host", "no.such.host.invalid"]) == 2
    assert "--host no.such.host.invalid: no such host" in capsys.readouterr().err
    assert main(["explore", "--host", "a\u2028b"]) == 2
    assert "is not the name of a host" in capsys.readouterr().err

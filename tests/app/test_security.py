"""What the server accepts: its own names, and with the access token everything, without it nothing."""

import asyncio
import ipaddress
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from anyorder.app.security import AccessToken, RequestGuard, is_own_name, server_names
from anyorder.app.server import create_app
from anyorder.cli import main
from anyorder.errors import InputError

TOKEN = AccessToken("correct-horse-battery")
OTHER = AccessToken("another-horse-battery")
QUERY = {"model": "small", "task": "de-en", "text": "Der Hund.", "orders": ["margin"], "length": 2}


@pytest.fixture(scope="module")
def app(folder: Path) -> FastAPI:
    return create_app([str(folder)], device="cpu", token=TOKEN)


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app, base_url="http://localhost:8600")


def check_refused(response: Any) -> None:
    assert response.status_code == 401
    message = "this explorer needs its token: open the link that it printed when it started"
    assert response.json() == {"error": message}
    assert response.headers["www-authenticate"] == "Bearer"
    assert "set-cookie" not in response.headers


def test_without_the_token_no_route_gives_anything(app: FastAPI, client: TestClient) -> None:
    routes = [(method, route.path) for route in app.routes for method in route.methods]  # type: ignore[attr-defined]
    paths = {path for _, path in routes}
    assert {"/", "/api/models", "/api/decode", "/api/step", "/api/docs", "/api/openapi.json"} <= paths
    others = [("GET", "/nothing"), ("OPTIONS", "/api/decode"), ("DELETE", "/"), ("POST", "/api/models")]
    for method, path in [*routes, *others]:
        response = client.request(method, path, json=QUERY)
        if method == "HEAD":
            assert response.status_code == 401
        else:
            check_refused(response)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN.text[:-1]}"},
        {"Authorization": f"Bearer {TOKEN.text} x"},
        {"Authorization": f"Basic {TOKEN.text}"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"Cookie": f"{TOKEN.cookie_name}={OTHER.text}"},
        {"Cookie": f"{OTHER.cookie_name}={TOKEN.text}"},
        {"Cookie": f"{TOKEN.cookie_name}="},
        {"X-Token": TOKEN.text},
    ],
)
def test_wrong_credentials(client: TestClient, headers: dict[str, str]) -> None:
    check_refused(client.get("/api/models", headers=headers))


@pytest.mark.parametrize(
    "query", ["token=", "token", f"Token={TOKEN.text}", f"token={TOKEN.text}x", "token=%ff%00", "token=%ED%A0%80"]
)
def test_wrong_addresses(client: TestClient, query: str) -> None:
    check_refused(client.get(f"/?{query}"))


def test_a_body_is_not_read_without_the_token(client: TestClient) -> None:
    check_refused(client.post("/api/decode", content=b"{", headers={"Content-Type": "text/plain"}))
    check_refused(client.post("/api/decode", content=b" " * 3_000_000))


def test_a_bearer_token(client: TestClient) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} {TOKEN.text}"}
        response = client.post("/api/decode", json=QUERY, headers=headers)
        assert response.status_code == 200
        assert "set-cookie" not in response.headers
    check_refused(client.get("/"))


def test_the_link_is_needed_once(client: TestClient) -> None:
    response = client.get("/", params={"token": TOKEN.text})
    assert response.status_code == 200
    assert response.text.startswith("<!doctype html>")
    assert response.headers["set-cookie"] == f"{TOKEN.cookie_name}={TOKEN.text}; Path=/; HttpOnly; SameSite=Strict"
    response = client.post("/api/decode", json=QUERY)
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    client.cookies.clear()
    check_refused(client.get("/api/models"))


def test_the_cookie_is_secure_behind_tls(app: FastAPI) -> None:
    client = TestClient(app, base_url="https://localhost")
    assert client.get("/", params={"token": TOKEN.text}).headers["set-cookie"].endswith("; Secure")


def test_a_token_does_not_replace_the_host_check(client: TestClient) -> None:
    response = client.get("/", params={"token": TOKEN.text}, headers={"Host": "evil.example"})
    assert response.status_code == 400


def test_generated_tokens_are_long_and_different() -> None:
    tokens = [AccessToken() for _ in range(5)]
    assert len({token.text for token in tokens}) == 5
    assert {len(token.text) for token in tokens} == {32}
    assert tokens[0].text not in repr(tokens[0])


@pytest.mark.parametrize(
    "text", ["", "short", "a" * 15, "a" * 201, "sixteen characters", "sixteen;characters", "ä" * 20, "a" * 16 + "\n"]
)
def test_tokens_that_no_link_or_cookie_can_carry(text: str) -> None:
    with pytest.raises(InputError, match="token must have 16 to 200 letters"):
        AccessToken(text)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: others can reach it: add --token (or --token none to serve everyone)"),
        (["--host", "::"], "--host ::: others can reach it: add --token (or --token none to serve everyone)"),
        (["--token", "short"], "--token must have 16 to 200 letters, digits or . _ ~ - (nothing else)"),
        (["--queue", "0"], "--queue 0: expected a number of at least 1 and at most 100000"),
    ],
)
def test_the_command_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--port", "0", *arguments]) == 2
    assert capsys.readouterr() == ("", f"anyorder explore: {expected}\n")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[FastAPI]:
    """The apps that the command would serve."""
    apps: list[FastAPI] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server, **_: apps.append(server.config.app))
    return apps


@pytest.mark.parametrize("given", [[], [TOKEN.text]])
def test_a_token_is_part_of_the_printed_link(
    folder: Path, served: list[FastAPI], given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["explore", "--port", "0", "--device", "cpu", "--host", "0.0.0.0", "--model", str(folder), "--token"]
    assert main([*arguments, *given]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    [token] = re.findall(r"^anyorder explore: http://\S+:\d+/\?token=(\S+)  \(Ctrl-C stops it\)\n$", out)
    assert token == given[0] if given else len(token) == 32
    client = TestClient(served[0], base_url="http://localhost")
    check_refused(client.get("/api/models"))
    assert client.get("/api/models", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_all_bundled_models_are_served_by_default(served: list[FastAPI]) -> None:
    assert main(["explore", "--port", "0", "--device", "cpu"]) == 0
    infos = TestClient(served[0], base_url="http://localhost").get("/api/models").json()["models"]
    assert [info["name"] for info in infos] == ["de-en", "multi", "sudoku-4x4"]
    assert [len(info["orders"]) for info in infos] == [2, 6, 1]


def test_an_open_address_without_a_token(
    folder: Path, served: list[FastAPI], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--port", "0", "--device", "cpu", "--host", "0.0.0.0", "--model", str(folder), "--token", "none"]
    assert main(["explore", *arguments]) == 0
    assert capsys.readouterr().err == "anyorder explore: anyone who reaches 0.0.0.0 can use it; there is no token\n"
    assert TestClient(served[0], base_url="http://localhost").get("/api/models").status_code == 200


LOCAL = server_names("127.0.0.1")
OWN = ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8600", "[::1]", "[::1]:65535", "[0:0:0:0:0:0:0:1]:80"]
FOREIGN = [
    "", " ", "localhost:", "localhost:8e1", "localhost:-1", "localhost:80:80", "localhost:٣", "localhost.", "localhost. ",
    " localhost", "localhost\t", "localhost\n", "me@localhost", "me:secret@localhost", "localhost@evil.example", "localhost/",
    "localhost?", "localhost#", "localhost,localhost", "localhost\\", "löcalhost", "ｌocalhost", "::1", "[::1", "::1]", "[::1]x",
    "[::1%25lo]", "[localhost]", "[]", "127.1", "127.0.0.1.", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "127.0.0.01",
    "evil.example", "evil.example:8600", "localhost.evil.example", "127.0.0.1.evil.example", "*", "a" * 70_000,
]  # fmt: skip


@pytest.mark.parametrize("header", OWN)
def test_own_names(header: str) -> None:
    assert is_own_name(header, LOCAL)


@pytest.mark.parametrize("header", FOREIGN)
def test_every_other_name_is_refused(header: str) -> None:
    """Such as a foreign name that resolves to this machine."""
    assert not is_own_name(header, LOCAL)
    assert not is_own_name(header, server_names("::"))


@generated(st.ip_addresses(v=6), st.integers(1, 65535))
def test_addresses(address: ipaddress.IPv6Address, port: int) -> None:
    """An address is the same in every spelling, and any is allowed where a server is bound to all."""
    assert is_own_name(f"[{address.exploded.upper()}]:{port}", server_names(str(address)))
    assert is_own_name(f"[{address}]:{port}", server_names("::"))
    assert is_own_name(f"[{address}]", LOCAL) == (str(address) == "::1")


def test_names_of_a_server() -> None:
    assert is_own_name("Box.example:80", server_names("box.example"))
    assert not is_own_name("box.example", server_names("0.0.0.0"))
    for everywhere in ("0.0.0.0", "::"):
        assert is_own_name("192.0.2.7:8600", server_names(everywhere))
    assert not is_own_name("192.0.2.7", server_names("192.0.2.8"))


def test_an_error_after_a_response_began_is_not_a_second_response() -> None:
    async def fails_late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message["type"])

    sent: list[str] = []
    scope = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    with pytest.raises(ZeroDivisionError), ThreadPoolExecutor(1) as executor:
        executor.submit(asyncio.run, RequestGuard(fails_late, "127.0.0.1")(scope, receive, send)).result()
    assert sent == ["http.response.start"]

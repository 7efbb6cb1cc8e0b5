"""The access token: with it everything, without it nothing."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from anyorder.app.auth import AccessToken
from anyorder.app.server import create_app
from anyorder.cli import main
from anyorder.errors import InputError

TOKEN = AccessToken("correct-horse-battery")
OTHER = AccessToken("another-horse-battery")
QUERY = {"model": "small", "direction": "de-en", "text": "Der Hund.", "orders": ["margin"], "length": 2}


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
    assert {"/", "/api/models", "/api/translate", "/api/step", "/api/docs", "/api/openapi.json"} <= paths
    others = [("GET", "/nothing"), ("OPTIONS", "/api/translate"), ("DELETE", "/"), ("POST", "/api/models")]
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
    check_refused(client.post("/api/translate", content=b"{", headers={"Content-Type": "text/plain"}))
    check_refused(client.post("/api/translate", content=b" " * 3_000_000))


def test_a_bearer_token(client: TestClient) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} {TOKEN.text}"}
        response = client.post("/api/translate", json=QUERY, headers=headers)
        assert response.status_code == 200
        assert "set-cookie" not in response.headers
    check_refused(client.get("/"))


def test_the_link_is_needed_once(client: TestClient) -> None:
    response = client.get("/", params={"token": TOKEN.text})
    assert response.status_code == 200
    assert response.text.startswith("<!doctype html>")
    assert response.headers["set-cookie"] == f"{TOKEN.cookie_name}={TOKEN.text}; Path=/; HttpOnly; SameSite=Strict"
    response = client.post("/api/translate", json=QUERY)
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
    tokens = [AccessToken.generate() for _ in range(5)]
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
        (["--client-connections", "0"], "--client-connections 0: expected a number of at least 1 and at most 100000"),
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


def test_an_open_address_without_a_token(
    folder: Path, served: list[FastAPI], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--port", "0", "--device", "cpu", "--host", "0.0.0.0", "--model", str(folder), "--token", "none"]
    assert main(["explore", *arguments]) == 0
    assert capsys.readouterr().err == "anyorder explore: anyone who reaches 0.0.0.0 can use it; there is no token\n"
    assert TestClient(served[0], base_url="http://localhost").get("/api/models").status_code == 200

"""The JSON API in process: what it answers, and what it refuses."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")

from fastapi.testclient import TestClient

from anyorder.app.batching import BatchQueue, Task
from anyorder.app.csp import inline_sources
from anyorder.app.middleware import Limits, RefusedError, hosts_of
from anyorder.app.server import create_app
from anyorder.translator import Translator, load
from tests.conftest import toy_pairs

TEXTS = [source for source, _ in toy_pairs(8, seed=3)]
TEXT = TEXTS[0]


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(create_app([str(folder)], device="cpu"), base_url="http://localhost:8600") as client:
        yield client


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return load(folder, "cpu")


def translate(client: TestClient, **changes: object) -> Any:
    query = {"model": "small", "direction": "de-en", "text": TEXT, "orders": ["margin"], "length": "predicted"}
    return client.post("/api/translate", json={**query, **changes})


def step(client: TestClient, *positions: int, **changes: object) -> Any:
    query = {"model": "small", "direction": "de-en", "text": TEXT, "length": 6, "order": "margin"}
    return client.post("/api/step", json={**query, "filled": [{"position": i} for i in positions], **changes})


def refused(response: Any, status: int, expected: str) -> None:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    line = response.json()["error"]
    assert expected in line
    assert "\n" not in line


def test_models(client: TestClient) -> None:
    [card] = client.get("/api/models").json()["models"]
    assert card["name"] == "small"
    assert card["directions"] == ["de-en", "en-de"]
    assert card["orders"][:2] == ["learned", "learned:other"]
    assert {"margin", "left-to-right", "uniform"} <= set(card["orders"])
    assert "learned" in card["orders_of"]["de-en"]
    assert "learned" not in card["orders_of"]["en-de"]
    assert card["lengths"] == ["predicted", "candidates:4"]
    assert card["longest"] == 62


@pytest.mark.parametrize("length", ["predicted", "candidates:4", 9])
def test_translations_are_the_library_s(client: TestClient, translator: Translator, length: str | int) -> None:
    orders = ["learned", "left-to-right"] if length != 9 else ["learned", "margin", "outer-in:stride=2", "uniform"]
    runs = translate(client, orders=orders, length=length).json()["runs"]
    assert [run["order"] for run in runs] == orders
    for run in runs:
        told = f"fixed:{length}" if isinstance(length, int) else length
        [made] = translator.translate([TEXT], "de-en", run["order"], length=told)
        assert run == {name: getattr(made, name) for name in run}
        assert f"|length:{told}|" in run["signature"]


def test_budgets(client: TestClient) -> None:
    [run] = translate(client, budget=4, length=10).json()["runs"]
    assert max(run["steps"]) == 3
    assert translate(client, budget="4", length=10).json()["runs"] == [run]


@pytest.mark.parametrize("order", ["learned", "margin", "left-to-right", "uniform"])
def test_every_step_of_a_run_is_found_again(client: TestClient, order: str) -> None:
    [run] = translate(client, orders=[order], length=6).json()["runs"]
    chosen = sorted(range(6), key=lambda i: run["steps"][i])
    for count in range(7):
        state = step(client, *chosen[:count], order=order).json()
        there = [at <= count for at in run["steps"]]
        assert state["tokens"] == [token if here else None for token, here in zip(run["tokens"], there, strict=True)]
        assert state["steps"] == [at if here else None for at, here in zip(run["steps"], there, strict=True)]
        assert state["logprobs"] == [p if here else None for p, here in zip(run["logprobs"], there, strict=True)]
        assert state["next"]["position"] == (chosen[count] if count < 6 else None)
        assert state["next"]["policy"] == (order == "learned")
        assert [score is None for score in state["next"]["scores"]] == there
        assert [here is None for here in state["candidates"]] == there
        assert state["text"] == (run["text"] if count == 6 else None)
    assert {len(one) for one in step(client).json()["candidates"]} == {5}


def test_without_an_order(client: TestClient) -> None:
    state = step(client, 2, order=None).json()
    assert state["next"] == {"position": None, "scores": [None] * 6, "policy": False}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": "large"}, "unknown model 'large': (known: small)"),
        ({"direction": "de-fr"}, "unknown direction 'de-fr'"),
        ({"text": "a" * 401}, "text: String should have at most 400 characters"),
        ({"text": "Ж" * 80}, "subwords, the model has room for 62"),
        ({"text": " \u2028\t "}, "the text is empty"),
        ({"text": None}, "text: "),
        ({"orders": []}, "orders: "),
        ({"orders": ["margin"] * 7}, "orders: List should have at most 6 items"),
        ({"orders": ["margn"]}, "unknown order 'margn': did you mean 'margin'?"),
        ({"orders": ["outer-in:stride=0"]}, "order 'outer-in:stride=0': stride 0 is not a whole number"),
        ({"orders": ["learned:/etc"]}, "unknown order 'learned:/etc'"),
        ({"orders": ["learned:../../small/learned/default"]}, "unknown order"),
        ({"orders": ["learned"], "direction": "en-de"}, "unknown order 'learned'"),
        ({"length": "gold"}, "unknown length 'gold'"),
        ({"length": "candidates:4000"}, "unknown length"),
        ({"length": 0}, "length 0: expected a number from 1 to 62"),
        ({"length": 63}, "length 63: expected a number from 1 to 62"),
        ({"length": True}, "length"),
        ({"length": 3.5}, "length"),
        ({"budget": 0}, "unknown budget '0'"),
        ({"budget": "²"}, "unknown budget"),
        ({"seed": 4}, "seed: Extra inputs are not permitted"),
    ],
)
def test_wrong_questions(client: TestClient, changes: dict[str, object], expected: str) -> None:
    refused(translate(client, **changes), 422, expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"filled": [{"position": 6}]}, "position 6: a target of length 6 has positions 0 to 5"),
        ({"filled": [{"position": -1}]}, "position -1"),
        ({"filled": [{"position": 1}, {"position": 1}]}, "position 1 is already filled"),
        ({"filled": [{"position": "1"}]}, "filled.0.position: Input should be a valid integer"),
        ({"filled": [1]}, "filled.0: "),
        ({"length": "predicted"}, "length: Input should be a valid integer"),
        ({"length": 0}, "length 0"),
        ({"order": "learned:/etc"}, "unknown order"),
    ],
)
def test_wrong_steps(client: TestClient, changes: dict[str, object], expected: str) -> None:
    refused(step(client, **changes), 422, expected)


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"", 422, "the body: "),
        (b"[]", 422, "the body: "),
        (b"null", 422, "the body: "),
        (b"\xff\xfe", 400, ""),
        (b"[" * 16_000, 400, ""),
        (b'{"length": ' + b"9" * 10_000 + b"}", 400, ""),
        (b'{"model": NaN}', 422, "model: "),
        (b" " * (16 * 1024 + 1), 413, "the request is too large: its body may have 16384 bytes"),
        (b" " * 3_000_000, 413, "too large"),
    ],
)
def test_wrong_bodies(client: TestClient, body: bytes, status: int, expected: str) -> None:
    response = client.post("/api/translate", content=body, headers={"Content-Type": "application/json"})
    refused(response, status, expected)


def test_half_a_character_is_refused(client: TestClient) -> None:
    body = json.dumps({"model": "small", "direction": "de-en", "text": "\ud800", "orders": ["margin"]})
    response = client.post("/api/translate", content=body, headers={"Content-Type": "application/json"})
    refused(response, 422, "text: ")


def test_a_body_without_its_length_is_counted(client: TestClient) -> None:
    pieces = (b" " * 1000 for _ in range(20))
    response = client.post("/api/translate", content=pieces, headers={"Content-Type": "application/json"})
    refused(response, 413, "too large")


def test_other_pages_cannot_post(client: TestClient) -> None:
    """What a browser sends elsewhere without asking is refused; and nobody who asks is granted anything."""
    response = client.post("/api/translate", content=b"{}", headers={"Content-Type": "text/plain"})
    refused(response, 415, "application/json")
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    response = client.options("/api/translate", headers=asked)
    refused(response, 405, "Method Not Allowed")
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8600", "localhost.evil.example", "", "127.0.0.1.evil.example"]
)
def test_rebound_names_are_refused(client: TestClient, host: str) -> None:
    refused(client.get("/api/models", headers={"Host": host}), 400, "Host")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8600", "LOCALHOST:1", "[::1]:8600"])
def test_own_names_are_not(client: TestClient, host: str) -> None:
    assert client.get("/api/models", headers={"Host": host}).status_code == 200


def test_names_of_a_server() -> None:
    assert "*" not in hosts_of("127.0.0.1")
    assert "box.example" in hosts_of("box.example")
    assert "*" in hosts_of("0.0.0.0")
    assert "*" in hosts_of("::")


@pytest.mark.parametrize("path", ["/api/models", "/api/nothing", "/api/docs", "/api/openapi.json"])
def test_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in headers["content-security-policy"]


def test_other_paths(client: TestClient) -> None:
    refused(client.get("/nothing"), 404, "Not Found")
    refused(client.get("/docs"), 404, "Not Found")
    refused(client.get("/api/translate"), 405, "Method Not Allowed")
    assert client.get("/favicon.ico").status_code == 204


def test_the_api_describes_itself(client: TestClient) -> None:
    schema = client.get("/api/openapi.json").json()
    assert set(schema["paths"]) == {"/api/models", "/api/translate", "/api/step"}
    for path in ("/api/translate", "/api/step"):
        answers = schema["paths"][path]["post"]["responses"]
        for status in ("400", "413", "415", "422", "503"):
            assert answers[status]["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")
    page = client.get("/api/docs").text
    assert "POST /api/step" in page
    assert not re.search(r"<script|https?://", page)


def test_nothing_is_reported_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    switches = getattr(create_app([str(folder)], device="cpu"), "_telemetry", None)
    if switches is None:
        pytest.skip("this FastAPI reports nothing")
    assert not [name for name, value in switches.items() if value]


def test_text_is_never_markup(client: TestClient) -> None:
    """Answers are JSON and say so; whatever the text is, it comes back as text or not at all."""
    for response in (translate(client, text="<script>alert(1)</script>"), translate(client, orders=["<script>"])):
        assert response.headers["content-type"] == "application/json"
        assert response.status_code in (200, 422)


def test_the_page_s_own_scripts_are_allowed_by_hash(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page comes from the report; this is about what the server adds to it."""
    text = "<!doctype html><style>p{color:red}</style><p>&lt;</p><script>a < b</script><script src=x.js></script>"
    monkeypatch.setattr("anyorder.app.server.live_page", lambda: text)
    response = client.get("/")
    assert response.text == text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert policy.endswith(inline_sources(text))
    assert "; script-src 'self' 'sha256-7+Hlx2Vr8LqQcasoFPqn2AmTTgoMPYgL6CInd4G5SiI='" in policy
    assert policy.count("sha256-") == 2
    assert "unsafe" not in policy


def test_a_mistake_of_ours_is_one_line_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyorder.app.model_registry.ServedModel.encode", lambda *_: 1 / 0)
    response = translate(client)
    refused(response, 500, "the server made a mistake")
    assert "ZeroDivision" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


def test_when_the_line_is_full(folder: Path) -> None:
    """One request is worked on, one waits, and a third is sent away with a hint when to come again."""
    held, release = threading.Event(), threading.Event()
    app = create_app([str(folder)], device="cpu", limits=Limits(queue=2))
    with TestClient(app, base_url="http://localhost") as client, pytest.MonkeyPatch.context() as patch:
        decode = Translator.decode

        def slow(*given: Any) -> Any:
            held.set()
            release.wait(10)
            return decode(*given)

        patch.setattr(Translator, "decode", slow)
        answers: list[Any] = []

        def ask() -> None:
            while (answer := translate(client)).status_code == 503:  # the third was just there, and took its place
                time.sleep(0.01)
            answers.append(answer)

        waiting = [threading.Thread(target=ask) for _ in range(2)]
        for thread in waiting:
            thread.start()
        held.wait(10)
        deadline = time.monotonic() + 10
        while (third := translate(client, orders=["no-such"])).status_code != 503 and time.monotonic() < deadline:
            time.sleep(0.01)
        refused(third, 503, "2 requests are waiting already")
        assert int(third.headers["retry-after"]) > 0
        release.set()
        for thread in waiting:
            thread.join()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert translate(client).status_code == 200


def test_whoever_waits_too_long_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translator, "decode", lambda *_: time.sleep(0.5))
    app = create_app([str(folder)], device="cpu", limits=Limits(patience=0.05))
    with TestClient(app, base_url="http://localhost") as client:
        response = translate(client)
        refused(response, 503, "no result within 0.05 seconds")
        assert "retry-after" in response.headers


async def _gather(desk: BatchQueue, tasks: list[Task[int, int]]) -> list[Any]:
    return await asyncio.gather(*(desk.ask([task]) for task in tasks), return_exceptions=True)


def test_what_is_alike_goes_together() -> None:
    groups: list[list[int]] = []
    first = threading.Event()

    def run(items: Any) -> list[int]:
        groups.append(list(items))
        if items[0] == 0:
            first.wait(5)
        if 13 in items:
            raise RefusedError(500, "unlucky")
        return [-item for item in items]

    desk = BatchQueue(Limits(tokens=40))
    tasks = [Task(run, 0)]
    tasks += [Task(run, i, alike="odd" if i % 2 else "even", cost=10) for i in range(1, 12)]
    tasks += [Task(run, 13), Task(run, 14), Task(run, 15)]
    threading.Timer(0.2, first.set).start()
    results = asyncio.run(_gather(desk, tasks))
    assert results[:12] == [[-i] for i in range(12)]
    assert isinstance(results[12], RefusedError)
    assert results[13:] == [[-14], [-15]]  # a failure is nobody else's
    assert groups == [[0], [1, 3, 5, 7], [2, 4, 6, 8], [9, 11], [10], [13], [14], [15]]
    desk.close()
    with pytest.raises(RefusedError, match="closing"):
        asyncio.run(desk.ask([Task(run, 1)]))


def test_whoever_leaves_makes_room() -> None:
    """DecodeBatch that nobody waits for any more is not done, and does not lie around."""
    done: list[int] = []
    release = threading.Event()

    def run(items: Any) -> list[int]:
        release.wait(5)
        done.extend(items)
        return list(items)

    desk = BatchQueue(Limits())

    async def leave() -> None:
        stays = asyncio.ensure_future(desk.ask([Task(run, 0)]))
        leaves = [asyncio.ensure_future(desk.ask([Task(run, i), Task(run, -i)])) for i in range(1, 50)]
        await asyncio.sleep(0.05)
        for task in leaves:
            task.cancel()
        await asyncio.gather(*leaves, return_exceptions=True)
        assert len(desk._waiting) == 0
        release.set()
        assert await stays == [0]

    asyncio.run(leave())
    desk.close()
    assert done == [0]

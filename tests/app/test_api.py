"""The JSON API in process: its responses and its errors."""

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the explorer needs the extra 'app'")

from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException

from anyorder.app.batching import BatchQueue, QueuedCall
from anyorder.app.schemas import DecodeQuery
from anyorder.app.served_model import ServedModel
from anyorder.app.server import create_app
from anyorder.decoder import Decoder, load
from anyorder.decoding.config import DEFAULT_LENGTH
from anyorder.decoding.schedules import make_schedule
from anyorder.decoding.trajectory import Trajectory
from anyorder.evaluation.bleu import sentence_bleu
from tests.conftest import toy_pairs

TEXTS = [source for source, _ in toy_pairs(8, seed=3)]
TEXT = TEXTS[0]


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(create_app([str(folder)], device="cpu"), base_url="http://localhost:8600") as client:
        yield client


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return load(folder, device="cpu")


def translate(client: TestClient, **changes: object) -> Any:
    query = {"model": "small", "task": "de-en", "text": TEXT, "orders": ["margin"], "length": "predicted"}
    return client.post("/api/decode", json={**query, **changes})


def step(client: TestClient, *positions: int, **changes: object) -> Any:
    query = {"model": "small", "task": "de-en", "text": TEXT, "length": 6, "order": "margin"}
    return client.post("/api/step", json={**query, "filled": [{"position": i} for i in positions], **changes})


def assert_library_s(run: dict[str, Any], trajectory: Trajectory) -> None:
    """Everything but the verdict, which needs a reference."""
    assert [run.pop(name) for name in ("bleu", "solved", "wrong")] == [None] * 3
    assert run == {name: getattr(trajectory, name) for name in run}


def check_error(response: Any, status: int, expected: str) -> None:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    message = response.json()["error"]
    assert expected in message
    assert "\n" not in message


def test_models(client: TestClient) -> None:
    response = client.get("/api/models").json()
    [info] = response["models"]
    assert info["name"] == "small"
    assert list(info["orders"]) == ["de-en", "en-de"]
    assert info["orders"]["de-en"][0] == "learned"
    assert info["orders"]["en-de"][0] == "learned:other"
    assert "learned" not in info["orders"]["en-de"]
    for orders in info["orders"].values():
        assert {"margin", "left-to-right", "uniform"} <= set(orders)
    assert info["lengths"] == [DEFAULT_LENGTH, "predicted"]
    assert info["longest"] == 62


def test_what_is_offered(client: TestClient, decoder: Decoder) -> None:
    """Every name is one that the library knows, with a label that differs from the others; the default is first."""
    [info] = client.get("/api/models").json()["models"]
    for field, default in (("schedule", "one"), ("revision", "none")):
        offered = info[f"{field}s"]
        assert offered[0]["name"] == default
        assert len({choice["name"] for choice in offered}) == len({choice["label"] for choice in offered})
        for choice in offered:
            [run] = translate(client, length=3, **{field: choice["name"]}).json()["runs"]
            assert (
                f"|{field}:{make_schedule(choice['name']).name if field == 'schedule' else choice['name']}|"
                in run["signature"]
            )
    usual = {choice["name"]: choice["usual_schedule"] for choice in info["revisions"]}
    assert usual == {"none": "one", "mask-predict:4": "steps:1", "p2:4": "steps:1", "gibbs": "one"}
    groups = [choice["group"] for choice in info["schedules"]]
    assert groups == sorted(groups, key=groups.index)  # those of a group stand together


@pytest.mark.parametrize("revision", ["mask-predict:4", "p2:2", "gibbs"])
@pytest.mark.parametrize("schedule", ["auto", "2"])
def test_revisions_are_the_library_s(client: TestClient, decoder: Decoder, revision: str, schedule: str) -> None:
    [run] = translate(client, revision=revision, schedule=schedule, length=6).json()["runs"]
    [trajectory] = decoder.translate(TEXT, "de-en", "margin", schedule=schedule, revision=revision, length="fixed:6")
    assert trajectory.writes is not None
    assert run.pop("writes") == [asdict(write) for write in trajectory.writes]
    assert_library_s(run, trajectory)
    assert len(trajectory.writes) > 6


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"schedule": "linear:6"}, {"schedule": "T steps; after step t, n (1 - t/T) of n positions are masked."}),
        ({"schedule": 3}, {"schedule": "3 positions per step."}),
        ({"schedule": " one "}, {"schedule": "One position per step."}),
        ({"schedule": "auto"}, {"schedule": "One position per step."}),
        ({"revision": "none"}, {"revision": "What is filled stays.", "usual_schedule": "one"}),
        ({}, {}),
    ],
)
def test_a_name_is_checked(client: TestClient, query: dict[str, object], expected: dict[str, str]) -> None:
    response = client.post("/api/check", json={"model": "small", **query}).json()
    assert response == {"schedule": None, "revision": None, "usual_schedule": None, **expected}


def test_auto_is_the_schedule_of_the_revision(client: TestClient) -> None:
    query = {"model": "small", "schedule": "auto", "revision": "remdm:7,0.2"}
    response = client.post("/api/check", json=query).json()
    assert response["usual_schedule"] == "linear:7"
    assert response["schedule"] == "T steps; after step t, n (1 - t/T) of n positions are masked."
    assert response["revision"].startswith("After step t of T, tokens of earlier steps at random")


WRONG_NAMES = [
    ({"schedule": "cosin:8"}, "unknown schedule 'cosin': did you mean 'cosine'?"),
    ({"schedule": "blocks:8+blocks:2"}, "schedule 'blocks:8+blocks:2': there are no blocks inside blocks"),
    ({"schedule": 63}, "schedule 63: expected at most 62 positions per step"),
    ({"revision": "gibs"}, "unknown revision 'gibs': did you mean 'gibbs'?"),
    ({"revision": "p2:4,-1"}, "revision 'p2:4,-1': eta -1"),
    ({"revision": "gibbs:11"}, "revision gibbs:11: may take 744 steps; at most 682 are made here"),
    ({"revision": 4}, "revision: "),
]


@pytest.mark.parametrize(("names", "expected"), WRONG_NAMES)
def test_wrong_names(client: TestClient, names: dict[str, object], expected: str) -> None:
    check_error(client.post("/api/check", json={"model": "small", **names}), 422, expected)
    check_error(translate(client, **names), 422, expected)


@pytest.mark.parametrize("length", ["predicted", "candidates:4", 9])
def test_translations_are_the_library_s(client: TestClient, decoder: Decoder, length: str | int) -> None:
    orders = ["learned", "left-to-right"] if length != 9 else ["learned", "margin", "outer-in:stride=2", "uniform"]
    runs = translate(client, orders=orders, length=length).json()["runs"]
    assert [run["order"] for run in runs] == orders
    for run in runs:
        rule = f"fixed:{length}" if isinstance(length, int) else length
        [trajectory] = decoder.translate([TEXT], "de-en", run["order"], length=rule)
        assert_library_s(run, trajectory)
        assert f"|length:{rule}|" in run["signature"]


def test_the_cost_of_a_call_is_what_is_decoded(decoder: Decoder) -> None:
    """A rule with several candidates counts each of them, because the lengths are not known yet."""
    served = ServedModel("small", decoder)
    query = {"model": "small", "task": "de-en", "text": TEXT, "orders": ["margin"]}
    subwords = len(decoder.with_task("de-en").canvas(TEXT, 9).source)
    for length, cost in ((9, 9), ("predicted", subwords + 2), ("candidates:4", 4 * (subwords + 2))):
        [call], _ = served.decode(DecodeQuery(**query, length=length))
        assert call.cost == cost


def test_the_default_length_and_schedule_are_the_library_s(client: TestClient, decoder: Decoder) -> None:
    query = {"model": "small", "task": "de-en", "text": TEXT, "orders": ["margin"]}
    [run] = client.post("/api/decode", json=query).json()["runs"]
    [trajectory] = decoder.translate(TEXT, "de-en", "margin")
    assert run["signature"] == trajectory.signature
    assert run["text"] == trajectory.text


def test_schedules(client: TestClient, decoder: Decoder) -> None:
    [run] = translate(client, schedule=4, length=10).json()["runs"]
    assert max(run["steps"]) == 3
    assert translate(client, schedule="4", length=10).json()["runs"] == [run]
    [run] = translate(client, schedule="threshold:0.2", length=10).json()["runs"]
    [trajectory] = decoder.translate(TEXT, "de-en", "margin", schedule="threshold:0.2", length="fixed:10")
    assert run["steps"] == trajectory.steps


@pytest.mark.parametrize("reference", ["The dog sees the house.", " ", ""])
def test_a_reference_gives_a_sentence_bleu(client: TestClient, reference: str) -> None:
    runs = translate(client, orders=["margin", "uniform"], length=6, reference=reference).json()["runs"]
    state = step(client, *range(6), reference=reference).json()
    for result in (*runs, state):
        expected = round(sentence_bleu(result["text"], reference), 2) if reference.strip() else None
        assert result["bleu"] == expected
    assert step(client, 1, reference=reference).json()["bleu"] is None
    [run] = translate(client, length=6, reference=runs[0]["text"]).json()["runs"]
    assert run["bleu"] == 100


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
        assert state["given"] == [False] * 6
    assert {len(candidates) for candidates in step(client).json()["candidates"]} == {5}
    assert {len(candidates) for candidates in step(client, num_candidates=9).json()["candidates"]} == {9}


def test_a_state_of_a_parallel_run_is_found_again_by_its_tokens(client: TestClient) -> None:
    [run] = translate(client, schedule=2, length=6).json()["runs"]
    filled = [{"position": i, "token": run["tokens"][i]} for i in range(6) if run["steps"][i] <= 2]
    state = step(client, filled=filled).json()
    after = [i for i in range(6) if run["steps"][i] == 3]
    assert [state["candidates"][i][0]["token"] for i in after] == [run["tokens"][i] for i in after]
    assert state["next"]["position"] in after


def test_a_chosen_token(client: TestClient) -> None:
    candidate = step(client, 4).json()["candidates"][1][2]
    state = step(client, filled=[{"position": 4}, {"position": 1, "token": candidate["token"]}]).json()
    assert state["tokens"][1] == candidate["token"]
    assert state["steps"] == [None, 2, None, None, 1, None]
    assert state["given"] == [False, True, False, False, False, False]
    assert state["logprobs"][1] == pytest.approx(math.log(candidate["p"]), abs=1e-4)


def test_without_an_order(client: TestClient) -> None:
    state = step(client, 2, order=None).json()
    assert state["next"] == {"position": None, "scores": [None] * 6, "policy": False}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": "large"}, "unknown model 'large' (known: small)"),
        ({"task": "de-fr"}, "unknown task 'de-fr'"),
        ({"text": "a" * 401}, "text: String should have at most 400 characters"),
        ({"text": "Ж" * 80}, "subwords; the model has room for 62"),
        ({"text": " \u2028\t "}, "the text is empty"),
        ({"text": None}, "text: "),
        ({"orders": []}, "orders: "),
        ({"orders": ["margin"] * 7}, "orders: List should have at most 6 items"),
        ({"orders": ["margn"]}, "unknown order 'margn': did you mean 'margin'?"),
        ({"orders": ["outer-in:stride=0"]}, "order 'outer-in:stride=0': stride 0 is not a whole number"),
        ({"orders": ["learned:/etc"]}, "unknown order 'learned:/etc'"),
        ({"orders": ["learned:../../small/learned/default"]}, "unknown order"),
        ({"orders": ["learned"], "task": "en-de"}, "unknown order 'learned'"),
        ({"length": "gold"}, "unknown length 'gold'"),
        ({"length": "candidates:4000"}, "unknown length"),
        ({"length": 0}, "length 0: expected a number from 1 to 62"),
        ({"length": 63}, "length 63: expected a number from 1 to 62"),
        ({"length": True}, "length"),
        ({"length": 3.5}, "length"),
        ({"length": 10**30}, "length 1000000000000000000000000000000: expected a number from 1 to 62"),
        ({"length": -(10**30)}, "expected a number from 1 to 62"),
        ({"length": "fixed:6"}, "unknown length"),
        ({"schedule": 0}, "unknown schedule '0'"),
        ({"schedule": -(10**30)}, "unknown schedule"),
        ({"schedule": "²"}, "unknown schedule"),
        ({"schedule": "threshold:2"}, "schedule 'threshold:2': 2 is not a probability"),
        ({"schedule": "threshold:nan"}, "schedule 'threshold:nan'"),
        ({"schedule": 1e30}, "schedule"),
        ({"budget": "one"}, "budget: Extra inputs are not permitted"),
        ({"orders": ["outer-in:stride=1e400"]}, "order 'outer-in:stride=1e400'"),
        ({"reference": "a" * 401}, "reference: String should have at most 400 characters"),
        ({"reference": 4}, "reference: "),
        ({"seed": 4}, "seed: Extra inputs are not permitted"),
        ({"task": None}, "task is missing: small is for de-en, en-de"),
    ],
)
def test_wrong_queries(client: TestClient, changes: dict[str, object], expected: str) -> None:
    check_error(translate(client, **changes), 422, expected)


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
        ({"length": 10**30}, "length 1000000000000000000000000000000: expected a number from 1 to 62"),
        ({"order": "learned:/etc"}, "unknown order"),
        ({"filled": [{"position": 10**30}]}, "position 1000000000000000000000000000000"),
        (
            {"filled": [{"position": 1, "token": "nosuchword"}]},
            "token 'nosuchword': the model's vocabulary has no such",
        ),
        ({"filled": [{"position": 1, "token": "</s>"}]}, "token '</s>'"),
        (
            {"filled": [{"position": 1, "token": "a" * 101}]},
            "filled.0.token: String should have at most 100 characters",
        ),
        ({"filled": [{"position": 1, "token": 7}]}, "filled.0.token: "),
        ({"num_candidates": 0}, "num_candidates: "),
        ({"num_candidates": 101}, "num_candidates: "),
        ({"num_candidates": 10**30}, "num_candidates: "),
    ],
)
def test_wrong_steps(client: TestClient, changes: dict[str, object], expected: str) -> None:
    check_error(step(client, **changes), 422, expected)


@pytest.mark.parametrize("schedule", [63, 10**18, 2**63, 10**30, "9" * 90])
def test_a_schedule_cannot_fill_more_than_the_model_has_room_for(client: TestClient, schedule: object) -> None:
    check_error(
        translate(client, schedule=schedule), 422, f"schedule {schedule}: expected at most 62 positions per step"
    )
    assert translate(client, schedule=62).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"{", 400, "the body is not JSON: Expecting property name enclosed in double quotes (character 1)"),
        (b"", 422, "the body: "),
        (b"[]", 422, "the body: "),
        (b"null", 422, "the body: "),
        (b"\xff\xfe", 400, ""),
        (b"[" * 16_000, 400, ""),
        (b'{"length": ' + b"9" * 10_000 + b"}", 400, "error parsing the body"),
        (b"[" * 4_000 + b"]" * 4_000, 400, "error parsing the body"),
        (b"[" * 100_000, 413, "too large"),
        (b'{"model": NaN}', 422, "model: "),
        (b'{"seed": -Infinity}', 422, "model: "),
        (b'{"\\ud800": 1, "model": "small"}', 422, ""),
        (b'{"a\\nb\\u2028c": 1, "model": 1}', 422, ""),
        (b'{"model": "\xff"}', 400, "error parsing the body"),
        (b" " * (16 * 1024 + 1), 413, "the request is too large: its body may have 16384 bytes"),
        (b" " * 3_000_000, 413, "too large"),
    ],
)
def test_wrong_bodies(client: TestClient, body: bytes, status: int, expected: str) -> None:
    response = client.post("/api/decode", content=body, headers={"Content-Type": "application/json"})
    check_error(response, status, expected)


def test_half_a_character_is_check_error(client: TestClient) -> None:
    body = json.dumps({"model": "small", "task": "de-en", "text": "\ud800", "orders": ["margin"]})
    response = client.post("/api/decode", content=body, headers={"Content-Type": "application/json"})
    check_error(response, 422, "text: ")


def test_a_body_without_its_length_is_counted(client: TestClient) -> None:
    pieces = (b" " * 1000 for _ in range(20))
    response = client.post("/api/decode", content=pieces, headers={"Content-Type": "application/json"})
    check_error(response, 413, "too large")


def test_other_pages_cannot_post(client: TestClient) -> None:
    """A request that a browser sends across origins without a preflight is refused, and no preflight succeeds."""
    response = client.post("/api/decode", content=b"{}", headers={"Content-Type": "text/plain"})
    check_error(response, 415, "application/json")
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    response = client.options("/api/decode", headers=preflight)
    check_error(response, 405, "Method Not Allowed")
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8600", "localhost.evil.example", "", "127.0.0.1.evil.example"]
)
def test_rebound_names_are_check_error(client: TestClient, host: str) -> None:
    check_error(client.get("/api/models", headers={"Host": host}), 400, "Host")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8600", "LOCALHOST:1", "[::1]:8600"])
def test_the_servers_own_names_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/api/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/api/models", "/api/nothing", "/api/docs", "/api/openapi.json"])
def test_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in headers["content-security-policy"]


def test_other_paths(client: TestClient) -> None:
    check_error(client.get("/nothing"), 404, "Not Found")
    check_error(client.get("/docs"), 404, "Not Found")
    check_error(client.get("/api/decode"), 405, "Method Not Allowed")
    assert client.get("/favicon.ico").status_code == 204


def test_the_api_describes_itself(client: TestClient) -> None:
    schema = client.get("/api/openapi.json").json()
    posts = {f"/api/{name}" for name in ("check", "decode", "puzzle", "step")}
    assert set(schema["paths"]) == {"/api/models", *posts}
    for path in posts:
        responses = schema["paths"][path]["post"]["responses"]
        for status in ("400", "401", "413", "415", "422", "503"):
            assert responses[status]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorResponse")
    page = client.get("/api/docs").text
    assert "POST /api/step" in page
    assert not re.search(r"<script|https?://", page)


def test_no_telemetry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    switches = getattr(create_app([str(folder)], device="cpu"), "_telemetry", None)
    if switches is None:
        pytest.skip("this FastAPI reports nothing")
    assert not [name for name, value in switches.items() if value]


def test_text_is_never_markup(client: TestClient) -> None:
    """Responses are JSON and say so, whatever the text is."""
    for response in (translate(client, text="<script>alert(1)</script>"), translate(client, orders=["<script>"])):
        assert response.headers["content-type"] == "application/json"
        assert response.status_code in (200, 422)


def test_the_page_is_in_no_frame_and_runs_only_its_own_script(client: TestClient) -> None:
    response = client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert response.headers["x-frame-options"] == "DENY"
    [policy] = re.findall('<meta http-equiv="Content-Security-Policy" content="([^"]*)">', response.text)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert response.text.index(policy) < response.text.index("<style")
    assert "unsafe" not in policy


def test_an_internal_error_is_one_line_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyorder.app.served_model.ServedModel.decode", lambda *_: 1 / 0)
    response = translate(client)
    check_error(response, 500, "internal server error")
    assert "ZeroDivision" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_full_queue(folder: Path) -> None:
    """One request runs, one waits, and a third is refused with the time after which to retry."""
    started, release = threading.Event(), threading.Event()
    app = create_app([str(folder)], device="cpu", queue_size=2)
    with TestClient(app, base_url="http://localhost") as client, pytest.MonkeyPatch.context() as patch:
        decode = Decoder.decode

        def slow(*arguments: Any, **options: Any) -> Any:
            started.set()
            release.wait(10)
            return decode(*arguments, **options)

        patch.setattr(Decoder, "decode", slow)
        responses: list[Any] = []

        def request() -> None:
            while (response := translate(client)).status_code == 503:  # the third request took its place for a moment
                time.sleep(0.01)
            responses.append(response)

        waiting = [threading.Thread(target=request) for _ in range(2)]
        for thread in waiting:
            thread.start()
        started.wait(10)
        deadline = time.monotonic() + 10
        while (third := translate(client, orders=["no-such"])).status_code != 503 and time.monotonic() < deadline:
            time.sleep(0.01)
        check_error(third, 503, "2 requests are already waiting")
        assert int(third.headers["retry-after"]) > 0
        release.set()
        for thread in waiting:
            thread.join()
        assert [response.status_code for response in responses] == [200, 200]
        assert translate(client).status_code == 200


def test_a_timeout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "decode", lambda *_, **options: time.sleep(0.5))
    monkeypatch.setattr("anyorder.app.batching.RESULT_TIMEOUT", 0.05)
    app = create_app([str(folder)], device="cpu")
    with TestClient(app, base_url="http://localhost") as client:
        response = translate(client)
        check_error(response, 503, "no result within 0.05 seconds")
        assert "retry-after" in response.headers


async def _gather(queue: BatchQueue, calls: list[QueuedCall[int, int]]) -> list[Any]:
    return await asyncio.gather(*(queue.run([call]) for call in calls), return_exceptions=True)


def run_alone(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it in a thread of its own: where a browser is open, this one has an event loop already."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


def test_calls_with_the_same_key_run_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyorder.app.batching.BATCH_TOKENS", 40)
    groups: list[list[int]] = []
    first = threading.Event()

    def run(items: Any) -> list[int]:
        groups.append(list(items))
        if items[0] == 0:
            first.wait(5)
        if 13 in items:
            raise HTTPException(500, "unlucky")
        return [-item for item in items]

    queue = BatchQueue()
    calls = [QueuedCall(run, 0)]
    calls += [QueuedCall(run, i, batch_key="odd" if i % 2 else "even", cost=10) for i in range(1, 12)]
    calls += [QueuedCall(run, 13), QueuedCall(run, 14), QueuedCall(run, 15)]
    threading.Timer(0.2, first.set).start()
    results = run_alone(_gather(queue, calls))
    assert results[:12] == [[-i] for i in range(12)]
    assert isinstance(results[12], HTTPException)
    assert results[13:] == [[-14], [-15]]  # a failure concerns no other call
    assert groups == [[0], [1, 3, 5, 7], [2, 4, 6, 8], [9, 11], [10], [13], [14], [15]]
    queue.close()
    with pytest.raises(HTTPException, match="closing"):
        run_alone(queue.run([QueuedCall(run, 1)]))


def test_cancelled_calls_are_dropped_from_the_queue() -> None:
    done: list[int] = []
    started, release = threading.Event(), threading.Event()

    def run(items: Any) -> list[int]:
        started.set()
        release.wait(10)
        done.extend(items)
        return list(items)

    queue = BatchQueue()

    async def cancel_most() -> None:
        stays = asyncio.ensure_future(queue.run([QueuedCall(run, 0)]))
        cancelled = [asyncio.ensure_future(queue.run([QueuedCall(run, i), QueuedCall(run, -i)])) for i in range(1, 50)]
        assert await asyncio.to_thread(started.wait, 10)
        for call in cancelled:
            call.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        assert len(queue._waiting) == 0
        release.set()
        assert await stays == [0]

    run_alone(cancel_most())
    queue.close()
    assert done == [0]

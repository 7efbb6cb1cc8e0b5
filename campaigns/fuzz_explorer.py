"""Send odd requests to a real explorer on tiny models of every kind, and check that each gets a proper answer.

    python campaigns/fuzz_explorer.py --cases 5000 --seed 1

A case follows from the seed and its number alone. A failure prints the command that repeats it. Proper is a result, or
a status of 400 to 499 with one line of JSON; never another status, an error in the server's log, or no answer in time.
"""

import argparse
import http.client
import json
import logging
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import h11
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.app.servers import MASKED, PUZZLES, save_masked_model, save_small_model, serving
from tests.conftest import toy_pairs

from anyorder.app.schemas import MAX_CHARACTERS
from anyorder.app.server import create_app
from anyorder.data.vocabulary import Vocabulary

SECONDS = 20.0
"""How long an answer may take."""
HEALTH_EVERY = 250
TEXTS = [source for source, _ in toy_pairs(40, seed=5)]
ORDERS = ["learned", "margin", "max-prob", "entropy", "easy-first", "least-to-most", "left-to-right", "outer-in"]
REVISIONS = ["none", "none", "mask-predict:2", "p2:2", "gibbs", "refine:2", "remdm:3"]
NUMBERS = [0, -1, 1, 2, 3, 61, 62, 63, 101, 2**31, 2**63, 10**30, -(10**30), 10**99, 10**200, 0.5, -0.0, 1e-320, 1e308]
STRINGS = [
    "", " ", "\x00", "\ud800", "\udfff\ud800", "\u2028", "\u202e", "\ufeff", "a\nb", "null", "NaN", "²", "٣",
    "+5", "1_0", "0x10", "9" * 100, "9" * 101, "a" * MAX_CHARACTERS, "a" * (MAX_CHARACTERS + 1), "Ж" * 61,
    "𝔘" * 99, "e\u0301" * 150, "👩‍👩‍👧" * 20, "<mask>", "</s>", "<s>", "@@", "../../etc/passwd", "<script>",
    "%s%n", "{0}", "-", ":", "one", "steps:4", "threshold:", "threshold:nan", "threshold:inf",
    "threshold:1e-400", "threshold:1e-300", "threshold:1", "cosine:9" * 9, "learned:/etc", "learned:other",
    "learned:default", "outer-in:stride=1e19", "outer-in:stride=nan", "outer-in:1", "easy-first:logp=1e308",
    "easy-first:logp=1e308,negent=-1e308", "easy-first:negent=inf", "margin:x=1", "candidates:4", "predicted",
    "table:4", "gold", "fixed:4", "fixed:99999", "candidates:99999999999999999999", "de-en", "en-de", "small",
    MASKED, PUZZLES, "[MASK]", "[MASK]" * 66, "[CLS] [MASK] [SEP]", "[mask]", "w1 [MASK]\x00[MASK]", "0" * 16, "1" * 16,
    "٠" * 16, "0" * 15 + "5", "." * 16, "0" * 17, " " + "0" * 16 + "\n", "infill", "block", "blocks:4", "klass",
]  # fmt: skip
HOSTS = [
    "localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost:80", "localhost:", "localhost:0",
    "localhost:65536", "localhost:8e1", "localhost:-1", "localhost:٣", "localhost.", "me@localhost",
    "localhost@evil", "localhost/", "", "[::1", "::1", "[::ffff:127.0.0.1]", "[fe80::1%25lo]", "127.1",
    "0x7f.1", "2130706433", "evil.example", "localhost,evil", "*", " ", "löcalhost", "localhost\tx", "a" * 300,
    "xn--nxasmq6b", "localhost:80:80", "[localhost]", "0.0.0.0",
]  # fmt: skip
TYPES = [
    "application/json", "APPLICATION/JSON; charset=utf-8", "application/json;charset=utf-16", "text/plain", "",
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json, text/plain",
    "x" * 500, "é",
]  # fmt: skip
METHODS = [
    "GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "X" * 300, "PO ST",
    "",
]  # fmt: skip
VERSIONS = ["HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/9.9", "HTP", ""]
PATHS = [
    "/", "/api/models", "/api/decode", "/api/step", "/api/puzzle", "/api/check",
    "/api/docs", "/api/openapi.json", "/favicon.ico",
    "/docs", "//", "/.", "/api/../api/models", "/api/models/", "/%61pi/models", "/api%2Fmodels", "/%", "/%zz",
    "/%00", "/%ff%fe", "/%c0%af", "/%u0041", "*", "http://localhost/api/models", "http://evil.example/", "?",
    "/?token=x", "/?" + "a=b&" * 900, "/api/models?%ff=%00", "/" + "a" * 5000, "/" + "a" * 70_000,
    "/api/models#x", "/é", "/\x7f", "api/models", "/;x=y", "/\\..\\x", "/api/step?x=" + "%" * 200,
]  # fmt: skip
HEADERS = [
    "Content-Length: -1", "Content-Length: 5, 6", "Content-Length: 1e3", "Content-Length: ٣",
    "Content-Length: 99999999999999999999", "Content-Length: +5", "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity", "Expect: 100-continue",
    "Expect: nonsense", "Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c\r\nConnection: Upgrade",
    "Connection: close", "Connection: keep-alive, close", "Cookie: " + "a=b; " * 200, "Cookie: =;;=\"",
    "Authorization: Bearer", "Authorization: Basic \xff\xfe", "Range: bytes=0-0", "If-None-Match: *",
    "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: gopher", "X-Forwarded-Host: evil", "Accept-Encoding: gzip",
    "Content-Encoding: gzip", "Origin: null", "X: " + "y" * 20_000, "X" * 300 + ": 1", " folded: x", "no-colon",
    "Name : space", ": empty", "X: a\x00b", "X: a\rb", "Host: localhost", "Host: evil.example", "é: 1",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    kind: str
    request: bytes

    @property
    def must_be_answered(self) -> bool:
        """Whether a server can see that the request is over: it is complete, or it is not HTTP."""
        parser = h11.Connection(h11.SERVER)
        try:
            parser.receive_data(self.request)
            while (event := parser.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.EndOfMessage):
                    return True
        except h11.RemoteProtocolError:
            return True
        return False


def make_case(seed: int, number: int) -> Case:
    draw = random.Random(f"{seed}:{number}")
    kind = draw.choice(list(KINDS))
    return Case(kind, KINDS[kind](draw))


def _odd_values(draw: random.Random) -> bytes:
    """A request whose fields have odd types and values."""
    path, query = _query(draw)
    for _ in range(draw.randint(1, 3)):
        name = draw.choice([*query, draw.choice(["seed", "", "\ud800", "a\nb", "x" * 300])])
        query[name] = _value(draw)
        if draw.random() < 0.1:
            del query[name]
    body = json.dumps(query, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    return _post(path, body)


def _odd_text(draw: random.Random) -> bytes:
    """A request whose body is almost JSON, or JSON of an odd form."""
    path, query = _query(draw)
    text, value = json.dumps(query), draw.choice(list(query.values()))
    depth = draw.choice([2, 50, 500, 990, 2000, 8000, 100_000])
    forms: list[Callable[[], bytes]] = [
        lambda: _damage(draw, text.encode()),
        lambda: text.replace(json.dumps(value), draw.choice(["NaN", "-Infinity", "1e999"])).encode(),
        lambda: text.replace("{", '{"text": "x", ', 1).encode(),
        lambda: (draw.choice(["[", '{"a":', '{"text":[']) * depth).encode(),
        lambda: b"[" * depth + b"]" * depth,
        lambda: text.replace(json.dumps(query["model"]), "[" * depth + "]" * depth).encode(),
        lambda: text.encode(draw.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7", "utf-16-le"])),
        lambda: json.dumps(_value(draw)).encode(),
        lambda: (b"9" * draw.choice([100, 101, 4301, 15_000])),
        lambda: text.encode() + b" " * draw.choice([1, 16_384, 1_100_000]),
        lambda: b"",
    ]  # fmt: skip
    return _post(path, draw.choice(forms)())


def _odd_head(draw: random.Random) -> bytes:
    """A request with odd methods, paths, hosts and headers."""
    usual = draw.random() < 0.5
    method = draw.choice(METHODS[:2] if usual else METHODS)
    path = draw.choice(PATHS[:10] if usual else PATHS)
    version = "HTTP/1.1" if draw.random() < 0.8 else draw.choice(VERSIONS)
    lines = [f"{method} {path} {version}"]
    if draw.random() < 0.9:
        lines.append(f"Host: {draw.choice(HOSTS[:5] if draw.random() < 0.6 else HOSTS)}")
    lines += draw.sample(HEADERS, draw.choice([0, 0, 1, 3]))
    body = b""
    if draw.random() < 0.4:
        body = json.dumps(_query(draw)[1]).encode()
        lines += [f"Content-Type: {draw.choice(TYPES)}", f"Content-Length: {len(body)}"]
    return "\r\n".join([lines[0], *draw.sample(lines[1:], len(lines) - 1), "", ""]).encode("utf-8") + body


def _odd_bytes(draw: random.Random) -> bytes:
    """Not HTTP, or several requests at once, or a damaged or unfinished one."""
    path, query = _query(draw)
    valid = _post(path, json.dumps(query).encode())
    forms: list[Callable[[], bytes]] = [
        lambda: draw.randbytes(draw.randint(1, 3000)),
        lambda: _damage(draw, valid),
        lambda: valid[: draw.randrange(len(valid))] or b"G",
        lambda: valid * draw.randint(2, 4),
        lambda: valid + draw.randbytes(50),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00" + draw.randbytes(200),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        lambda: b"\r\n" * draw.randint(1, 9000) + valid,
        lambda: b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * draw.choice([200, 5000]) + b"\r\n",
        lambda: _chunked(draw),
    ]
    return draw.choice(forms)()


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "odd values": _odd_values,
    "odd text": _odd_text,
    "odd head": _odd_head,
    "odd bytes": _odd_bytes,
}


def _query(draw: random.Random) -> tuple[str, dict[str, Any]]:
    return draw.choice([_translation, _translation, _infilling, _puzzle, _check])(draw)


def _check(draw: random.Random) -> tuple[str, dict[str, Any]]:
    query = {"model": draw.choice([MASKED, PUZZLES]), "schedule": "cosine:4", "revision": draw.choice(REVISIONS)}
    return "/api/check", query


def _infilling(draw: random.Random) -> tuple[str, dict[str, Any]]:
    return _decoding(draw, "/api/decode", {"model": MASKED, "text": "w1 [MASK] w3 [MASK] [MASK]"}, [1, 3, 4])


def _puzzle(draw: random.Random) -> tuple[str, dict[str, Any]]:
    if draw.random() < 0.2:
        return "/api/puzzle", {"model": PUZZLES, "seed": draw.randrange(100)}
    query = {"model": PUZZLES, "text": "0000034010030000"}
    if draw.random() < 0.5:
        query["reference"] = "4132234114233214"
    return _decoding(draw, "/api/decode", query, [0, 1, 2, 3])


def _decoding(draw: random.Random, path: str, query: dict[str, Any], masked: list[int]) -> tuple[str, dict[str, Any]]:
    """Of a model that does not translate."""
    if draw.random() < 0.5:
        orders, revision = draw.sample(ORDERS[1:], draw.randint(1, 2)), draw.choice(REVISIONS)
        return path, {**query, "orders": orders, "schedule": "one", "revision": revision}
    filled = [{"position": position} for position in draw.sample(masked, draw.randint(0, len(masked)))]
    return "/api/step", {**query, "filled": filled, "order": draw.choice(ORDERS[1:]), "num_candidates": 3}


def _translation(draw: random.Random) -> tuple[str, dict[str, Any]]:
    query: dict[str, Any] = {"model": "small", "task": "de-en", "text": draw.choice(TEXTS)}
    if draw.random() < 0.3:
        query["reference"] = draw.choice(TEXTS)
    if draw.random() < 0.5:
        orders = draw.sample(ORDERS, draw.randint(1, 2))
        return "/api/decode", {**query, "orders": orders, "length": draw.choice([3, "predicted"]), "schedule": "one"}
    filled = [{"position": position} for position in draw.sample(range(4), draw.randint(0, 4))]
    return "/api/step", {**query, "length": 4, "filled": filled, "order": draw.choice(ORDERS), "num_candidates": 3}


def _value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return draw.choice([None, True, False, [], {}])
    if kind == 1:
        return draw.choice(NUMBERS)
    if kind in (2, 3):
        return draw.choice(STRINGS)
    if kind == 4:
        return "".join(chr(draw.randrange(draw.choice([0x80, 0x3000, 0x110000]))) for _ in range(9))
    if kind == 5:
        return [_value(draw, depth + 1) for _ in range(draw.choice([1, 2, 7, 40]))]
    if kind == 6:
        return [draw.choice([*ORDERS, *STRINGS]) for _ in range(draw.randint(1, 3))]
    names = ["position", "token", "position", "token", "", "x"]
    fill = lambda: {draw.choice(names): _value(draw, depth + 1), "position": draw.randrange(5)}  # noqa: E731
    return [fill() for _ in range(draw.randint(1, 5))]


def _damage(draw: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(damaged))
        change = draw.randrange(3)
        if change == 0:
            damaged[at] ^= 1 << draw.randrange(8)
        elif change == 1:
            del damaged[at : at + draw.randint(1, 5)]
        else:
            damaged[at:at] = draw.choice([b"\x00", b"\r\n", b'"', b"{", b"9" * 50, b"\xff", b"\\u", b": "])
        damaged = damaged or bytearray(b"G")
    return bytes(damaged)


def _chunked(draw: random.Random) -> bytes:
    body = json.dumps(_query(draw)[1]).encode()
    size = draw.choice([b"%x" % len(body), b"%x" % (len(body) - 1), b"-1", b"g", b"f" * 30, b"%x;ext=1" % len(body)])
    return (
        _head("/api/step", "Transfer-Encoding: chunked")
        + size
        + b"\r\n"
        + body
        + b"\r\n0\r\n"
        + draw.choice([b"\r\n", b"X: y\r\n\r\n", b"bad\r\n\r\n"])
    )


def _post(path: str, body: bytes) -> bytes:
    return _head(path, f"Content-Length: {len(body)}") + body


def _head(path: str, header: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", header, "", ""]
    return "\r\n".join(lines).encode()


class FailedCaseError(Exception):
    """What is wrong with an answer."""


def send(port: int, case: Case) -> int | None:
    """The status of the answer to a case, or None where none is due. Raises `FailedCaseError`."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        try:
            connection.sendall(case.request)
            if not case.must_be_answered:
                connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection, method=case.request.partition(b" ")[0].decode("latin-1"))
            response.begin()
            body = response.read()
        except TimeoutError:
            raise FailedCaseError(f"no answer within {SECONDS:g} s") from None
        except (http.client.RemoteDisconnected, ConnectionError) as error:
            if case.must_be_answered and len(case.request) < 60_000:  # a long one may be cut off while it is sent
                raise FailedCaseError(f"no answer: {error!r}") from None
            return None
        check(response, body)
        return response.status


def check(response: http.client.HTTPResponse, body: bytes) -> None:
    is_refusal = 400 <= response.status < 500
    if response.status == 400 and response.headers["Content-Type"] == "text/plain; charset=utf-8":
        return  # uvicorn's own response to what is not HTTP
    if not is_refusal and response.status not in (200, 204):
        raise FailedCaseError(f"status {response.status}: {body[:200]!r}")
    if response.headers["X-Content-Type-Options"] != "nosniff":
        raise FailedCaseError(f"status {response.status} without the security headers")
    if response.headers["Content-Type"] != "application/json" or not body:
        if is_refusal and response.length != 0 and body:
            raise FailedCaseError(f"status {response.status} without a line of JSON: {body[:200]!r}")
        return
    content = json.loads(body, parse_constant=_no_constant)
    if is_refusal and (list(content) != ["error"] or "\n" in content["error"] or len(content["error"]) > 600):
        raise FailedCaseError(f"status {response.status} without one line: {body[:200]!r}")


def _no_constant(name: str) -> NoReturn:
    raise FailedCaseError(f"{name} in a result is not JSON")


class _ErrorLog(logging.Handler):
    """Collects what the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def error_log() -> Iterator[list[str]]:
    handler = _ErrorLog()
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def campaign(folders: Sequence[Path], seed: int, numbers: Sequence[int]) -> tuple[Counter[str], list[str]]:
    """How often each status was seen, and the failures."""
    statuses: Counter[str] = Counter()
    failures: list[str] = []
    app = create_app([*map(str, folders), PUZZLES], device="cpu")
    with serving(app) as port, error_log() as errors:
        for done, number in enumerate(numbers):
            case = make_case(seed, number)
            try:
                statuses[str(send(port, case) or "closed")] += 1
                if errors:
                    raise FailedCaseError(f"the server logs: {errors[-1].strip().splitlines()[-1]}")
                if done % HEALTH_EVERY == 0:
                    _check_health(port)
            except (FailedCaseError, ValueError, http.client.HTTPException) as error:
                errors.clear()
                command = f"python campaigns/fuzz_explorer.py --seed {seed} --only {number}"
                failures.append(f"{command}  # {case.kind}: {error}")
    return statuses, failures


def _check_health(port: int) -> None:
    query = {"model": "small", "task": "de-en", "text": TEXTS[0], "orders": ["margin"], "length": 4}
    start = time.monotonic()
    status = send(port, Case("health", _post("/api/decode", json.dumps(query).encode())))
    if status != 200 or time.monotonic() - start > 2:
        raise FailedCaseError(f"a normal request got {status} after {time.monotonic() - start:.1f} s")


def write_models(folder: Path) -> list[Path]:
    """Tiny models of random weights: one that translates, and one that fills masks."""
    text = " ".join(text for pair in toy_pairs(600, seed=7) for text in pair)
    save_small_model(folder / "small", Vocabulary.learn(Counter(text.replace(".", " .").split()), 200))
    save_masked_model(folder / MASKED)
    return [folder / "small", folder / MASKED]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one case to repeat")
    options = parser.parse_args()
    numbers = range(options.cases) if options.only is None else [options.only]
    if options.only is not None:
        print(make_case(options.seed, options.only).request[:2000])
    torch.set_num_threads(1)  # threads wait for each other where other processes take the cores
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        statuses, failures = campaign(write_models(Path(folder)), options.seed, numbers)
    for failure in failures:
        print(failure)
    counts = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    print(f"{len(numbers)} cases in {time.monotonic() - start:.0f} s, {len(failures)} failed ({counts})")
    return min(len(failures), 1)


if __name__ == "__main__":
    sys.exit(main())

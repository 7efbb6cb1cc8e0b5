"""How much the explorer takes from whom: sizes, waiting, hosts. `RequestGuard` stands before everything else."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

CHARACTERS = 400
"""Of a source sentence."""
ORDERS = 6
"""Side by side in one request."""


@dataclass(frozen=True)
class Limits:
    """What may change from one server to the next; the defaults are what the documentation tells."""

    body: int = 16 * 1024
    """Bytes of a request's body."""
    drained: int = 1024 * 1024
    """Bytes of a body that is too large that are still read, so that the client hears why; then the line is cut."""
    queue: int = 512
    """Requests under way: worked on or waiting."""
    patience: float = 120.0
    """Seconds from a request's arrival until it is given up."""
    sending: float = 10.0
    """Seconds within which a body must arrive."""
    tokens: int = 512
    """Target subwords under way together: what bounds the memory."""


class RefusedError(Exception):
    """A request that gets no result: a status and one clear line."""

    def __init__(self, status: int, line: str, again_after: int | None = None):
        super().__init__(line)
        self.status, self.line, self.again_after = status, line, again_after

    def response(self) -> Response:
        headers = {} if self.again_after is None else {"Retry-After": str(self.again_after)}
        return JSONResponse({"error": self.line}, self.status, headers)


HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-ActorCritic": "no-referrer",
    "Cross-Origin-Opener-ActorCritic": "same-origin",
    "Cross-Origin-Resource-ActorCritic": "same-origin",
}
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
"""Content security: nothing from other origins, nothing inline but what the page's own hashes name."""


class RequestGuard:
    """Around the app: wrong hosts, large or slow bodies and other kinds than JSON are refused; headers are set.

    Other origins' pages cannot use the API: they are granted no CORS, JSON cannot be posted without it, and a name that
    was made to point here (DNS rebinding) is none of `hosts`.
    """

    def __init__(self, app: App, hosts: Iterable[str], limits: Limits):
        self._app, self._hosts, self._limits = app, frozenset(hosts), limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_safely(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Content-Security-ActorCritic", POLICY)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_host(headers.get("host", ""))
            body = await self._body(scope["method"], headers, receive)
            await self._app(scope, _replay(body, receive), send_safely)
        except RefusedError as refused:
            await refused.response()(scope, receive, send_safely)
        except Exception:
            logging.getLogger("uvicorn.error").exception("%s %s", scope["method"], scope["path"])
            if begun:
                raise
            await RefusedError(500, "the server made a mistake; its log tells which").response()(
                scope, receive, send_safely
            )

    def _check_host(self, given: str) -> None:
        name = host_name(given)
        if name not in self._hosts and not ("*" in self._hosts and _is_address(name)):
            raise RefusedError(400, "this server does not answer under that name (Host header)")

    async def _body(self, method: str, headers: Headers, receive: Receive) -> bytes:
        """All of it: as much as is allowed is little."""
        limit, told = self._limits.body, headers.get("content-length", "")
        parts: list[bytes] = []
        size = int(told[:18]) if told.isdecimal() and int(told[:18]) > self._limits.drained else 0
        more = True
        try:
            async with asyncio.timeout(self._limits.sending):
                while more and size <= self._limits.drained:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "the body ended early")
                    size += len(message.get("body", b""))
                    parts = [*parts, message.get("body", b"")] if size <= limit else []
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {self._limits.sending:g} seconds") from None
        if more or size > limit:
            raise RefusedError(413, f"the request is too large: its body may have {limit} bytes")
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "expected a body of Content-Type application/json")
        return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, and then whatever else comes."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


def host_name(header: str) -> str:
    """The name in a Host header.

    >>> host_name("LocalHost:8600"), host_name("[::1]:8600"), host_name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().removesuffix(".")


def hosts_of(host: str) -> set[str]:
    """The names under which a server bound to `host` answers; `*` stands for any address.

    An address cannot be rebound as a name can, so a server bound to all of a machine's addresses answers to any.
    """
    names = {"localhost", "127.0.0.1", "::1", host_name(host) if not _is_address(host) else host.lower()}
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        names |= {"*", socket.gethostname().lower()}
    return names


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

"""What the server accepts: hosts, body sizes, content types, waiting times. `RequestGuard` checks every request first.

Nothing here knows models or orders. A new limit is a field of `Limits` (`limits.py`) and a check here.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response

from anyorder.app.csp import BASE_POLICY
from anyorder.app.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class RefusedError(Exception):
    """A request that gets no result: an HTTP status and a one-line message."""

    def __init__(self, status: int, message: str, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after

    def response(self) -> Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse({"error": self.message}, self.status, headers)


SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestGuard:
    """ASGI middleware: refuses unknown hosts, bodies that are too large, too slow or not JSON, and sets headers.

    Pages of other origins cannot use the API. They are granted no CORS, and without it a browser cannot post JSON. A
    foreign name that resolves to this machine (DNS rebinding) is not among `hosts`.
    """

    def __init__(self, app: App, hosts: Iterable[str], limits: Limits):
        self._app, self._hosts, self._limits = app, frozenset(hosts), limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal response_started
            if message["type"] == "http.response.start":
                response_started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", BASE_POLICY)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_host(headers.get("host", ""))
            body = await self._read_body(scope["method"], headers, receive)
            await self._app(scope, _replay(body, receive), send_with_headers)
        except RefusedError as refused:
            await refused.response()(scope, receive, send_with_headers)
        except Exception:
            logging.getLogger("uvicorn.error").exception("%s %s", scope["method"], scope["path"])
            if response_started:
                raise
            error = RefusedError(500, "internal server error; the server's log has the details")
            await error.response()(scope, receive, send_with_headers)

    def _check_host(self, header: str) -> None:
        name = host_name(header)
        if name not in self._hosts and not ("*" in self._hosts and _is_address(name)):
            raise RefusedError(400, "this server does not answer to that name (Host header)")

    async def _read_body(self, method: str, headers: Headers, receive: Receive) -> bytes:
        """The whole body, which the limit keeps small."""
        limit, announced = self._limits.body_bytes, headers.get("content-length", "")
        parts: list[bytes] = []
        # A body that announces more than would be drained is refused unread.
        size = int(announced[:18]) if announced.isdecimal() else 0
        size = size if size > self._limits.drained_bytes else 0
        more = True
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                while more and size <= self._limits.drained_bytes:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "the body ended early")
                    size += len(message.get("body", b""))
                    parts = [*parts, message.get("body", b"")] if size <= limit else []
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {self._limits.body_timeout:g} seconds") from None
        if more or size > limit:
            raise RefusedError(413, f"the request is too large: its body may have {limit} bytes")
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "expected a body of Content-Type application/json")
        return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that delivers the body in one message and then passes on what the client sends."""
    delivered = False

    async def next_message() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
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


def allowed_hosts(host: str) -> set[str]:
    """The names to which a server bound to `host` answers; `*` stands for any IP address.

    A server bound to all addresses of a machine answers to any IP address, because an address cannot be rebound the way
    a name can.
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

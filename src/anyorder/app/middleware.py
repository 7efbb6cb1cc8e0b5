"""What the server accepts: hosts, tokens, body sizes, content types. `RequestGuard` checks every request first.

Nothing here knows about models or orders. A new limit is a field of `Limits` (`limits.py`) and a check here, or in
`connections.py` if it concerns connections that have not sent a whole request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response

from anyorder.app.auth import AccessToken
from anyorder.app.csp import BASE_POLICY
from anyorder.app.hosts import is_allowed
from anyorder.app.json_body import check_json
from anyorder.app.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_MESSAGE = 500
"""Maximum characters of an error message; it may repeat what the client sent."""


class RefusedError(Exception):
    """A request that gets no result: an HTTP status and a one-line message."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers

    def response(self) -> Response:
        line = " ".join(self.message.encode("utf-8", "replace").decode().split())
        line = line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]} ..."
        return JSONResponse({"error": line}, self.status, self.headers)


def overloaded(message: str, retry_after: int) -> RefusedError:
    """The error for a request that may succeed a few seconds later."""
    return RefusedError(503, message, {"Retry-After": str(retry_after)})


SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
DEFAULT_HEADERS = {"Content-Security-Policy": BASE_POLICY, "Cache-Control": "no-store"}
"""Headers of every response, unless a route sets its own."""


class RequestGuard:
    """ASGI middleware: refuses unknown hosts, requests without the token, and bodies that are too large, too slow or
    not JSON; sets headers.

    Pages of other origins cannot use the API: without CORS, which is not granted, a browser cannot post JSON. A
    foreign name that resolves to this machine (DNS rebinding) is not among `hosts`.
    """

    def __init__(self, app: App, hosts: Iterable[str], limits: Limits, token: AccessToken | None = None):
        self._app, self._hosts, self._limits, self._token = app, frozenset(hosts), limits, token

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
                headers.update(SECURITY_HEADERS)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
                if self._token and self._token.is_in_address(scope):
                    headers.append("Set-Cookie", self._token.cookie(scope))
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            self._check_token(scope)
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

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1 or not is_allowed(given[0], self._hosts):
            raise RefusedError(400, "this server does not answer to that name (Host header)")

    def _check_token(self, scope: Message) -> None:
        if self._token and not self._token.is_given(scope):
            message = "this explorer needs its token: open the link that it printed when it started"
            raise RefusedError(401, message, {"WWW-Authenticate": "Bearer"})

    async def _read_body(self, method: str, headers: Headers, receive: Receive) -> bytes:
        """The whole body, which the limit keeps small."""
        limit, announced = self._limits.body_bytes, headers.get("content-length", "")
        body = bytearray()
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
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= limit:
                        body += part
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {self._limits.body_timeout:g} seconds") from None
        if more or size > limit:
            raise RefusedError(413, f"the request is too large: its body may have {limit} bytes")
        if method == "POST":
            _check_content(headers.get("content-type", ""), bytes(body))
        return bytes(body)


def _check_content(content_type: str, body: bytes) -> None:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "expected a body of Content-Type application/json")
    try:
        if body:  # without a body, the route says what is missing
            check_json(body)
    except ValueError as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None


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

"""What the server accepts: hosts, the access token, body sizes, content types. `RequestGuard` checks every request.

Nothing here knows about models or orders. What concerns connections, such as clients that never finish a request, is
up to uvicorn and the proxy in front of it (`docs/deploy.md`).
"""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from anyorder.app.limits import Limits, RefusedError
from anyorder.errors import InputError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_MESSAGE = 500
"""Maximum characters of an error message; it may repeat what the client sent."""
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
DEFAULT_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""Headers of every response, unless a route sets its own."""


class RequestGuard:
    """ASGI middleware: refuses unknown hosts, requests without the token, and bodies that are too large, too slow or
    not JSON; sets headers.

    Pages of other origins cannot use the API: without CORS, which is not granted, a browser cannot post JSON. A
    foreign name that resolves to this machine (DNS rebinding) is not among the server's names.
    """

    def __init__(self, app: App, host: str, limits: Limits, token: "AccessToken | None" = None):
        """host: The address that the server is bound to."""
        self._app, self._names, self._limits, self._token = app, server_names(host), limits, token

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
            body = await self._read_body(headers, receive)
            if scope["method"] == "POST":
                _check_content_type(headers)
            await self._app(scope, _replay(body, receive), send_with_headers)
        except RefusedError as refused:
            await error_response(refused)(scope, receive, send_with_headers)
        except Exception:
            logging.getLogger("uvicorn.error").exception("%s %s", scope["method"], scope["path"])
            if response_started:
                raise
            error = RefusedError(500, "internal server error; the server's log has the details")
            await error_response(error)(scope, receive, send_with_headers)

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1 or not is_own_name(given[0], self._names):
            raise RefusedError(400, "this server does not answer to that name (Host header)")

    def _check_token(self, scope: Message) -> None:
        if self._token and not self._token.is_given(scope):
            message = "this explorer needs its token: open the link that it printed when it started"
            raise RefusedError(401, message, {"WWW-Authenticate": "Bearer"})

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body, which the limit keeps small."""
        limit, drained = self._limits.body_bytes, self._limits.drained_bytes
        close = {"Connection": "close"}  # the rest of the body is not read
        announced = headers.get("content-length", "")
        size = int(announced[:18]) if announced.isdecimal() else 0
        if size > drained:
            raise _too_large(limit, close)
        body, size, more = bytearray(), 0, True
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                while more and size <= drained:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "the body ended early")
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= limit:
                        body += part
                    more = message.get("more_body", False)
        except TimeoutError:
            seconds = self._limits.body_timeout
            raise RefusedError(408, f"the body did not arrive within {seconds:g} seconds", close) from None
        if size > limit:
            raise _too_large(limit, close)
        return bytes(body)


def _too_large(limit: int, headers: dict[str, str]) -> RefusedError:
    return RefusedError(413, f"the request is too large: its body may have {limit} bytes", headers)


def _check_content_type(headers: Headers) -> None:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "expected a body of Content-Type application/json")


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


def error_response(error: RefusedError) -> Response:
    """The error as one line of JSON."""
    line = " ".join(error.message.encode("utf-8", "replace").decode().split())
    line = line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]} ..."
    return JSONResponse({"error": line}, error.status, error.headers)


_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
ANY_ADDRESS = "*"


def server_names(host: str) -> frozenset[str]:
    """The names to which a server bound to `host` answers; `ANY_ADDRESS` stands for any IP address.

    A server bound to all addresses of a machine answers to any IP address, because an address cannot be rebound the way
    a name can.
    """
    names = {"localhost", "127.0.0.1", "::1"}
    address = _address(host)
    if address is None:
        return frozenset(names | {host.lower()})
    return frozenset(
        names | ({ANY_ADDRESS, socket.gethostname().lower()} if address.is_unspecified else {str(address)})
    )


def is_own_name(header: str, names: frozenset[str]) -> bool:
    """Whether a Host header, with or without a port, is one of these names.

    Starlette's `TrustedHostMiddleware` cannot tell addresses from names, and does not read IPv6 in older versions.
    """
    match = _HOST.fullmatch(header.lower()) if header.isascii() else None
    if match is None:
        return False
    address = _address(match[1].strip("[]"))
    if address is None:
        return match[1] in names
    return str(address) in names or ANY_ADDRESS in names


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,200}")


@dataclass(frozen=True)
class AccessToken:
    """A secret that every request must carry: in its address (`?token=`), as a bearer token, or in a cookie.

    Only TLS keeps it secret in transit.
    """

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.text):
            raise InputError("must have 16 to 200 letters, digits or . _ ~ - (nothing else)", "token")

    @classmethod
    def generate(cls) -> "AccessToken":
        return cls(secrets.token_urlsafe(24))

    @property
    def cookie_name(self) -> str:
        """Different for every token: cookies do not tell the ports of a host apart."""
        return f"anyorder_{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"

    def is_in_address(self, scope: MutableMapping[str, Any]) -> bool:
        return any(self._matches(value) for value in QueryParams(scope["query_string"]).getlist("token"))

    def is_given(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether a request carries the token."""
        request = HTTPConnection(scope)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and self._matches(bearer.strip())
        return is_bearer or self._matches(request.cookies.get(self.cookie_name, "")) or self.is_in_address(scope)

    def cookie(self, scope: MutableMapping[str, Any]) -> str:
        """The Set-Cookie header, after which the address no longer needs the token. Scripts cannot read the cookie, and
        browsers do not send it with requests from other sites."""
        secure = "; Secure" if scope["scheme"] == "https" else ""
        return f"{self.cookie_name}={self.text}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.text.encode())

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
from dataclasses import dataclass, field

from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anyorder.errors import InputError

BODY_BYTES = 16 * 1024
"""Maximum size of a request's body."""
DRAINED_BYTES = 1024 * 1024
"""How much of a body that is too large is still read, so that the client receives the error before the connection
closes."""
BODY_TIMEOUT = 10.0
"""Seconds within which a body must arrive."""
MAX_MESSAGE = 500
"""Maximum characters of an error message; it may repeat what the client sent."""
DEFAULT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
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

    def __init__(self, app: ASGIApp, host: str, token: "AccessToken | None" = None):
        """host: The address that the server is bound to."""
        self._app, self._names, self._token = app, server_names(host), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, started = Request(scope, receive), False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
                if self._token and self._token.is_in_address(request):
                    headers.append("Set-Cookie", self._token.cookie(request))
            await send(message)

        try:
            self._check_head(request)
            body = await self._read_body(request)
            content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method == "POST" and content_type != "application/json":
                raise HTTPException(415, "expected a body of Content-Type application/json")
            unread = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive_again() -> Message:
                return unread.pop() if unread else await receive()

            await self._app(scope, receive_again, send_with_headers)
        except Exception as error:
            response = await error_response(request, error)
            if started:  # the client has the beginning of another response
                raise
            await response(scope, receive, send_with_headers)

    def _check_head(self, request: Request) -> None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not is_own_name(hosts[0], self._names):
            raise HTTPException(400, "this server does not answer to that name (Host header)")
        if self._token and not self._token.is_given(request):
            message = "this explorer needs its token: open the link that it printed when it started"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    async def _read_body(self, request: Request) -> bytes:
        """The whole body, which the limit keeps small."""
        close = {"Connection": "close"}  # the rest of a refused body is not read
        too_large = HTTPException(413, f"the request is too large: its body may have {BODY_BYTES} bytes", close)
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:18]) > DRAINED_BYTES:
            raise too_large
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for part in request.stream():
                    size += len(part)
                    if size <= BODY_BYTES:
                        body += part
                    elif size > DRAINED_BYTES:
                        break
        except ClientDisconnect:
            raise HTTPException(400, "the body ended early") from None
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {BODY_TIMEOUT:g} seconds", close) from None
        if size > BODY_BYTES:
            raise too_large
        return bytes(body)


async def error_response(request: Request, error: Exception) -> JSONResponse:
    """The error as one line of JSON. One that the request should not be able to cause goes to the log."""
    status, headers = 422, None
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, str(error.detail), error.headers
    elif isinstance(error, InputError):
        message = str(error)
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            status = 400
            message = f"the body is not JSON: {first['ctx']['error']} (character {first['loc'][-1]})"
        else:
            field = ".".join(str(part) for part in first["loc"] if part != "body")
            message = f"{field or 'the body'}: {first['msg']}"
    else:
        logging.getLogger("uvicorn.error").error("%s %s", request.method, request.scope["path"], exc_info=error)
        status, message = 500, "internal server error; the server's log has the details"
    line = " ".join(message.encode("utf-8", "replace").decode().split())
    line = line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]} ..."
    return JSONResponse({"error": line}, status, headers)


_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
ANY_ADDRESS = "*"


def server_names(host: str) -> set[str]:
    """The names to which a server bound to `host` answers; `ANY_ADDRESS` stands for any IP address.

    A server bound to all addresses of a machine answers to any IP address, because an address cannot be rebound the way
    a name can.
    """
    names, address = {"localhost", "127.0.0.1", "::1"}, _address(host)
    if address is None:
        return names | {host.lower()}
    return names | ({ANY_ADDRESS, socket.gethostname().lower()} if address.is_unspecified else {str(address)})


def is_own_name(header: str, names: set[str]) -> bool:
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

    By default a new one. Only TLS keeps it secret in transit.
    """

    text: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.text):
            raise InputError("must have 16 to 200 letters, digits or . _ ~ - (nothing else)", "token")

    @property
    def cookie_name(self) -> str:
        """Different for every token: cookies do not tell the ports of a host apart."""
        return f"anyorder_{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"

    def is_in_address(self, request: Request) -> bool:
        return any(map(self._matches, request.query_params.getlist("token")))

    def is_given(self, request: Request) -> bool:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and self._matches(bearer.strip())
        return is_bearer or self._matches(request.cookies.get(self.cookie_name, "")) or self.is_in_address(request)

    def cookie(self, request: Request) -> str:
        """The Set-Cookie header, after which the address no longer needs the token. Scripts cannot read the cookie, and
        browsers do not send it with requests from other sites."""
        secure = "; Secure" if request.scope["scheme"] == "https" else ""
        return f"{self.cookie_name}={self.text}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.text.encode())

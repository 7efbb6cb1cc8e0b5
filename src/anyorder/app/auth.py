"""The access token: who may use the explorer if others can reach it. Only TLS keeps it secret in transit."""

import hashlib
import hmac
import re
import secrets
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection

from anyorder.errors import InputError

_FORM = re.compile(r"[A-Za-z0-9._~-]{16,200}")


@dataclass(frozen=True)
class AccessToken:
    """A secret that every request must carry: in its address (`?token=`), as a bearer token, or in a cookie."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if not _FORM.fullmatch(self.text):
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

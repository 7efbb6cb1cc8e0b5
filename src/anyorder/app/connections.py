"""Open connections: how long each may take and how many there may be.

Clients that never finish a request are cut off and keep nobody else waiting. Nothing here knows about routes or models.
uvicorn itself limits neither the time for a request's head nor the number of connections per client.
"""

import asyncio
from enum import Enum, auto
from ipaddress import IPv6Address, ip_address
from typing import Any, ClassVar, Protocol

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from anyorder.app.limits import Limits
from anyorder.app.middleware import DEFAULT_HEADERS, SECURITY_HEADERS, RefusedError, overloaded


class Phase(Enum):
    """What a connection is doing. In all phases but `WORKING` it may be closed to make room for another."""

    HEAD = auto()
    """The request line and the headers are not complete."""
    BODY = auto()
    WORKING = auto()
    """The request is complete, its response is not."""
    IDLE = auto()
    """The response was sent, and no other request has begun."""
    CLOSING = auto()
    """Closed here, but the client has not received all of the response."""


class Closable(Protocol):
    """What `ConnectionTable` needs of a connection."""

    def abort(self) -> None:
        """Close it at once."""


class ConnectionTable:
    """The open connections by client. If full, a new one replaces the longest-waiting one, never a working one."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._client_of: dict[Closable, str] = {}
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, dict[Closable, None]] = {}
        """By client, those that are not working, the longest waiting first."""

    def __len__(self) -> int:
        return len(self._client_of)

    def add(self, connection: Closable, client: str) -> bool:
        """Add a connection and return whether there is room, if necessary after closing a waiting one.

        It is one of this client, or of the client with the most waiting connections.
        """
        has_room = True
        if self._counts.get(client, 0) >= self._limits.client_connections:
            has_room = self._close_oldest(client)
        elif len(self) >= self._limits.connections:
            busiest = max(self._waiting, key=lambda name: len(self._waiting[name]), default=client)
            has_room = self._close_oldest(busiest)
        self._client_of[connection] = client
        self._counts[client] = self._counts.get(client, 0) + 1
        return has_room

    def update(self, connection: Closable, is_working: bool) -> None:
        """Record that the connection has entered another phase."""
        client = self._client_of.get(connection)
        if client is None:
            return
        self._leave(connection, client)
        if not is_working:
            self._waiting.setdefault(client, {})[connection] = None

    def remove(self, connection: Closable) -> None:
        """Remove a closed connection, which may have been removed already."""
        client = self._client_of.pop(connection, None)
        if client is None:
            return
        self._leave(connection, client)
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]

    def _close_oldest(self, client: str) -> bool:
        oldest = next(iter(self._waiting.get(client, ())), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.abort()
        return True

    def _leave(self, connection: Closable, client: str) -> None:
        waiting = self._waiting.get(client, {})
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(client, None)


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for every phase of a connection, and a place in the table of connections."""

    limits: ClassVar[Limits]
    table: ClassVar[ConnectionTable]
    _phase: Phase | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.table.add(self, client_key(self.client)):
            error = overloaded("too many connections are open: try again soon", retry_after=2)
            self.app = _closing_response(error)  # type: ignore[assignment]
        self._enter(Phase.HEAD)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._enter(self._current_phase())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        phase = self._current_phase()
        self._enter(Phase.IDLE if phase is Phase.HEAD and not self.conn.trailing_data[0] else phase)

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def abort(self) -> None:
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._refuse(RefusedError(400, msg))

    def _current_phase(self) -> Phase:
        if self.transport.is_closing():
            return Phase.CLOSING
        return {h11.IDLE: Phase.HEAD, h11.SEND_BODY: Phase.BODY}.get(self.conn.their_state, Phase.WORKING)

    def _enter(self, phase: Phase) -> None:
        """Start the timer of a phase; more data within a phase does not extend it."""
        if phase is self._phase:
            return
        self._phase = phase
        self.table.update(self, is_working=phase is Phase.WORKING)
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._seconds(phase), self._expire)

    def _seconds(self, phase: Phase) -> float:
        limits = self.limits
        return {
            Phase.HEAD: limits.head_timeout,
            Phase.BODY: limits.body_timeout + 1,  # by then the client has been told
            Phase.WORKING: limits.result_timeout + limits.send_timeout,
            Phase.IDLE: limits.idle_timeout,
            Phase.CLOSING: limits.send_timeout,
        }[phase]

    def _expire(self) -> None:
        if self._phase in (Phase.WORKING, Phase.CLOSING):
            self.abort()
        elif self._phase is Phase.HEAD and self.conn.trailing_data[0]:
            seconds = self.limits.head_timeout
            self._refuse(RefusedError(408, f"the headers did not arrive within {seconds:g} seconds"))
        else:
            self.transport.close()
        self._enter(Phase.CLOSING)

    def _refuse(self, error: RefusedError) -> None:
        """Send the error and close. Nothing is sent if a response has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            if self.cycle:
                self.cycle.disconnected = True
            response = _closing_response(error)
            events: list[Any] = [
                h11.Response(status_code=error.status, headers=response.raw_headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ]
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


def _closing_response(error: RefusedError) -> Response:
    """The response to a request that never reaches the app; the connection ends with it."""
    response = error.response()
    response.headers.update({**SECURITY_HEADERS, **DEFAULT_HEADERS, "Connection": "close"})
    return response


def limited_protocol(limits: Limits) -> type[LimitedProtocol]:
    """The protocol of one server, whose connections share one table."""
    return type("ServerProtocol", (LimitedProtocol,), {"limits": limits, "table": ConnectionTable(limits)})


def client_key(peer: tuple[str, int] | None) -> str:
    """What counts as one client: an IPv4 address, or an IPv6 network of 64 bits, which a single host may own.

    >>> client_key(("192.0.2.7", 5000)), client_key(("2001:db8::a:b:c:d", 5000)), client_key(("::ffff:192.0.2.7", 5))
    ('192.0.2.7', '2001:db8::', '192.0.2.7')
    """
    if peer is None:
        return ""
    address = ip_address(peer[0])
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))

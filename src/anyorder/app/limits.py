"""The explorer's limits: numbers only."""

from dataclasses import dataclass

MAX_CHARACTERS = 400
"""Maximum characters of a source sentence, and of a reference."""
MAX_ORDERS = 6
"""Maximum orders in one request."""
MAX_PASSES = 11
"""How often a revision may write every position."""


@dataclass(frozen=True)
class Limits:
    """Limits that may differ between servers; the documentation states the defaults."""

    body_bytes: int = 16 * 1024
    """Maximum size of a request's body."""
    drained_bytes: int = 1024 * 1024
    """How much of a body that is too large is still read, so that the client receives the error before the connection
    closes."""
    queue: int = 512
    """Maximum number of requests running or waiting."""
    connections: int = 1088
    """Maximum open connections. Above twice the queue, so that the queue refuses first, with a clearer message."""
    client_connections: int = 256
    """Maximum open connections of one client."""
    head_timeout: float = 5.0
    """Seconds within which the request line and the headers must arrive."""
    body_timeout: float = 10.0
    """Seconds within which a body must arrive."""
    result_timeout: float = 120.0
    """Seconds until a request is given up."""
    send_timeout: float = 30.0
    """Seconds within which the client must receive a response."""
    idle_timeout: float = 15.0
    """Seconds for which a connection may stay open without a request."""
    batch_tokens: int = 512
    """Target subwords to decode per batch; this bounds the memory."""

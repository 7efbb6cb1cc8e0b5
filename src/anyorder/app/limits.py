"""The explorer's limits."""

from dataclasses import dataclass

MAX_CHARACTERS = 400
"""Maximum characters of a text, and of a reference."""
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
    body_timeout: float = 10.0
    """Seconds within which a body must arrive."""
    queue: int = 512
    """Maximum number of requests running or waiting."""
    result_timeout: float = 120.0
    """Seconds until a request is given up."""
    batch_tokens: int = 512
    """Target subwords to decode per batch; this bounds the memory."""

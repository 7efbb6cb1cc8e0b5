"""The explorer's limits: numbers only."""

from dataclasses import dataclass

MAX_CHARACTERS = 400
"""Characters of a source sentence, and of a reference."""
MAX_ORDERS = 6
"""Orders in one request."""


@dataclass(frozen=True)
class Limits:
    """Limits that may differ between servers; the documentation states the defaults."""

    body_bytes: int = 16 * 1024
    """Size of a request's body."""
    drained_bytes: int = 1024 * 1024
    """How much of a body that is too large is still read, so that the client receives the error before the connection
    closes."""
    queue: int = 512
    """Requests that are running or waiting."""
    result_timeout: float = 120.0
    """Seconds until a request is given up."""
    body_timeout: float = 10.0
    """Seconds within which a body must arrive."""
    batch_tokens: int = 512
    """Target subwords that are decoded together; this bounds the memory."""

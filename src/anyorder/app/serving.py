"""The HTTP server that runs an app within the limits."""

import socket
from contextlib import suppress
from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from anyorder.app.connections import limited_protocol
from anyorder.app.limits import Limits

BACKLOG = 2048
"""Connections that the system holds until they are accepted."""
ACCEPTED_AT_ONCE = 64
"""Connections to accept at once; few, so that the first request of each is read before newer ones compete with it."""
OTHER_FILES = 128
"""Files besides connections: the model, libraries, the event loop."""


def make_server(app: FastAPI, limits: Limits | None = None) -> uvicorn.Server:
    """A server for the app, with as many connections as the limits and the process's open files allow."""
    limits = limits or Limits()
    files = _allow_open_files(limits.connections + OTHER_FILES)
    limits = replace(limits, connections=max(min(limits.connections, files - OTHER_FILES), 1))
    config = uvicorn.Config(
        app,
        http=limited_protocol(limits),
        ws="none",
        log_level="error",  # warnings are about what clients send
        access_log=False,
        server_header=False,
        timeout_keep_alive=round(limits.idle_timeout),
        timeout_graceful_shutdown=3,
        backlog=ACCEPTED_AT_ONCE,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():  # asyncio uses one number for this and for connections accepted at once
            listener.listen(BACKLOG)


def _allow_open_files(wanted: int) -> int:
    """How many files this process may open, after raising its soft limit as far as needed and possible."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows, which has no such limit for sockets
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return soft

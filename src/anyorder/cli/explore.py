"""`anyorder explore`: the explorer in the browser."""

import os
import socket
import sys
from contextlib import suppress
from ipaddress import ip_address

import torch

from anyorder.cli.common import Device, check_device
from anyorder.errors import InputError, check_number


def explore(
    model: list[str] | str,
    host: str = "127.0.0.1",
    port: int = 8600,
    threads: int | None = None,
    queue: int = 512,
    device: Device = "auto",
) -> None:
    """Explore orders in the browser.

    Type a sentence, choose orders, watch them fill side by side, and fill positions by hand. The page and its JSON API
    (/api/docs) are served from this machine, to this machine only unless --host says otherwise.

    Args:
        model: A bundled model (de-en), a folder, or a hub id; several with commas, or given several times.
        host: The address to listen at. Others than 127.0.0.1 open the explorer to whoever reaches this machine.
        port: The port to listen at; 0 takes a free one.
        threads: Cores that the model may use; all of them if not given.
        queue: Requests that may be under way or waiting; more are sent away.
        device: Where to run.
    """
    check_number("--port", port, at_least=0, at_most=65535)
    check_number("--threads", threads, at_least=1)
    check_number("--queue", queue, at_least=1)
    check_device(device)
    try:
        import uvicorn

        from anyorder.app.middleware import Limits
        from anyorder.app.server import create_app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("anyorder"):
            raise
        raise InputError(f"explore needs {error.name}: pip install 'anyorder[app]'") from None
    if threads:
        torch.set_num_threads(threads)
    given = [model] if isinstance(model, str) else model  # a recipe gives one string
    names = [name.strip() for one in given for name in one.split(",") if name.strip()] or ["de-en"]
    with _listen(host, port) as listening:
        app = create_app(names, host, device, Limits(queue=queue))
        address = _address(listening)
        print(f"anyorder explore: {address}  (Ctrl-C ends it)", flush=True)
        if not _stays_here(listening):
            print(f"anyorder explore: whoever reaches {host} can use it, there is no password", file=sys.stderr)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=2 * queue + 64,  # open connections; the queue speaks first, and more clearly
            timeout_keep_alive=15,
            timeout_graceful_shutdown=3,
            backlog=2048,
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


explore.positionals = {  # type: ignore[attr-defined]
    "--model": {
        "action": "append",
        "type": str,
        "default": [],
        "help": "a bundled model (de-en if not given), a folder, or a hub id; several with commas or given again",
    }
}


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; before the model is loaded, so that a wrong port is told at once."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(place[:2], family=family, backlog=2048)  # type: ignore[arg-type]
    except socket.gaierror as error:
        raise InputError(f"--host {host}: no such host ({error.strerror})") from None
    except OSError as error:
        raise InputError(
            f"--host {host} --port {port}: cannot listen there ({os.strerror(error.errno or 0)})"
        ) from None


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _stays_here(listening: socket.socket) -> bool:
    return ip_address(listening.getsockname()[0]).is_loopback

"""`anyorder explore`: serve the explorer to the browser."""

import os
import socket
import sys
from contextlib import suppress
from ipaddress import ip_address

import torch

from anyorder.app.limits import Limits
from anyorder.device import Device, resolve_device
from anyorder.errors import InputError, check_number


def explore(
    model: list[str] | str,
    host: str = "127.0.0.1",
    port: int = 8600,
    threads: int | None = None,
    queue: int = Limits.queue,
    device: Device = "auto",
) -> None:
    """Explore orders in the browser.

    Type a sentence, choose orders, watch them fill side by side, and fill positions by hand. The page and its JSON API
    (/api/docs) are served to this machine only, unless --host says otherwise.

    Args:
        model: A bundled model (de-en), a folder, or a hub id; several with commas, or given several times.
        host: The address to listen on. Any other than 127.0.0.1 opens the explorer to everyone who reaches it.
        port: The port to listen on; 0 picks a free one.
        threads: Number of CPU threads for the model; all cores if not given.
        queue: Number of requests that may run or wait; further ones are refused.
        device: Where to run.
    """
    check_number("port", port, at_least=0, at_most=65535)
    check_number("threads", threads, at_least=1)
    check_number("queue", queue, at_least=1)
    resolve_device(device)
    try:
        import uvicorn

        from anyorder.app.server import create_app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("anyorder"):
            raise
        raise InputError(f"explore needs {error.name}: pip install 'anyorder[app]'") from None
    if threads:
        torch.set_num_threads(threads)
    values = [model] if isinstance(model, str) else model  # a recipe gives one string
    names = [name.strip() for value in values for name in value.split(",") if name.strip()] or ["de-en"]
    with _listen(host, port) as listener:
        app = create_app(names, host, device, Limits(queue=queue))
        print(f"anyorder explore: {_url(listener)}  (Ctrl-C stops it)", flush=True)
        if not ip_address(listener.getsockname()[0]).is_loopback:
            print(f"anyorder explore: anyone who reaches {host} can use it; there is no password", file=sys.stderr)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=2 * queue + 64,  # open connections; the queue refuses earlier, with a clearer message
            timeout_keep_alive=15,
            timeout_graceful_shutdown=3,
            backlog=2048,
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


explore.positionals = {  # type: ignore[attr-defined]
    "--model": {
        "action": "append",
        "type": str,
        "default": [],
        "help": "a bundled model (de-en if not given), a folder, or a hub id; several with commas or given again",
    }
}


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, opened before the model is loaded so that a port in use is reported at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)  # type: ignore[arg-type]
    except socket.gaierror as error:
        raise InputError(f"{host}: no such host ({error.strerror})", "host") from None
    except OSError as error:
        raise InputError(f"{port}: cannot listen on {host} ({os.strerror(error.errno or 0)})", "port") from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

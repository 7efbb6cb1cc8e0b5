"""`anyorder explore`: serve the explorer to the browser."""

import os
import socket
import sys
from contextlib import suppress
from ipaddress import ip_address

import torch

from anyorder.app import QUEUE
from anyorder.device import Device, resolve_device
from anyorder.errors import InputError, check_number
from anyorder.models.native.storage import bundled_models

NEW_TOKEN, NO_TOKEN = "new", "none"


def explore(
    model: list[str] = [],  # noqa: B006 - never modified
    host: str = "127.0.0.1",
    port: int = 8600,
    threads: int | None = None,
    token: str | None = None,
    queue: int = QUEUE,
    device: Device = "auto",
) -> None:
    """Explore orders in the browser.

    Type a sentence to translate or a text with masks, or pick a puzzle, and compare orders side by side. The page and
    its JSON API (/api/docs) are served only to this machine unless --host says otherwise.

    Args:
        model: A bundled model (de-en, multi, sudoku-4x4), a folder, or a hub id (hf:ID for a masked language model);
            by default all bundled ones. Separate several with commas or repeat the option.
        host: The address to listen on. An address that other machines can reach needs --token.
        port: The port to listen on; 0 picks a free one.
        threads: Number of CPU threads for the model; by default all cores.
        token: Accept only requests with this secret of 16 or more letters and digits. Without a value, a new secret is
            generated and printed as part of the link; 'none' accepts everyone.
        queue: Maximum number of requests running or waiting; further ones are refused.
        device: Device to run on.
    """
    check_number("port", port, at_least=0, at_most=65535)
    check_number("threads", threads, at_least=1, at_most=1024)
    check_number("queue", queue, at_least=1, at_most=100_000)
    resolve_device(device)
    try:
        from anyorder.app.security import AccessToken
        from anyorder.app.server import create_app, make_server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("anyorder"):
            raise
        raise InputError(f"explore needs {error.name}: pip install 'anyorder[app]'") from None
    if threads:
        torch.set_num_threads(threads)
    names = [name.strip() for value in model for name in value.split(",") if name.strip()]
    secret = None
    if token is not None and token != NO_TOKEN:
        secret = AccessToken() if token == NEW_TOKEN else AccessToken(token)
    with _listen(host, port) as listener:
        is_local = ip_address(listener.getsockname()[0]).is_loopback
        if not is_local and token is None:
            raise InputError(f"{host}: others can reach it: add --token (or --token none to serve everyone)", "host")
        server = make_server(create_app(names or bundled_models(), host, device, queue, secret), queue)
        query = f"/?token={secret.text}" if secret else ""
        print(f"anyorder explore: {_url(listener)}{query}  (Ctrl-C stops it)", flush=True)
        if not is_local and secret is None:
            print(f"anyorder explore: anyone who reaches {host} can use it; there is no token", file=sys.stderr)
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


explore.arguments = {  # type: ignore[attr-defined]
    "model": {"nargs": None, "action": "append"},
    "token": {"nargs": "?", "const": NEW_TOKEN, "metavar": "TEXT"},
}


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, opened before the model is loaded so that a port in use is reported at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)  # type: ignore[arg-type]
    except socket.gaierror as error:
        raise InputError(f"{host}: no such host ({error.strerror})", "host") from None
    except UnicodeError:  # of the codec for names of hosts
        raise InputError(f"{host}: is not the name of a host", "host") from None
    except OSError as error:
        raise InputError(f"{port}: cannot listen on {host} ({os.strerror(error.errno or 0)})", "port") from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

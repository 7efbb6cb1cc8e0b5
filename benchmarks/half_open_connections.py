"""How long the explorer keeps a normal client waiting while others hold half-open connections.

    python benchmarks/half_open_connections.py --connections 1500 --seconds 60

Starts the explorer in a process of its own. A second process opens the connections, sends a part of a request on each,
adds a byte every second, and opens a new one a moment after the explorer has closed one. The normal client asks for the
list of models, which needs no decoding, and translates a short sentence, over a new connection each time. All come from
one address, the worst case for the limit per client. The same time without these connections is the baseline.
"""

import argparse
import asyncio
import http.client
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress

UNFINISHED = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nX-Padding: "
QUERY = {"direction": "de-en", "text": "Guten Morgen!", "orders": ["margin"], "length": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="de-en")
    parser.add_argument("--connections", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pause", type=float, default=1, help="seconds until a closed connection is opened again")
    parser.add_argument("--attack", type=int, metavar="PORT", help="hold the connections: what the second process does")
    options = parser.parse_args()
    if options.attack:
        asyncio.run(attack(options.attack, options.connections, options.seconds, options.pause))
        return
    command = [sys.executable, "-m", "anyorder", "explore", "--port", "0", "--device", "cpu", "--model", options.model]
    with subprocess.Popen([*command, "--threads", "1"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = int(server.stdout.readline().rpartition("127.0.0.1:")[2].split()[0])
        try:
            report("alone", measure(port, options.seconds))
            with subprocess.Popen([sys.executable, *sys.argv, "--attack", str(port)]) as attacker:
                report(f"beside {options.connections} half-open connections", measure(port, options.seconds))
                attacker.wait()
        finally:
            server.terminate()


def measure(port: int, seconds: float) -> list[tuple[str, str, float]]:
    """The kind, the status and the seconds of one request after another."""
    [model] = [info["name"] for info in json.loads(request(port, "GET", "/api/models")[1])["models"]]
    body = json.dumps({"model": model, **QUERY})
    kinds = {"models": ("GET", "/api/models", None), "translate": ("POST", "/api/translate", body)}
    answers, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        for kind, (method, path, content) in kinds.items():
            start = time.monotonic()
            try:
                status = str(request(port, method, path, content)[0])
            except OSError as error:
                status = type(error).__name__
            answers.append((kind, status, time.monotonic() - start))
            time.sleep(0.1)
    return answers


def request(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def report(name: str, answers: list[tuple[str, str, float]]) -> None:
    for kind in dict.fromkeys(kind for kind, _, _ in answers):
        waits = sorted(seconds for answered, _, seconds in answers if answered == kind)
        counts = Counter(status for answered, status, _ in answers if answered == kind)
        statuses = ", ".join(f"{status}: {count}" for status, count in counts.items())
        middle = waits[len(waits) // 2]
        print(
            f"{name}, {kind}: {len(waits)} requests ({statuses}), median {middle:.2f} s, worst {waits[-1]:.2f} s",
            flush=True,
        )


async def attack(port: int, connections: int, seconds: float, pause: float) -> None:
    files = connections + 100
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files if hard == resource.RLIM_INFINITY else min(files, hard), hard))
    opened: Counter[str] = Counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(hold(port, pause, opened) for _ in range(connections)))
    print(f"the attack opened {opened['connections']} connections; the server closed {opened['closed']} of them")


async def hold(port: int, pause: float, opened: Counter[str]) -> None:
    """One unfinished request after another."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened["connections"] += 1
            try:
                writer.write(UNFINISHED)
                while not reader.at_eof():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1000), 1)
                    writer.write(b"x")
                opened["closed"] += 1
            finally:
                writer.close()
        await asyncio.sleep(pause)


if __name__ == "__main__":
    main()

"""What a cluster must withstand, on several simulated machines of one core each, with the real command and a toy model.

    python campaigns/cluster.py                      # everything; about an hour on two cores
    python campaigns/cluster.py --only nodes,prepare --sentences 2000

nodes     two and four machines translate what one process translates, byte for byte
kills     workers and machines are killed at random moments: nothing is lost, nothing comes twice
drivers   the command is killed at random moments and begun again: the result is the same
memory    what the processes hold while any number of lines passes through them
prepare   the store is that of one machine
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
os.environ.setdefault("RAY_worker_niceness", "0")  # a busy machine would hardly run them

from tests.conftest import tiny, toy_pairs, write_pairs  # noqa: E402

from anyorder.data.corpus import parse_corpora  # noqa: E402
from anyorder.data.prepare import prepare  # noqa: E402
from anyorder.data.store import Store  # noqa: E402

MEMORY = 100_000_000
"""Bytes of the shared memory of a simulated machine."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--drivers", type=int, default=10)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="nodes,kills,drivers,memory,prepare")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        place = Place(Path(folder), given.sentences)
        checks: dict[str, Callable[[], str]] = {
            "nodes": lambda: check_nodes(place),
            "kills": lambda: check_kills(place, given.kills, given.seed),
            "drivers": lambda: check_drivers(place, given.drivers, given.seed),
            "memory": lambda: check_memory(place, given.lines),
            "prepare": lambda: check_prepare(place),
        }
        for name in given.only.split(","):
            start = time.monotonic()
            print(f"{name}: {checks[name]()} ({time.monotonic() - start:.0f} s)", flush=True)


class Place:
    """A toy model, sentences, and what one process makes of them."""

    def __init__(self, folder: Path, sentences: int):
        self.folder, self.sentences = folder, sentences
        write_pairs(folder, "train", toy_pairs(600, seed=7))
        write_pairs(folder, "test", toy_pairs(sentences, seed=8))
        prepare(("de", "en"), {"train": parse_corpora(f"{folder}/train.%", ("de", "en"))}, folder / "store",
                vocabulary=200, workers=1)  # fmt: skip
        tiny(Store(folder / "store").vocabulary, hidden_size=32, num_layers=1).save_pretrained(folder / "model")
        self._expected: tuple[bytes, bytes] | None = None

    def translate(self, out: str, *more: str) -> list[str]:
        given = ["--model", "model", "--direction", "de-en", "--device", "cpu", "--length", "predicted", "--json", out]
        return [sys.executable, "-m", "anyorder", "translate", "test.de", *given, *more]

    def start(self, command: list[str], **pipes: Any) -> subprocess.Popen:
        """The command; what it prints goes to a file."""
        with (self.folder / "printed").open("wb") as printed:
            return subprocess.Popen(command, cwd=self.folder, stdout=printed, stderr=subprocess.STDOUT, **pipes)

    def finish(self, command: list[str]) -> None:
        assert self.start(command).wait() == 0

    def check(self, out: str) -> None:
        """The file, which is removed, and what was printed are those of one process."""
        found = self.result(out)
        if self._expected is None:
            self.finish(self.translate("expected.jsonl"))
            self._expected = self.result("expected.jsonl")
            assert self._expected[0].count(b"\n") == self.sentences
        assert found == self._expected, f"{out} or what was printed differs"
        assert not list(self.folder.glob(f"{out}*")), "something is left behind"

    def result(self, out: str) -> tuple[bytes, bytes]:
        found = (self.folder / out).read_bytes(), (self.folder / "printed").read_bytes()
        (self.folder / out).unlink()
        return found


@contextmanager
def simulated(machines: int) -> Iterator[Any]:
    """The first machine has no core for work, so that every other one can be lost."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(machines):
        add(cluster)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def add(cluster: Any) -> None:
    cluster.add_node(num_cpus=1, object_store_memory=MEMORY)


def check_nodes(place: Place) -> str:
    for machines in (2, 4):
        with simulated(machines) as cluster:
            place.finish(place.translate("nodes.jsonl", "--cluster", cluster.address))
        place.check("nodes.jsonl")
    return f"{place.sentences:,} sentences on 2 and on 4 machines are byte-identical to one process"


def check_kills(place: Place, kills: int, seed: int) -> str:
    draw, killed, runs = random.Random(seed), {"worker": 0, "machine": 0}, 0
    with simulated(3) as cluster:
        while sum(killed.values()) < kills:
            runs += 1
            process = place.start(place.translate("kills.jsonl", "--cluster", cluster.address))
            blocks = place.folder / "kills.jsonl.blocks"
            while process.poll() is None and not (blocks.is_dir() and any(blocks.iterdir())):
                time.sleep(0.1)
            while process.poll() is None:
                time.sleep(draw.uniform(0.2, 6))
                if sum(killed.values()) == kills or process.poll() is not None:
                    continue
                if draw.random() < 0.5:
                    lost = draw.choice(sorted(cluster.worker_nodes, key=id))
                    cluster.remove_node(lost, allow_graceful=False)
                    add(cluster)
                    killed["machine"] += 1
                elif working := [one for one in workers() if one.cmdline()[0].startswith("ray::_run")]:
                    draw.choice(working).kill()
                    killed["worker"] += 1
            assert process.returncode == 0, "the command failed"
            place.check("kills.jsonl")
    return f"{killed['worker']} workers and {killed['machine']} machines killed in {runs} runs: byte-identical"


def check_drivers(place: Place, kills: int, seed: int) -> str:
    draw, kept = random.Random(seed), []
    blocks = place.folder / "drivers.jsonl.blocks"
    with simulated(2) as cluster:
        command = place.translate("drivers.jsonl", "--cluster", cluster.address)
        for _ in range(kills):
            before = kept[-1] if kept else 0
            process = place.start(command)
            # At some moment after a block has been added to the kept ones, if any is missing.
            while process.poll() is None and not (blocks.is_dir() and len(list(blocks.glob("*.json"))) > before):
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 1))
            assert process.poll() is None, "the command ended before it was killed: give more sentences"
            process.kill()
            process.wait()
            kept.append(len(list(blocks.glob("*.json"))))
            assert kept[-1] >= before
        place.finish(command)
    place.check("drivers.jsonl")
    return f"killed {kills} times, blocks kept each time: {kept}; then byte-identical"


def check_memory(place: Place, lines: int) -> str:
    """Lines come through a pipe; what the command, its workers and the rest of Ray hold is looked at on the way."""
    samples: list[tuple[int, int, int, int]] = []
    with simulated(2) as cluster:
        fast = ["--order", "left-to-right", "--schedule", "steps:1"]
        command = place.translate("memory.jsonl", "--cluster", cluster.address, *fast)
        command[command.index("predicted")] = "fixed:3"
        command.remove("test.de")
        process = place.start(command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        source = cycle((place.folder / "test.de").read_bytes().splitlines(keepends=True))
        for number in range(1, lines + 1):
            process.stdin.write(next(source))
            if number % max(1, lines // 50) == 0:
                process.stdin.flush()
                held = [resident(processes) for processes in ([psutil.Process(process.pid)], workers(), servers())]
                samples.append((number, *held))
                spent = psutil.Process(process.pid).cpu_times()
        process.stdin.close()
        assert process.wait() == 0
    out = place.folder / "memory.jsonl"
    with out.open("rb") as stream:
        assert sum(1 for _ in stream) == lines
    out.unlink()
    shown = [samples[len(samples) * share // 10 - 1] for share in (1, 2, 5, 8, 10)]
    texts = [f"{number:,}: {' + '.join(str(held >> 20) for held in rest)}" for number, *rest in shown]
    rate = lines / (spent.user + spent.system)
    return f"MiB of the command + workers + Ray: {'; '.join(texts)}; the command: {rate:,.0f} lines per CPU second"


def check_prepare(place: Place) -> str:
    command = [
        sys.executable,
        "-m",
        "anyorder",
        "prepare",
        "--languages",
        "de,en",
        "--train",
        "test.%",
        "--mono",
        "train.%",
    ]
    command += ["--vocabulary", "300", "--hold-out", "selection=test:50"]
    place.finish([*command, "--out", "alone"])
    with simulated(2) as cluster:
        place.finish([*command, "--out", "together", "--cluster", cluster.address])
    alone, together = (checksums(place.folder / name) for name in ("alone", "together"))
    assert alone == together
    return f"{len(alone)} files of a store of {place.sentences:,} pairs are equal"


def checksums(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def workers() -> list[psutil.Process]:
    return [one for one in family() if (one.cmdline() or [""])[0].startswith("ray::")]


def servers() -> list[psutil.Process]:
    return [one for one in family() if not (one.cmdline() or [""])[0].startswith("ray::")]


def family() -> list[psutil.Process]:
    """The processes of the simulated machines: those below this one, without the command."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if one.status() != psutil.STATUS_ZOMBIE and "anyorder" not in one.cmdline():
                found.append(one)
    return found


def resident(processes: list[psutil.Process]) -> int:
    """Bytes in memory."""
    total = 0
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total


if __name__ == "__main__":
    main()

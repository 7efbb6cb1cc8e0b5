"""Parts b, d and e of chaos: several processes at one place, as readers beside a writer and as two writers."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from campaigns.sandbox import Process, in_child
from campaigns.stage import JOBS, SECONDS, ChaosError, Stage, compare, expect

READS_OF_ORDER, READS_OF_MODEL = 10_000, 1_000
VERSIONS = 3
PAUSE, MODEL_PAUSE = 0.02, 0.3
"""The longest time in seconds between two replacements of an order, and of a model, which takes longer to read."""


def play_replacing(stage: Stage, draw: random.Random, number: int) -> str:
    """Read a learned order (0) or a model (1) again and again while another process replaces it."""
    folder = stage.scene(f"replacing {number}")
    writer = _replace_models if number else _replace_orders
    reader = _read_models if number else _read_orders
    stop = folder / "stop"
    pid = os.fork()
    if pid == 0:
        _silently(lambda: writer(folder / "here", stop, draw))
    try:
        while not (folder / "here" / "begun").exists() and not has_ended(pid):
            time.sleep(0.01)
        return in_child(lambda: reader(folder / "here"))
    finally:
        stop.touch()
        if os.waitpid(pid, 0)[1]:
            raise ChaosError("the writer failed")


def _silently(action: Callable[[], None]) -> None:
    """In a child: do it and exit."""
    code = 1
    try:
        action()
        code = 0
    except BaseException as error:
        print(f"{error!r}"[:500], file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _replace_orders(here: Path, stop: Path, draw: random.Random) -> None:
    import torch

    from anyorder.models.native.translation_model import TranslationModel
    from anyorder.orders.learned import load_order, save_order

    model = TranslationModel.from_pretrained(here / "model")
    place = here / "model" / "learned" / "default"
    network, _ = load_order(place)
    count = 0
    while not stop.exists():
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(count % VERSIONS + 1)
        save_order(network, place, model, ["de-en"])
        count += 1
        (here / "begun").touch()
        time.sleep(draw.uniform(0, PAUSE))


def _read_orders(here: Path) -> str:
    from anyorder.models.native.translation_model import TranslationModel
    from anyorder.orders.learned import default_order, find_order, load_order

    model = TranslationModel.from_pretrained(here / "model")
    seen: dict[str, set[float]] = {}
    for read in range(READS_OF_ORDER):
        if default_order(model, "de-en") != "learned":
            raise ChaosError(f"read {read}: the model's order was not found")
        network, record = load_order(find_order("default", model, "de-en"))
        values = {float(value) for parameter in network.parameters() for value in parameter.detach().unique()}
        if len(values) != 1 or seen.setdefault(record.fingerprint, values) != values:
            raise ChaosError(f"read {read}: weights of {sorted(values)} with the fingerprint {record.fingerprint}")
    return f"{READS_OF_ORDER:,} reads of a learned order, {len(seen)} versions seen"


def _replace_models(here: Path, stop: Path, draw: random.Random) -> None:
    import torch

    from anyorder.models.native.translation_model import TranslationModel

    model = TranslationModel.from_pretrained(here / "model")
    version = 0
    while not stop.exists():
        version = version % VERSIONS + 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(version)
        model.save_pretrained(here / "replaced-model")
        (here / "begun").touch()
        time.sleep(draw.uniform(0, MODEL_PAUSE))


def _read_models(here: Path) -> str:
    from anyorder.models.native.translation_model import TranslationModel

    seen = set()
    for read in range(READS_OF_MODEL):
        model = TranslationModel.from_pretrained(here / "replaced-model")
        values = {float(value) for parameter in model.parameters() for value in parameter.detach().unique()}
        if len(values) != 1:
            raise ChaosError(f"read {read}: weights of {sorted(values)} in one model")
        seen |= values
    return f"{READS_OF_MODEL:,} reads of a model, {len(seen)} versions seen"


def play_two_writers(stage: Stage, draw: random.Random, number: int) -> str:
    """A second command with the same output is refused while the first one writes."""
    verb = list(JOBS)[number % len(JOBS)]
    job = JOBS[verb]
    expected, _, _ = stage.unbroken(verb)
    folder = stage.scene(f"writers {number}")
    first = _start_and_hold(folder, verb)
    second_folder = folder / "second"
    second_folder.mkdir()
    (second_folder / "here").symlink_to("../here")
    try:
        for arguments in [job.arguments, job.again] if job.resume else [job.arguments]:
            ended = Process(second_folder, arguments, quick_workers=False).wait(SECONDS)
            expect(ended, 2, verb)
    finally:
        first.send(signal.SIGCONT)
    expect(first.wait(SECONDS), 0, verb)
    compare(verb, folder / "here" / "disk", expected)
    return f"{verb}: {ended.stderr.strip().splitlines()[-1]}"


def _start_and_hold(folder: Path, verb: str) -> Process:
    """A command that was stopped while it writes."""
    process, sign = Process(folder, JOBS[verb].arguments, quick_workers=False), folder / "here" / JOBS[verb].sign
    while not sign.exists() and not has_ended(process.pid):
        time.sleep(0.0005)
    time.sleep(0.005)  # a file is made first and locked then
    process.send(signal.SIGSTOP)
    while _state(process.pid) not in "TZ":
        time.sleep(0.0005)
    if not sign.exists() or has_ended(process.pid):
        raise ChaosError(f"{verb}: the first ended before it could be held: {process.wait().stderr[-200:]}")
    return process


def play_reading(stage: Stage, draw: random.Random, number: int) -> str:
    """Open a store (0), a run's model (1) or its order (2) again and again while a command writes it."""
    verb = ("prepare", "train", "learn-order")[number]
    stage.unbroken(verb)
    folder = stage.scene(f"reading {number}")
    writer = Process(folder, JOBS[verb].arguments, quick_workers=False)
    reader_result = in_child(lambda: _read_while(verb, folder / "here", writer.pid))
    expect(writer.wait(SECONDS), 0, verb)
    return f"{verb}: {reader_result}"


def _read_while(verb: str, here: Path, pid: int) -> str:
    from anyorder.data.store import Store
    from anyorder.errors import InputError
    from anyorder.models.native.translation_model import TranslationModel
    from anyorder.orders.learned import load_order

    def read_store(out: Path) -> None:
        store = Store(out)
        for name in ("train", "dev"):
            store.check_ids(store.split(name), len(store.vocabulary))

    target, read = {
        "prepare": (here / "disk" / "out", read_store),
        "train": (here / "disk" / "out" / "model", TranslationModel.from_pretrained),
        "learn-order": (here / "disk" / "out" / "order", load_order),
    }[verb]
    reads, appeared = 0, False
    while not has_ended(pid) or not reads:
        appeared = appeared or target.exists()
        try:
            read(target)
            reads += 1
        except InputError as error:
            if appeared:
                raise ChaosError(f"{verb}: {error}") from None
            time.sleep(0.001)
    return f"read {reads} times while it was written"


def has_ended(pid: int) -> bool:
    """Whether a process has ended, though its parent may not know yet."""
    return _state(pid) == "Z"


def _state(pid: int) -> str:
    """The state of a process in one letter, as the kernel names it."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"

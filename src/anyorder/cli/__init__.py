"""The command `anyorder`: a verb, and that verb's options. Bad input ends in one line and exit code 2."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NoReturn

from anyorder import __version__
from anyorder.errors import InputError, unknown
from anyorder.progress import is_main_process

# Verbs are imported only when they are called: help for one does not wait for the others.
VERBS = {
    "prepare": "Turn aligned text into a prepared store: tokenize, learn subwords, filter, encode.",
    "pretrain": "Train a masked language model on monolingual text, to start a translation model from.",
    "train": "Train an undirected translation model on a prepared store, both directions at once.",
    "learn-order": "Learn the generation order of a trained model by reinforcement.",
    "translate": "Translate sentences in any order, and show them filling up.",
    "evaluate": "Score orders on a test set: BLEU, chrF, significance.",
    "analyze": "Measure the orders of translations: their shape, and what they have to do with the language.",
    "explore": "Explore orders in the browser: watch sentences fill, and fill them by hand.",
    "orders": "List the orders by name.",
}


def main(arguments: list[str] | None = None) -> int:
    try:
        code = _main(sys.argv[1:] if arguments is None else arguments)
    finally:
        parted = _part_from_other_processes()
    if parted:
        _leave(code)
    return code


def _main(arguments: list[str]) -> int:
    try:
        with _clean_up_when_terminated():
            code = _run(arguments)
            sys.stdout.flush()
            return code
    except InputError as error:
        _refuse(arguments, str(error))
        return 2
    except BrokenPipeError:
        _give_up_output()
        return 141
    except OSError as error:  # a full disk, a place that may not be read or written
        if error.errno == errno.ENOSPC and error.filename is None:
            _give_up_output()
        reason = error.strerror or str(error)
        _refuse(arguments, f"{error.filename}: {reason}" if error.filename else reason)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _refuse(arguments: list[str], line: str) -> None:
    if is_main_process():
        verb = f" {arguments[0]}" if arguments and arguments[0] in VERBS else ""
        print(f"anyorder{verb}: {line}", file=sys.stderr)


def _give_up_output() -> None:
    """Nobody takes our output; Python would complain once more when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _clean_up_when_terminated() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: half-written files are removed on the way out.

    Not where a launcher started several processes: one that waits for another would not hear it.
    """
    if threading.current_thread() is not threading.main_thread() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"anyorder {__version__}")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise unknown("verb", verb, VERBS)
    name = verb.replace("-", "_")
    function: Callable[..., None] = getattr(import_module(f"anyorder.cli.{name}"), name)
    from anyorder.cli.parser import parse

    function(**parse(verb, VERBS[verb], function, rest))
    return 0


def _part_from_other_processes() -> bool:
    """Close what `accelerate launch` or `torchrun` opened, if they did."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    distributed.destroy_process_group()
    return True


def _leave(code: int) -> NoReturn:
    """End the process without taking Python apart: threads of the process group may still let go of what they held, and
    a thread that asks for a Python that is no longer there aborts the process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _overview() -> str:
    lines = [
        "anyorder learns, decodes and analyses the order in which a masked sequence model generates.",
        "",
        "usage: anyorder VERB [options]       anyorder VERB --help tells all of them",
        "",
    ]
    lines += [f"  {verb:12} {about}" for verb, about in VERBS.items()]
    lines += [
        "",
        "Try:   anyorder translate --model de-en --direction de-en --order margin --trace 'Guten Morgen, Welt!'",
        "       anyorder evaluate --model de-en --direction de-en --orders left-to-right,margin --limit 20",
    ]
    return "\n".join(lines)

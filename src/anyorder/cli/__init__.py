"""The command `anyorder`: a verb, and that verb's options. Bad input ends in one line and exit code 2.

It imports almost nothing itself: a verb and what it needs are imported when that verb is called.
"""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn

from anyorder import __version__
from anyorder.errors import InputError, unknown

VERBS = {
    "prepare": "Turn parallel text into a store that training reads: tokenize, learn subwords, filter, encode.",
    "pretrain": "Train a masked language model on monolingual text, to start a translation model from.",
    "train": "Train an undirected translation model on a prepared store, in both directions at once.",
    "learn-order": "Learn the generation order of a trained model by reinforcement learning.",
    "translate": "Translate sentences in any order, and show how they are filled in.",
    "evaluate": "Score orders, or files of translations, on a test set: BLEU, chrF, significance.",
    "analyze": "Measure the orders of translations: what they look like, and how they relate to the language.",
    "explore": "Explore orders in the browser: watch sentences being filled in, and fill them by hand.",
    "orders": "List the orders and schedules by name.",
}
TAKES_PLUGINS = ("learn-order", "translate", "evaluate", "explore", "orders")
"""The verbs that take names which a user's own file may register."""
SHELLS = ("bash", "zsh")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code is 0, 2 (bad input), 130 (Ctrl-C) or 141 (nobody reads the output)."""
    try:
        code = _main(sys.argv[1:] if arguments is None else arguments)
    finally:
        was_distributed = _leave_process_group()
    if was_distributed:
        _exit_at_once(code)
    return code


def _main(arguments: list[str]) -> int:
    _open_closed_streams()
    try:
        with _clean_up_when_terminated():
            _run(arguments)
            sys.stdout.flush()
            return 0
    except InputError as error:
        return _refuse(arguments, str(error))
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:  # a full disk, a place that may not be read or written
        if error.errno == errno.ENOSPC and error.filename is None:
            _discard_output()
        reason = error.strerror or str(error)
        return _refuse(arguments, f"{error.filename}: {reason}" if error.filename else reason)
    except UnicodeEncodeError as error:
        _discard_output()
        return _refuse(arguments, f"text cannot be written in this locale's encoding, {error.encoding}; {_USE_UTF8}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> None:
    _check_encoding(arguments)
    verb, *rest = arguments or ["--help"]
    if verb in ("-h", "--help", "help"):
        print(_overview())
    elif verb == "--version":
        print(f"anyorder {__version__}")
    elif verb == "--print-completion":
        if len(rest) != 1 or rest[0] not in SHELLS:
            raise InputError(f"--print-completion: expected one of {', '.join(SHELLS)}")
        with _exit_quietly_when_interrupted():
            print(import_module("anyorder.cli.completion").completion_script(rest[0]))
    elif verb in VERBS:
        _run_verb(verb, rest)
    else:
        raise unknown("verb", verb, VERBS)


def _run_verb(verb: str, arguments: list[str]) -> None:
    with _exit_quietly_when_interrupted():
        function = verb_function(verb)
        from anyorder.cli.parser import parse, with_flag
    try:
        function(**parse(verb, VERBS[verb], function, arguments, plugins=verb in TAKES_PLUGINS))
    except InputError as error:
        raise InputError(with_flag(error, function)) from error


def verb_function(verb: str) -> Callable[..., None]:
    """The function of a verb, whose signature and docstring are its command line."""
    name = verb.replace("-", "_")
    function: Callable[..., None] = getattr(import_module(f"anyorder.cli.{name}"), name)
    return function


def _overview() -> str:
    lines = [
        "anyorder learns, decodes and analyzes the order in which a masked sequence model generates its tokens.",
        "",
        "usage: anyorder VERB [options]       'anyorder VERB --help' lists the options of a verb",
        "",
    ]
    lines += [f"  {verb:12} {summary}" for verb, summary in VERBS.items()]
    lines += [
        "",
        "Try:   anyorder translate --model de-en --direction de-en --order margin --trace 'Guten Morgen, Welt!'",
        "       anyorder evaluate --model de-en --direction de-en --orders left-to-right,margin --limit 20",
        "",
        'Tab completion for this shell:   eval "$(anyorder --print-completion bash)"   (or zsh)',
    ]
    return "\n".join(lines)


def _check_encoding(arguments: list[str]) -> None:
    """Python hands over what it cannot decode as surrogates, which no file, tokenizer or terminal takes."""
    for argument in arguments:
        if not any("\ud800" <= character <= "\udfff" for character in argument):
            continue
        raw = os.fsencode(argument)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"'{raw.decode('utf-8', 'backslashreplace')}' is not valid UTF-8") from None
        encoding = sys.getfilesystemencoding()
        raise InputError(f"'{text}' cannot be read in this locale's encoding, {encoding}; {_USE_UTF8}")


_USE_UTF8 = "set PYTHONUTF8=1 or LC_ALL=C.UTF-8"


def _refuse(arguments: list[str], line: str) -> int:
    from anyorder.progress import is_main_process

    if is_main_process():
        verb = f" {arguments[0]}" if arguments and arguments[0] in VERBS else ""
        print(f"anyorder{verb}: {line}", file=sys.stderr)
    return 2


def _open_closed_streams() -> None:
    """A closed standard stream leads to /dev/null, so that no file which is opened later takes its number.

    `sys.stdin` stays None, so that a verb which reads it can say that it is closed.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            if name != "stdin":
                setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def _discard_output() -> None:
    """Nobody takes the output; Python would complain once more when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _clean_up_when_terminated() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: half-written files are removed on the way out.

    Not where a launcher started several processes: one that waits for another would not react to it.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield
        return
    with _handle_signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number)):
        yield


@contextmanager
def _exit_quietly_when_interrupted() -> Iterator[None]:
    """Ctrl-C during imports ends the process at once: an exception inside a library's import may not survive it."""

    def leave(number: int, frame: Any) -> NoReturn:
        os.write(2, b"interrupted\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or handled by the caller
        yield
        return
    with _handle_signal(signal.SIGINT, leave):
        yield


@contextmanager
def _handle_signal(number: signal.Signals, handler: Callable[[int, Any], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, previous)


def _leave_process_group() -> bool:
    """Leave the group of processes that `accelerate launch` or `torchrun` started, if this process joined one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    distributed.destroy_process_group()
    return True


def _exit_at_once(code: int) -> NoReturn:
    """End the process without finalizing Python: threads of the process group may still run, and one that needs the
    interpreter after it is gone aborts the process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)

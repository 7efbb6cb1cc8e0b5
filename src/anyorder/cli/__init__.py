"""The command `anyorder`: a verb, and that verb's options. Bad input ends in one line and exit code 2.

It imports almost nothing itself: a verb and what it needs are imported when that verb is called.
"""

from anyorder.cli.signals import exit_at_once_on_signals, received, unwind_on_signals

with exit_at_once_on_signals():
    import errno
    import os
    import re
    import signal
    import sys
    from collections.abc import Callable
    from contextlib import suppress
    from importlib import import_module
    from typing import NoReturn

    from anyorder import __version__
    from anyorder.errors import InputError, LostProcessError, unknown

VERBS = {
    "prepare": "Prepare parallel text for training: tokenize, learn subwords, filter, encode, write a store.",
    "pretrain": "Pretrain a masked language model on monolingual text, to initialize a translation model.",
    "train": "Train an undirected translation model on a prepared store, in both directions at once.",
    "distill": "Translate the training text of a store with an autoregressive baseline, to train a model on it.",
    "puzzles": "Generate puzzles, such as Sudoku, with their solutions.",
    "train-task": "Train a masked model to solve puzzles, such as Sudoku.",
    "learn-order": "Learn the generation order of a trained model by reinforcement learning.",
    "translate": "Translate sentences in any order, and trace how they are filled in.",
    "infill": "Fill the masks in texts with any masked language model, in any order.",
    "generate": "Continue prompts with a masked language model: append masks and fill them in any order.",
    "evaluate": "Score orders on translations, puzzles or masked text, or score files, with significance tests.",
    "analyze": "Measure generation orders: what they look like, and how they relate to linguistic structure.",
    "explore": "Explore orders in the browser: watch sentences being filled in, or fill them in by hand.",
    "export-order": "Write a learned order as one file of plain PyTorch, for engines that decode without anyorder.",
    "reproduce": "Reproduce a table of the paper: learn, decode and score whatever is missing.",
    "convert": "Make an older masked language model loadable: pytorch_model.bin, vocab.txt, fairseq.",
    "orders": "List the orders, schedules and revisions by name.",
}
_WITHOUT_PLUGINS = ("prepare", "pretrain", "train", "distill", "convert", "reproduce", "export-order")
TAKES_PLUGINS = [verb for verb in VERBS if verb not in _WITHOUT_PLUGINS]
"""The verbs whose options accept names that a user's plugin may register."""
MODULES = {
    **dict.fromkeys(("pretrain", "train", "train-task", "learn-order"), "training"),
    **dict.fromkeys(("translate", "infill", "generate"), "lines"),
    **dict.fromkeys(("orders", "export-order"), "orders"),
}
"""The modules of this package that hold several verbs; any other verb has one of its own name."""
SHELLS = ("bash", "zsh")
MAX_LINE = 1000
"""Maximum characters of an error line; it may repeat the contents of a damaged file."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code is 0, 2 (bad input), 130 (Ctrl-C), 141 (nobody reads the output) or 143 (SIGTERM).

    Without arguments, it runs the command line of this process, which ends afterwards.
    """
    if arguments is None:
        # OpenMP's idle threads should sleep instead of busy-waiting on cores that other programs may need.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        code = _main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    finally:
        was_distributed = _leave_process_group()
    if was_distributed:
        _exit_at_once(code)
    if arguments is None:  # the process is about to end; an interrupt could only disturb that
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _main(arguments: list[str]) -> int:
    _open_closed_streams()
    try:
        with unwind_on_signals():
            try:
                _run(arguments)
            except SystemExit as end:  # argparse has printed the help
                if end.code:
                    raise
            sys.stdout.flush()
            return 0
    except BaseException as error:
        if received() == signal.SIGTERM:
            return 128 + signal.SIGTERM
        if received() == signal.SIGINT:
            raise KeyboardInterrupt from None
        return _explain(arguments, error)


def _explain(arguments: list[str], error: BaseException) -> int:
    """The exit code for an error, and one line about it. An unexpected error is raised again."""
    try:
        raise error
    except LostProcessError as lost:
        _print_line(arguments, str(lost))
        _exit_at_once(2)  # the other processes do not answer, so the group cannot be left cleanly
    except InputError as wrong:
        line = str(wrong)
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as failed:  # a full disk, a path that may not be read or written
        if failed.errno == errno.ENOSPC and failed.filename is None:
            _discard_output()
        reason = failed.strerror or str(failed)
        line = f"{failed.filename}: {reason}" if failed.filename else reason
    except UnicodeEncodeError as text:
        _discard_output()
        line = f"text cannot be written in this locale's encoding, {text.encoding}; {_USE_UTF8}"
    except (MemoryError, RuntimeError) as failed:
        from anyorder.memory import is_out_of_memory

        if not is_out_of_memory(failed):
            raise
        line = "there is not enough memory for this; use smaller sizes"
    from anyorder.progress import is_main_process

    if is_main_process():
        _print_line(arguments, line)
    return 2


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
        with exit_at_once_on_signals():
            print(import_module("anyorder.cli.completion").completion_script(rest[0]))
    elif verb in VERBS:
        _run_verb(verb, rest)
    else:
        raise unknown("verb", verb, VERBS)


def _run_verb(verb: str, arguments: list[str]) -> None:
    with exit_at_once_on_signals():
        function = verb_function(verb)
        from anyorder.cli.parser import parse, positionals, with_flag
        from anyorder.plugins import plugin_error
    try:
        values = parse(verb, function, arguments)
        function(*[values.pop(name) for name in positionals(function)], **values)
    except LostProcessError:
        raise
    except InputError as error:
        raise InputError(with_flag(error, function)) from error
    except Exception as error:
        raise plugin_error(error) or error from error


def verb_function(verb: str) -> Callable[..., None]:
    """The function of a verb, whose signature and docstring are its command line."""
    return getattr(import_module(f"anyorder.cli.{MODULES.get(verb, verb)}"), verb.replace("-", "_"))


def _overview() -> str:
    verbs = "\n".join(f"  {verb:12} {summary}" for verb, summary in VERBS.items())
    return f"""\
anyorder learns, decodes and analyzes the order in which a masked sequence model generates its tokens.

usage: anyorder VERB [options]       'anyorder VERB --help' lists the options of a verb

{verbs}

Try:   anyorder translate --model de-en --direction de-en --order margin --trace 'Guten Morgen, Welt!'
       anyorder evaluate --model de-en --direction de-en --orders left-to-right,margin --limit 20

Tab completion for this shell:   eval "$(anyorder --print-completion bash)"   (or zsh)"""


def _check_encoding(arguments: list[str]) -> None:
    """Reject undecodable arguments: Python passes them as surrogates, which no file, tokenizer or terminal accepts."""
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


def _print_line(arguments: list[str], line: str) -> None:
    """Print one line on standard error, whatever characters it contains."""
    verb = f" {arguments[0]}" if arguments and arguments[0] in VERBS else ""
    printable = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", line).encode("utf-8", "backslashreplace").decode()
    printable = printable if len(printable) <= MAX_LINE else f"{printable[:MAX_LINE]} ..."
    with suppress(OSError):  # nobody reads it
        print(f"anyorder{verb}: {printable}", file=sys.stderr)


def _open_closed_streams() -> None:
    """Redirect closed standard streams to /dev/null, so that no file opened later gets their numbers.

    `sys.stdin` stays None, so that a verb that reads it can report that it is closed.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            if name != "stdin":
                setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def _discard_output() -> None:
    """Discard the output, which nobody reads; Python would complain again when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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

"""The command `anyorder`: a verb, and that verb's options. Bad input ends in one line and exit code 2."""

import os
import sys
from collections.abc import Callable
from importlib import import_module

from anyorder import __version__
from anyorder.errors import InputError, unknown
from anyorder.progress import is_main_process

# Verbs are imported only when they are called: help for one does not wait for the others.
VERBS = {
    "prepare": "Turn aligned text into a prepared store: tokenise, learn subwords, filter, encode.",
    "pretrain": "Train a masked language model on monolingual text, to start a translation model from.",
    "train": "Train an undirected translation model on a prepared store, both directions at once.",
    "learn-order": "Learn the generation order of a trained model by reinforcement.",
    "translate": "Translate sentences in any order, and show them filling up.",
    "evaluate": "Score orders on a test set: BLEU, chrF, significance.",
    "orders": "List the orders by name.",
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    except InputError as error:
        if is_main_process():
            verb = f" {arguments[0]}" if arguments and arguments[0] in VERBS else ""
            print(f"anyorder{verb}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        _part_from_other_processes()


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


def _part_from_other_processes() -> None:
    """Close what `accelerate launch` or `torchrun` opened: its threads would abort a process that just ends."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


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

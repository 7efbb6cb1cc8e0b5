"""Commands with odd values in their options. The options come from the parsers, so that a new one is tried as well."""

import random
from collections.abc import Container
from functools import cache
from typing import Any

from anyorder.cli import VERBS, verb_function
from anyorder.cli.parser import make_parser
from campaigns.seed_files import VERB_COMMANDS

NUMBERS = [
    "0", "-1", "1", "2", "3", "64", "-0", "1e9", "1000000000", "2147483648", "9223372036854775808",
    "99999999999999999999", "1" + "0" * 30, "-1" + "0" * 30, "nan", "inf", "-inf", "1e308", "1e-320", "0.5", "-0.5",
    "1.5", "1e400", "0x10", "1_0", "²", "٣", "+5", " 5", "1" * 5000,
]  # fmt: skip
TEXTS = [
    "", " ", "\t", "a\nb", "\u2028", "\udcff", "\udcc3(", "é", "e\u0301", "👩‍👩‍👧", "\u202e", "x" * 300, "x" * 5000,
    "null", "true", "false", "Yes", "none", "[]", "{}", "[1, 2", "{a: b}", "{a: 1, a: 2}", "[[[[",
    "!!python/name:os.system", "&a [*a]", "%s%n", "{0}", "[red]x[/red]", "[/]", "-", "--", "-x", "=", ",", ",,",
    "a,b", "a,a", ":", "::", "@", "a=b", "a=1,b=2", "margin", "margin:", "margin:x=1", "learned", "learned:",
    "learned:nowhere", "learned:order", "learned:model", "uniform", "outer-in:stride=1e19", "outer-in:stride=nan",
    "outer-in:stride=-1", "easy-first:logp=nan", "easy-first:logp=1e308", "easy-first:x", "threshold:",
    "threshold:nan", "threshold:2", "threshold:0.5", "fixed:0", "fixed:-1", "fixed:99999", "fixed:46",
    "fixed:1" + "0" * 30, "candidates:0", "candidates:99999999999999999999", "candidates:2", "table:0", "table:3",
    "table:x", "predicted", "gold", "steps:4", "cosine:9", "revise:2", "de-en", "en-de", "de-de", "de", "xx-en",
    "de-en,en-de", "de-en,de-en", "de,en", "en,de", "auto", "cpu", "cuda", "meta", "bootstrap", "13a", "intl", "char",
    "zh", "moses", "flores101", "20,30,none", "0,none", "none,none", "spacy:x", "stanza:en", "en_core_web_sm", "a+b",
    "tensorboard", "wandb", "ppo", "rloo", "a2c", "one,2", "blocks:2+threshold:0.5", "blocks:0", "blocks:2+blocks:2",
    "klass", "klass:2", "factor:1", "factor:nan", "entropy-bound:0.1", "entropy-bound:", "dilated", "dilated:1",
    "mask-predict:3", "mask-predict:0", "gibbs", "gibbs:99999999999", "refine:2", "p2:3", "remdm:5,0.1", "remdm:x",
    "positions:2", "joint:2", "joint:0", "joint:99999", "sudoku-4x4", "sudoku-9x9", "hf:masked", "hf:", "hf:model",
    "table1", "table9", "analysis", "[MASK]", "1[MASK]", "0" * 16, "1" * 16,
]  # fmt: skip
PATHS = [
    "nowhere", "nowhere/at/all", ".", "..", "text", "store", "model", "order", "run", "run/model", "a.jsonl",
    "b.jsonl.gz", "c.jsonl.xz", "text/few.de", "text/few.en", "text/few.de.gz", "text/few.%", "text/%",
    "text/train.%", "x=text/train.%@text/few.de", "text/train.%,text/dev.%", "null", "full",
    "model/model.safetensors", "store/manifest.json", "out.json", "out.jsonl", "out.md", "out.tex", "out.html",
    "out.json.gz", "out.jsonl.xz", "new/out.json", "text/few.de/out.json", "full/out", "null/out", "x" * 256,
    "a/" * 3000, "out.json/", "~", "~nobody/x", "file:///x", "http://x", "hf/none", "a\\b", "con", "plugin.py",
    "train.yaml", "translate.yaml", "loop", "\udcff.json", "learn-order.yaml", "-", "store/../store",
]  # fmt: skip


@cache
def options_of(verb: str) -> dict[str, list[str]]:
    """The options of a verb, as a user writes them, and odd values that are near what each one takes."""
    parser = make_parser(verb, verb_function(verb))
    found = {}
    for action in parser._actions:
        kind = str(getattr(action, "_typehint", None) or action.type or "str")
        near = NUMBERS if "int" in kind or "float" in kind else PATHS if "Path" in kind else TEXTS
        for name in action.option_strings:
            if name.startswith("--"):
                found[name] = near
    return found


def odd_command(draw: random.Random) -> list[str]:
    """A verb's command with one to three odd options, or no proper command at all."""
    if draw.random() < 0.03:
        return draw.choice(_NO_COMMANDS)
    verb = draw.choice(list(VERBS))
    command = list(VERB_COMMANDS[verb])
    options = options_of(verb)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        option = draw.choice(list(options))
        value = draw.choice(options[option]) if draw.random() < 0.75 else odd_option(draw)
        command = _without(command, option, options) if draw.random() < 0.7 else command
        command += _as_arguments(draw, option, value)
    if draw.random() < 0.1:
        command.insert(draw.randrange(1, len(command) + 1), odd_option(draw))
    return command[: draw.randint(1, len(command))] if draw.random() < 0.05 else command


_NO_COMMANDS: list[list[Any]] = [
    [], ["--help"], ["--version"], ["--print-completion"], ["--print-completion", "bash"],
    ["--print-completion", "fish"], ["-h"], ["nonsense"], [""], ["\udcff"], ["--"], ["-"], ["translate"],
    ["evaluate"], ["analyze"], ["train"], ["prepare"], ["pretrain"], ["learn-order"], ["--x"], ["orders", "x"],
    ["translate", "--help"], ["train", "--print_config"], ["Translate"], ["translate", "translate"], ["x" * 5000],
]  # fmt: skip


def odd_option(draw: random.Random) -> str:
    return draw.choice(draw.choice([NUMBERS, TEXTS, PATHS]))


def _as_arguments(draw: random.Random, option: str, value: str) -> list[str]:
    form = draw.random()
    if form < 0.08:
        return [option]
    if form < 0.2:
        return [f"{option}={value}"]
    if form < 0.23:
        return [option[: max(3, len(option) - 2)], value]
    return [option, value]


def _without(command: list[str], option: str, options: Container[str]) -> list[str]:
    """The command without an option and its value."""
    if option not in command:
        return command
    at = command.index(option)
    has_value = at + 1 < len(command) and command[at + 1] not in options
    return command[:at] + command[at + 1 + has_value :]

"""From a verb's function to its command line: jsonargparse reads the signature and the docstring.

Options are written with hyphens (`--max-length`), switches need no value (`--trace`), and a recipe (`--config FILE`)
may hold any of them.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, NoReturn

import jsonargparse

from anyorder.errors import InputError, unknown

jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


def parse(verb: str, summary: str, function: Callable[..., None], arguments: list[str]) -> dict[str, Any]:
    """The values for a call of `function`. Its attribute `positionals` maps parameters to `add_argument` options.

    So do options there that the signature cannot tell, such as one that may be given several times: `--model`.
    """
    positionals: dict[str, dict[str, Any]] = getattr(function, "positionals", {})
    parser = _Parser(prog=f"anyorder {verb}", description=_description(summary, function))
    parser.usage = " ".join([f"anyorder {verb} [options]", *(f"[{name}]" for name in positionals if name[0] != "-")])
    parser.add_argument("--config", action=_Recipe, help="a recipe: a YAML file with any of these options")
    for name, options in positionals.items():
        parser.add_argument(name, **options)
    parser.add_function_arguments(function, skip={name.lstrip("-") for name in positionals}, fail_untyped=True)
    known = {option for action in parser._actions for option in action.option_strings}
    switches = _make_switches(parser)
    parsed = parser.parse_args(_normal(arguments, known, switches))
    values = dict(vars(parser.instantiate(parsed)))
    values.pop("config", None)
    return values


class _Parser(jsonargparse.ArgumentParser):
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        line = re.sub(r"Expected a <class '(\w+)'>", r"expected \1", " ".join(message.split()))
        line = re.sub(
            r"Does not validate .* Errors: - expected (\w+).* Given value: ", r"expected \1. Got value: ", line
        )
        line = re.sub(r'Parser key "([\w.]+)"', lambda match: _hyphens(f"--{match[1]}"), line)
        raise InputError(f"{line} (see {self.prog} --help)")

    def format_help(self) -> str:
        text = re.sub(r"--[a-z][a-z_.]*", lambda match: _hyphens(match[0]), super().format_help())
        text = re.sub(r"<class '(\w+)'>", r"\1", text)
        return re.sub(r"\n  --[a-z]+ CONFIG +Path to a\s+configuration\s+file\.", "", text)


class _Recipe(jsonargparse.ActionConfigFile):
    """Takes options from a file; messages name it."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        try:
            super().__call__(parser, cfg, values, option_string)
        except InputError as error:
            raise InputError(f"{values}: {error}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{values}: invalid UTF-8 (byte {error.start + 1})") from None
        try:
            _check_names(parser, cfg)
        except InputError as error:
            raise InputError(f"{values}: {error}") from None


def _check_names(parser: jsonargparse.ArgumentParser, given: jsonargparse.Namespace) -> None:
    """Options and groups of options exist. The parser finds this only later, when it no longer knows the recipe."""
    known = {action.dest for action in parser._actions if not action.dest.startswith(("help", "print_"))}
    for key, value in vars(given).items():
        if key not in known:
            raise unknown("option", key, sorted(name for name in known - {"config"} if "." not in name))
        own = sorted(name.removeprefix(f"{key}.") for name in known if name.startswith(f"{key}."))
        if own and not isinstance(value, jsonargparse.Namespace):
            raise InputError(f"{key} is {value}, expected options of its own ({', '.join(own)})")
        for name in vars(value) if own else ():
            if name not in own:
                raise unknown(f"option of {key}", name, own)


def _description(summary: str, function: Callable[..., None]) -> str:
    """The summary, and the paragraphs of the docstring between its first line and its arguments."""
    body = (inspect.getdoc(function) or "").partition("\n\n")[2].partition("Args:")[0]
    return f"{summary} {' '.join(body.split())}".strip()


def _make_switches(parser: jsonargparse.ArgumentParser) -> set[str]:
    """The options that are true or false."""
    switches = set()
    for action in parser._actions:
        if getattr(action, "_typehint", None) is bool:
            switches.update(action.option_strings)
            action.metavar = "[true|false]"
    return switches


def _normal(arguments: list[str], known: set[str], switches: set[str]) -> list[str]:
    """Arguments as the parser wants them: underscores in names, a value behind every switch."""
    normal: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            return normal + arguments[i:]
        name, equals, value = argument.partition("=")
        if name.startswith("--") and name.replace("-", "_").replace("__", "--", 1) in known:
            name = name.replace("-", "_").replace("__", "--", 1)
        normal.append(f"{name}{equals}{value}")
        follows = arguments[i + 1] if i + 1 < len(arguments) else ""
        if name in switches and not equals and follows not in ("true", "false"):
            normal[-1] = f"{name}=true"
    return normal


def _hyphens(option: str) -> str:
    return option.replace("_", "-")

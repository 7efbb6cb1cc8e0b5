"""Turn a verb's function into its command line: jsonargparse reads the signature and the docstring.

Options are written with hyphens (`--max-length`), switches need no value (`--trace`), and a recipe (`--config FILE`)
may hold any of them. This is the one place that knows which flag sets which field of a config.
"""

import inspect
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, get_args

import jsonargparse
import yaml  # type: ignore[import-untyped]

from anyorder.errors import InputError, unknown
from anyorder.plugins import load_plugin

MAX_RECIPE, MAX_DEPTH = 1 << 20, 20
jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


def parse(
    verb: str, summary: str, function: Callable[..., None], arguments: list[str], plugins: bool = False
) -> dict[str, Any]:
    """The values for a call of `function`.

    Plugins are loaded before any config is created, so that configs may check names against what plugins register.
    """
    parser = make_parser(verb, summary, function, plugins)
    parsed = parser.parse_args(_normalize(parser, arguments))
    _check_nulls(parser, parsed)
    given = parsed.pop("plugin", [])
    for path in ",".join([given] if isinstance(given, str) else given).split(","):
        if path.strip():
            load_plugin(path.strip())
    values = dict(vars(parser.instantiate(parsed)))
    values.pop("config", None)
    return values


@cache
def make_parser(verb: str, summary: str, function: Callable[..., None], plugins: bool = False) -> "_Parser":
    """The parser for a verb.

    The function's attribute `positionals` maps parameters that need special `add_argument` options to these options:
    positional arguments, and options that may be given several times. Their `choices` are only for tab completion.
    """
    positionals: dict[str, dict[str, Any]] = getattr(function, "positionals", {})
    parser = _Parser(prog=f"anyorder {verb}", description=_description(summary, function))
    parser.usage = " ".join([f"anyorder {verb} [options]", *(f"[{name}]" for name in positionals if name[0] != "-")])
    parser.add_argument("--config", action=_Recipe, help="a recipe: a YAML file with any of these options")
    for name, options in positionals.items():
        parser.add_argument(name, **{key: value for key, value in options.items() if key != "choices"})
    parser.add_function_arguments(function, skip={name.lstrip("-") for name in positionals}, fail_untyped=True)
    if plugins:
        registers = "registers orders, schedules, revisions, rewards or tasks"
        text = f"your own Python file that {registers}; separate several with commas or repeat the option"
        parser.add_argument("--plugin", type=list[str] | str, default=[], help=text)
    for action in parser._actions:
        if _is_switch(action):
            action.metavar = "[true|false]"
        if action.dest == "print_config":
            action.help = "print these options as a recipe and exit"
    return parser


def with_flag(error: InputError, function: Callable[..., None]) -> str:
    """The error's line with the field named as the flag that sets it; unchanged if no flag of this verb does.

    A config belongs to the parameter that is annotated with its class, or with a base class or subclass of it.
    """
    if error.field is None:
        return str(error)
    parameters = inspect.signature(function).parameters
    prefix = ""
    for name, parameter in parameters.items():
        kinds = [kind for kind in get_args(parameter.annotation) or (parameter.annotation,) if isinstance(kind, type)]
        if error.config and any(issubclass(kind, error.config) or issubclass(error.config, kind) for kind in kinds):
            prefix = f"{name}."
    if not prefix and (error.field not in parameters or error.field in getattr(function, "positionals", {})):
        return str(error)
    return f"{_hyphens(f'--{prefix}{error.field}')} {error.message}"


class _Parser(jsonargparse.ArgumentParser):
    """Raises `InputError` instead of exiting, and never shows the name of a class."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        line = re.sub(r"Expected a <class '(\w+)'>", r"expected \1", " ".join(message.split()))
        line = re.sub(
            r"Does not validate .* Errors: - expected (\w+).* Given value: ", r"expected \1. Got value: ", line
        )
        line = re.sub(r'Parser key "([\w.]+)"', lambda match: _hyphens(f"--{match[1]}"), line)
        line = re.sub(r"(?<=arguments are required: ).*", self._as_options, line)
        raise InputError(f"{line} (see {self.prog} --help)")

    def _as_options(self, names: re.Match[str]) -> str:
        """The names of missing arguments as the user writes them."""
        flags = {action.dest: action.option_strings[0] for action in self._actions if action.option_strings}
        return ", ".join(_hyphens(flags.get(name, name)) for name in names[0].split(", "))

    def format_help(self) -> str:
        text = re.sub(r"--[a-z][a-z_.]*", lambda match: _hyphens(match[0]), super().format_help())
        text = re.sub(r"<class\s+'(\w+)'>", r"\1", text).replace(", --plugin+ PLUGIN", "")
        return re.sub(r"\n  --[a-z]+ CONFIG +Path to a\s+configuration\s+file\.", "", text)


class _Recipe(jsonargparse.ActionConfigFile):
    """Takes options from a file; messages name it."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        try:
            _check_recipe(Path(values))
            super().__call__(parser, cfg, values, option_string)
            _check_names(parser, cfg)
        except InputError as error:
            raise InputError(f"{values}: {error}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{values}: invalid UTF-8 (byte {error.start + 1})") from None
        except ValueError as error:  # a tag such as !!int on something else
            raise InputError(f"{values}: expected options in YAML ({error})") from None


def _check_recipe(file: Path) -> None:
    """Options are one or two levels deep; the YAML parser crashes at depths that this check can handle."""
    if not file.is_file():
        return  # the parser reports it
    if file.stat().st_size > MAX_RECIPE:
        raise InputError(f"has more than {MAX_RECIPE:,} bytes, expected a few options")
    depth = 0
    with suppress(yaml.YAMLError):  # the parser describes it
        for event in yaml.parse(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InputError("is nested too deeply, expected options")
            if isinstance(event, yaml.AliasEvent):
                raise InputError(f"*{event.anchor}: expected a value, aliases are not allowed")


def _check_names(parser: jsonargparse.ArgumentParser, given: jsonargparse.Namespace) -> None:
    """Options and option groups must exist. The parser checks this only later, when it no longer knows the recipe."""
    known = {action.dest for action in parser._actions if not action.dest.startswith(("help", "print_"))}
    for key, value in vars(given).items():
        if key not in known:
            raise unknown("option", key, sorted(name for name in known - {"config"} if "." not in name))
        fields = sorted(name.removeprefix(f"{key}.") for name in known if name.startswith(f"{key}."))
        if fields and not isinstance(value, jsonargparse.Namespace):
            raise InputError(f"{key} is {value}, expected a group of options ({', '.join(fields)})")
        for name in vars(value) if fields else ():
            if name not in fields:
                raise unknown(f"option of {key}", name, fields)


def _check_nulls(parser: jsonargparse.ArgumentParser, given: jsonargparse.Namespace) -> None:
    """A recipe may set an option to null only if that is its default or one of its types."""
    for action in parser._actions:
        hint = getattr(action, "_typehint", None)
        if hint is None or action.default is None or type(None) in get_args(hint):
            continue
        if action.dest in given and given[action.dest] is None:
            raise InputError(f"{_hyphens(f'--{action.dest}')} null: expected a value")


def _description(summary: str, function: Callable[..., None]) -> str:
    """The summary, and the paragraphs of the docstring between its first line and its arguments."""
    body = (inspect.getdoc(function) or "").partition("\n\n")[2].partition("Args:")[0]
    return f"{summary} {' '.join(body.split())}".strip()


def _is_switch(action: Any) -> bool:
    return getattr(action, "_typehint", None) is bool


def _is_group(parser: jsonargparse.ArgumentParser, action: Any) -> bool:
    return any(other.dest.startswith(f"{action.dest}.") for other in parser._actions)


def _normalize(parser: jsonargparse.ArgumentParser, arguments: list[str]) -> list[str]:
    """Arguments as the parser expects them: underscores in names, a value after every switch."""
    known = {option for action in parser._actions for option in action.option_strings}
    switches = {option for action in parser._actions if _is_switch(action) for option in action.option_strings}
    groups = {option for action in parser._actions if _is_group(parser, action) for option in action.option_strings}
    normalized: list[str] = []
    for argument, following in pairwise([*arguments, ""]):
        if argument == "--":
            return normalized + arguments[len(normalized) :]
        name, equals, value = argument.partition("=")
        name = _underscores(name, known)
        if name in groups:  # jsonargparse would take a file here
            option = _hyphens(name)
            raise InputError(f"{option}: is a group of options, give them one by one: {option}.NAME VALUE")
        if name in switches and not equals and following not in ("true", "false"):
            equals, value = "=", "true"
        if name == "--plugin":
            name = "--plugin+"  # jsonargparse's way to say that a repeated option adds to the list
        normalized.append(f"{name}{equals}{value}")
    return normalized


def _underscores(name: str, known: Collection[str]) -> str:
    """An option's name with underscores instead of hyphens, except in the key of a mapping."""
    if not name.startswith("--"):
        return name
    parts = name[2:].split(".")
    for end in range(len(parts), 0, -1):
        option = f"--{'.'.join(parts[:end]).replace('-', '_')}"
        if option in known:
            return ".".join([option, *parts[end:]])
    return name


def _hyphens(option: str) -> str:
    return option.replace("_", "-")

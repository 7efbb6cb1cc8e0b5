"""Turn a verb's function into its command line: jsonargparse reads the signature and the docstring.

Options are written with hyphens (`--max-length`), switches need no value (`--trace`), and a recipe (`--config FILE`)
may hold any of them. This is the one place that knows which flag sets which field of a config.
"""

import inspect
import re
from argparse import SUPPRESS
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, get_args

import docstring_parser
import jsonargparse
import yaml  # type: ignore[import-untyped]

from anyorder.cli import TAKES_PLUGINS, VERBS
from anyorder.errors import InputError, unknown
from anyorder.plugins import load_plugin

MAX_RECIPE, MAX_DEPTH = 1 << 20, 20
jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


@dataclass(frozen=True)
class SharedOptions:
    """The base of dataclasses whose fields are options of each verb that has a parameter of the class: `--seed`, where
    any other config in a signature gives `--run.seed`. All fields have defaults."""

    def changed(self) -> dict[str, Any]:
        """The options that do not have their default, by name."""
        defaults = type(self)()
        return {name: value for name, value in vars(self).items() if value != getattr(defaults, name)}


def parse(verb: str, function: Callable[..., None], arguments: list[str]) -> dict[str, Any]:
    """The values for a call of `function`.

    Plugins are loaded before any config is created, so that configs may check names against what plugins register.
    """
    parser = make_parser(verb, function)
    parsed = parser.parse_args(_normalize(parser, arguments))
    shared = shared_options(function)
    _check_nulls(parser, parsed, allowed={field.name for kind in shared.values() for field in fields(kind)})
    given = parsed.pop("plugin", [])
    for path in ",".join([given] if isinstance(given, str) else given).split(","):
        if path.strip():
            load_plugin(path.strip())
    values = dict(vars(parser.instantiate(parsed)))
    values.pop("config", None)
    for name, parameter in inspect.signature(function).parameters.items():
        if _takes_several(parameter) and values[name] is not None:  # a recipe may give a single one without a list
            values[name] = [str(one) for one in (values[name] if isinstance(values[name], list) else [values[name]])]
    for name, kind in shared.items():
        own = {field.name: values.pop(field.name) for field in fields(kind)}
        values[name] = kind(**{field: value for field, value in own.items() if value is not None})
    return values


@cache
def make_parser(verb: str, function: Callable[..., None]) -> "_Parser":
    """The parser for a verb.

    Parameters before a `/` are positional arguments, and those of type `list[str]` take several values. The function's
    attribute `arguments` maps names of parameters to more options of `add_argument`.
    """
    parser = _Parser(prog=f"anyorder {verb}", description=_description(verb, function))
    parameters = inspect.signature(function).parameters
    words = [f"[{name}]" if _takes_several(parameters[name]) else name for name in positionals(function)]
    parser.usage = " ".join([f"anyorder {verb} [options]", *words])
    parser.add_argument("--config", action=_Recipe, help="a recipe: a YAML file with any of these options")
    arguments, shared = _arguments(function), shared_options(function)
    for name, options in arguments.items():
        parser.add_argument(name, **options)
    skip = {name.lstrip("-") for name in arguments} | set(shared)
    parser.add_function_arguments(function, skip=skip, fail_untyped=True)
    for kind in shared.values():
        parser.add_class_arguments(kind)
    if verb in TAKES_PLUGINS:
        registers = "registers orders, schedules, revisions, rewards or tasks"
        text = f"your own Python file that {registers}; separate several with commas or repeat the option"
        parser.add_argument("--plugin", type=list[str] | str, default=[], help=text)
    for action in parser._actions:
        action.option_strings = [_hyphens(option) for option in action.option_strings if option[-1] != "+"]
        if _is_switch(action):
            action.metavar = "[true|false]"
        if _is_group(parser, action):
            action.help = SUPPRESS
        if action.dest == "print_config":
            action.help = "print these options as a recipe and exit"
    actions = parser._option_string_actions
    actions.update({_hyphens(option): action for option, action in actions.items()})
    return parser


def positionals(function: Callable[..., None]) -> list[str]:
    """The parameters of a verb that are positional arguments."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]


def _arguments(function: Callable[..., None]) -> dict[str, dict[str, Any]]:
    """The options of `add_argument` for each parameter that jsonargparse would not add as it should be."""
    help_texts = {one.arg_name: one.description for one in docstring_parser.parse(function.__doc__ or "").params}
    special: dict[str, dict[str, Any]] = getattr(function, "arguments", {})
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        is_positional = parameter.kind is parameter.POSITIONAL_ONLY
        takes_several = _takes_several(parameter)
        if not (is_positional or takes_several or name in special):
            continue
        options: dict[str, Any] = {"help": help_texts.get(name)}
        if parameter.default is not parameter.empty:
            options["default"] = parameter.default
        elif not is_positional:
            options["required"] = True
        if is_positional and takes_several:
            options |= {"nargs": "*", "type": str, "default": []}
        elif takes_several:
            options["nargs"] = "+"  # without a type, or jsonargparse would not take a single value from a recipe
        else:
            options["type"] = parameter.annotation
        options |= special.get(name, {})
        found[name if is_positional else f"--{name}"] = options
    return found


def _takes_several(parameter: inspect.Parameter) -> bool:
    return list[str] in (parameter.annotation, *get_args(parameter.annotation))


def shared_options(function: Callable[..., None]) -> dict[str, type[SharedOptions]]:
    """The parameters of a verb whose fields are options of the verb itself, and their classes."""
    kinds = {name: parameter.annotation for name, parameter in inspect.signature(function).parameters.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, SharedOptions)}


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
    shared = {field.name for kind in shared_options(function).values() for field in fields(kind)}
    own = (set(parameters) | shared) - set(positionals(function))
    if not prefix and error.field not in own:
        return str(error)
    return f"{_hyphens(f'--{prefix}{error.field}')} {error.message}"


class _Parser(jsonargparse.ArgumentParser):
    """Raises `InputError` instead of exiting, and never shows the name of a class."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        line = re.sub(r"Expected a <class '(\w+)'>", r"expected \1", " ".join(message.split()))
        line = re.sub(r"Expected a typing.Literal\[(.*?)\]", lambda it: f"expected {it[1]}".replace("'", ""), line)
        line = re.sub(
            r"Does not validate .* Errors: - expected (\w+).* Given value: ", r"expected \1. Got value: ", line
        )
        line = re.sub(r'Parser key "([\w.]+)"', lambda match: _hyphens(f"--{match[1]}"), line)
        line = re.sub(r"(?<=arguments are required: ).*", self._as_options, line)
        raise InputError(f"{line} (see {self.prog} --help)")

    def _as_options(self, names: re.Match[str]) -> str:
        """The names of missing arguments as the user writes them."""
        flags = {action.dest: action.option_strings[0] for action in self._actions if action.option_strings}
        return ", ".join(flags.get(name, name) for name in names[0].split(", "))

    def format_help(self) -> str:
        return re.sub(r"<class\s+'(\w+)'>", r"\1", super().format_help())


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


def _check_nulls(parser: jsonargparse.ArgumentParser, given: jsonargparse.Namespace, allowed: Collection[str]) -> None:
    """A recipe may set an option to null only if that is its default or one of its types.

    For the `allowed` ones null means the default, as in recipes that `evaluate --print_config` once printed.
    """
    for action in parser._actions:
        hint = getattr(action, "_typehint", None)
        if hint is None or action.dest in allowed or action.default is None or type(None) in get_args(hint):
            continue
        if action.dest in given and given[action.dest] is None:
            raise InputError(f"{_hyphens(f'--{action.dest}')} null: expected a value")


def _description(verb: str, function: Callable[..., None]) -> str:
    """The verb's summary, and the paragraphs of the docstring between its first line and its arguments."""
    body = (inspect.getdoc(function) or "").partition("\n\n")[2].partition("Args:")[0]
    return f"{VERBS[verb]} {' '.join(body.split())}".strip()


def _is_switch(action: Any) -> bool:
    return getattr(action, "_typehint", None) is bool


def _is_group(parser: jsonargparse.ArgumentParser, action: Any) -> bool:
    return action is not None and any(other.dest.startswith(f"{action.dest}.") for other in parser._actions)


def _normalize(parser: jsonargparse.ArgumentParser, arguments: list[str]) -> list[str]:
    """Arguments as the parser expects them: hyphens in names, a value after every switch."""
    known = {option: action for action in parser._actions for option in action.option_strings}
    normalized: list[str] = []
    for argument, following in pairwise([*arguments, ""]):
        if argument == "--":
            return normalized + arguments[len(normalized) :]
        name, equals, value = argument.partition("=")
        option = max((one for one in known if f"{_hyphens(name)}.".startswith(f"{one}.")), key=len, default="")
        action, name = known.get(option), option + name[len(option) :]  # the rest is the key of a mapping
        if name == option and _is_group(parser, action):  # jsonargparse would take a file here
            raise InputError(f"{option}: is a group of options, give them one by one: {option}.NAME VALUE")
        if _is_switch(action) and not equals and following not in ("true", "false"):
            equals, value = "=", "true"
        if option == "--print-config":
            equals = "="
        if name == "--plugin":
            name = "--plugin+"  # jsonargparse's way to say that a repeated option adds to the list
        normalized.append(f"{name}{equals}{value}")
    return normalized


def _hyphens(option: str) -> str:
    return option.replace("_", "-")

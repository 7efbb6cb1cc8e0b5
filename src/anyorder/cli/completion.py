"""Scripts for tab completion: verbs, their options, and the values of options that have a fixed set of them.

A script is generated once, from the parsers of all verbs, and then works without starting Python.
"""

from argparse import SUPPRESS
from typing import Literal, get_args, get_origin

from anyorder.cli import SHELLS, VERBS, verb_function
from anyorder.cli.parser import make_parser
from anyorder.cli.reproduce import ALL
from anyorder.orders import ORDERS
from anyorder.reproduce.tables import TABLES


def completion_script(shell: str) -> str:
    """The script for `bash` or `zsh`, which can complete as bash does."""
    options = {verb: _options(verb) for verb in VERBS}
    values = [
        (f"{verb} {option}", choices) for verb, known in options.items() for option, choices in known.items() if choices
    ]
    values += [("reproduce reproduce", [*TABLES, ALL]), ("--print-completion --print-completion", [*SHELLS])]
    first_words = [*VERBS, "--help", "--version", "--print-completion"]
    by_value = "\n".join(f'            "{where}") choices="{" ".join(choices)}" ;;' for where, choices in values)
    by_verb = "\n".join(f'            {verb}) choices="{" ".join(known)}" ;;' for verb, known in options.items())
    script = _SCRIPT.replace("@SHELL@", shell)
    for mark, text in (("VERBS", " ".join(first_words)), ("VALUES", by_value), ("OPTIONS", by_verb)):
        script = script.replace(f"@{mark}@", text)
    return script if shell == "bash" else _FOR_ZSH + script


def _options(verb: str) -> dict[str, list[str]]:
    """Each option of a verb and its possible values; no values if it takes anything."""
    return {
        option: _choices(option, getattr(action, "_typehint", None))
        for action in make_parser(verb, verb_function(verb))._actions
        for option in action.option_strings
        if option.startswith("--") and action.help != SUPPRESS  # not a group of options
    }


def _choices(option: str, annotation: object) -> list[str]:
    if option in ("--order", "--orders"):
        return sorted(ORDERS)
    for kind in (annotation, *get_args(annotation)):  # `Literal[...] | None`
        if get_origin(kind) is Literal:
            return [str(choice) for choice in get_args(kind)]
    return []


_FOR_ZSH = """\
#compdef anyorder
# Must come after compinit.
autoload -U +X bashcompinit && bashcompinit
"""
_SCRIPT = """\
# Tab completion of anyorder for @SHELL@. Load it with: eval "$(anyorder --print-completion @SHELL@)"
_anyorder() {
    local current="${COMP_WORDS[COMP_CWORD]}" choices=""
    if [[ $COMP_CWORD -eq 1 ]]; then
        choices="@VERBS@"
    elif [[ $current == -* ]]; then
        case "${COMP_WORDS[1]}" in
@OPTIONS@
        esac
    else
        case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in
@VALUES@
        esac
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$current"))
}
complete -o bashdefault -o default -F _anyorder anyorder"""

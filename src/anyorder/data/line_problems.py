"""Lines that cannot be translated or scored unchanged: what is wrong with them, what was done, and the report.

Knows nothing of models, files or streams.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anyorder.errors import InputError

NAMED = 5
"""A report names at most this many lines."""


@dataclass(frozen=True)
class Problem:
    """Why one side of a line cannot be used as is."""

    side: str
    """`source`, `reference`, or `reference 2` and so on if there are several."""
    note: str
    """What was done about it. Its first two words say what kind of problem it is."""
    error: str
    """What is wrong, for when such a line is treated as an error; empty if it never is."""


@dataclass(frozen=True)
class LineNote:
    """What was done about a line."""

    line: int
    """Line number, starting at 1."""
    note: str
    scored: bool = True
    """False if the line was left out."""


def clean_line(line: str, side: str = "source") -> tuple[str, tuple[Problem, ...]]:
    """The cleaned line, and what had to be changed.

    Control characters become spaces; tabs already count as spaces and stay. Otherwise as `valid_text`.

    >>> clean_line("a\\x00b")[0]
    'a b'
    """
    text, problems = valid_text(line, side)
    if _CONTROL.search(text):
        text = _CONTROL.sub(" ", text)
        note = f"control characters in {side} became spaces"
        problems = (*problems, Problem(side, note, "holds control characters, expected plain text"))
    return text, problems


def valid_text(text: str, side: str = "source") -> tuple[str, tuple[Problem, ...]]:
    """The text as it is, but for unpaired surrogates, which no tokenizer accepts: they become U+FFFD.

    Decoders have replaced bytes that are not UTF-8 with U+FFFD.
    """
    text = _SURROGATE.sub(_REPLACEMENT, text)
    if _REPLACEMENT not in text:
        return text, ()
    return text, (Problem(side, f"invalid UTF-8 in {side} became U+FFFD", "invalid UTF-8, read as U+FFFD"),)


_REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def is_empty(side: str) -> Problem:
    return Problem(side, f"empty {side}", "is empty, expected a sentence")


def is_too_long(side: str, note: str, size: int, room: int) -> Problem:
    return Problem(side, note, f"{size} subwords, the model has room for {room}")


def join_notes(problems: Iterable[Problem]) -> str:
    """One note for the trajectory; empty if there is no problem."""
    return _SEPARATOR.join(dict.fromkeys(problem.note for problem in problems))


def refuse(problems: Iterable[Problem], line: int, names: Mapping[str, str]) -> None:
    """Raise `InputError` for the first problem, if any. names: what messages call each side, such as a file."""
    for problem in filter(lambda one: one.error, problems):
        raise InputError(f"{names.get(problem.side, problem.side)}, line {line}: {problem.error}")


class LineReport:
    """Counts lines that were not used as is, by kind, and remembers the first few."""

    def __init__(self) -> None:
        self.lines = 0
        self._kinds: Counter[str] = Counter()
        self._first: list[LineNote] = []

    def add(self, note: LineNote) -> None:
        self.lines += 1
        self._kinds.update({" ".join(part.split()[:2]) for part in note.note.split(_SEPARATOR)})
        if len(self._first) < NAMED:
            self._first.append(note)

    def summary(self, used: str) -> str:
        """One line; empty if there is nothing to say. used: `translated` or `scored`."""
        if not self.lines:
            return ""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self._kinds.items()))
        named = ", ".join(f"line {one.line} ({one.note}{'' if one.scored else ', left out'})" for one in self._first)
        rest = f" and {self.lines - NAMED:,} more" if self.lines > NAMED else ""
        one = self.lines == 1
        lines, as_is = ("1 line was", "as it is") if one else (f"{self.lines:,} lines were", "as they are")
        return f"{lines} not {used} {as_is} ({kinds}): {named}{rest}"


_SEPARATOR = "; "

"""References: one list, or several for test sets that were translated several times."""

from collections.abc import Sequence
from typing import cast

from anyorder.errors import InputError

References = Sequence[str] | Sequence[Sequence[str]]
"""One reference per sentence; or, for several references, a list of such lists, each with one per sentence."""


def reference_sets(references: References) -> list[list[str]]:
    """The references as a list of lists, one list if there is one reference per sentence.

    >>> reference_sets(["Good morning!", "Thanks."])
    [['Good morning!', 'Thanks.']]
    >>> reference_sets([["Good morning!", "Thanks."], ["Morning!", "Thank you."]])
    [['Good morning!', 'Thanks.'], ['Morning!', 'Thank you.']]
    """
    several = references and not isinstance(references[0], str)
    sets = cast(Sequence[Sequence[str]], references if several else [references])
    if any(isinstance(one, str) or not all(isinstance(text, str) for text in one) for one in sets):
        raise InputError("expected a list of sentences, or several such lists", "references")
    return [list(one) for one in sets]

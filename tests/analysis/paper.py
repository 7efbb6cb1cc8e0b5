"""The three sentences whose order the paper prints step by step.

Brackets show the order within rows of the tables: a run that is bracketed alone was not entered from its neighbor. In
the second sentence it is unclear whether 'At' was filled before or after 'same time , Aff@@'.
"""

from typing import NamedTuple


class Printed(NamedTuple):
    tokens: list[str]
    steps: list[int]


TEARGAS = Printed(
    [
        "There",
        "are",
        "no",
        "reports",
        "of",
        "any",
        "injuries",
        ",",
        "but",
        "some",
        "people",
        "are",
        "crying",
        "after",
        "the",
        "use",
        "of",
        "tear",
        "gas",
        ".",
    ],
    [1, 2, 3, 4, 7, 9, 10, 12, 11, 13, 18, 19, 20, 17, 16, 15, 14, 8, 6, 5],
)
AFFLECK = Printed(
    [
        "At",
        "the",
        "same",
        "time",
        ",",
        "Aff@@",
        "le@@",
        "x",
        "'s",
        "first",
        "film",
        "does",
        "not",
        "take",
        "place",
        "in",
        "the",
        "director",
        "'s",
        "native",
        "Boston",
        ".",
    ],
    [9, 18, 10, 11, 12, 13, 15, 19, 14, 16, 17, 20, 21, 22, 8, 7, 6, 5, 4, 3, 2, 1],
)
AFFLECK_OTHER_READING = [13, 18, 9, 10, 11, 12, 15, 19, 14, 16, 17, 20, 21, 22, 8, 7, 6, 5, 4, 3, 2, 1]
MOSTLY_LEFT_TO_RIGHT = Printed(
    [
        "But",
        "everything",
        "went",
        "well",
        "when",
        "the",
        '"',
        "beloved",
        "father",
        '"',
        "Hey@@",
        "dar",
        "Ali@@",
        "ye@@",
        "v",
        "took",
        "the",
        "lead",
        "over",
        ".",
    ],
    [5, 3, 4, 6, 7, 12, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 20, 19, 2, 1],
)

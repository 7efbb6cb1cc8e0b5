"""The strict JSON of request bodies: UTF-8, no NaN, no repeated key, no number that only takes time to read."""

import json
from collections import Counter
from typing import Any

MAX_DIGITS = 100


def check_json(body: bytes) -> None:
    """Raise a one-line ValueError if the body is not strict JSON.

    >>> check_json(b'{"length": 4, "length": 5}')
    Traceback (most recent call last):
    ValueError: the key 'length' is repeated
    """
    try:
        json.loads(body.decode("utf-8"), parse_constant=_no_constant, parse_int=_int, object_pairs_hook=_no_repetition)
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 (byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} (character {error.pos})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; at most {MAX_DIGITS} are read")
    return int(digits)


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key '{name}' is repeated")
    return unique

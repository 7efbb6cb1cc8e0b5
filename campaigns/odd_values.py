"""Odd values: JSON of every type and size, and damaged bytes. All choices come from the `random.Random` given."""

import json
import random
from typing import Any

DEPTH = 100_000
"""Levels of the deepest JSON and YAML."""

NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 7, 255, 256, 65_535, 65_536, 10**9, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30,
    -(10**30), -(2**63), 0.0, -0.0, 0.5, 1.5, -1.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
    10**4000,
]  # fmt: skip

STRINGS = [
    "", " ", "\x00", "\n", "\ud800", "\ufeff", "\u2028", "²", "٣", "null", "NaN", "-1", "1e9", "x" * 300,
    "x" * 100_000, "..", "/", ".", "/dev/null", "../../x", "a/b", "de", "en", "xx", "de-en", "en-de", "uint16",
    "float32", "<mask>", "@@", "</s>", "%s", "{0}", "[red]",
]  # fmt: skip

BYTES = [
    b"\x00",
    b"\xff",
    b"\n",
    b"\r\n",
    b'"',
    b"{",
    b"}",
    b"[",
    b",",
    b":",
    b"\\u",
    b"\xef\xbb\xbf",
    b"9" * 50,
    b"-",
    b"\xc3",
    b"\x1a",
    b"\t",
]


def damage_bytes(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    """The damaged bytes, and what was done."""
    kind = draw.choice(
        [
            "bit",
            "bit",
            "byte",
            "byte",
            "cut",
            "cut",
            "cut",
            "empty",
            "longer",
            "longer",
            "hole",
            "inserted",
            "noise",
            "zeros",
        ]
    )
    at = draw.randrange(len(data)) if data else 0
    changed = bytearray(data)
    if kind == "bit" and data:
        changed[at] ^= 1 << draw.randrange(8)
    elif kind == "byte" and data:
        for _ in range(draw.choice([1, 1, 4])):
            changed[draw.randrange(len(data))] = draw.randrange(256)
    elif kind == "cut":
        del changed[at:]
    elif kind == "empty":
        changed.clear()
    elif kind == "longer":
        changed += draw.choice([b"\x00", b"\n", b"\xff", b"x", b"}\n", data[:100]]) * draw.choice([1, 2, 1000])
    elif kind == "hole":
        del changed[at : at + draw.choice([1, 2, 8, 100])]
    elif kind == "inserted":
        changed[at:at] = draw.choice(BYTES)
    elif kind == "noise":
        changed[:] = draw.randbytes(draw.choice([1, 8, 100, 5000]))
    else:
        changed[at : at + 64] = bytes(len(changed[at : at + 64]))
    return bytes(changed), f"{kind} at {at}"


def odd_value(draw: random.Random, depth: int = 0) -> Any:
    """A JSON value, of any type."""
    kind = draw.randrange(6 if depth < 2 else 4)
    if kind == 0:
        return draw.choice([None, True, False, [], {}])
    if kind in (1, 2):
        return draw.choice(NUMBERS)
    if kind == 3:
        return draw.choice(STRINGS)
    items = [odd_value(draw, depth + 1) for _ in range(draw.choice([1, 2, 5]))]
    return items if kind == 4 else {draw.choice(STRINGS): item for item in items}


def damage_json(draw: random.Random, text: str) -> tuple[str, str]:
    """The text with one or two values replaced, keys dropped, added or repeated; and what was done."""
    value = json.loads(text)
    kind = draw.choice(
        [*["value"] * 8, *["near"] * 4, *["drop"] * 3, *["add"] * 2, "deep", "deep", "root", "repeat", "encoding"]
    )
    if kind == "deep":
        opening, closing = draw.choice([("[", "]"), ('{"a":', "}")])
        deep = opening * DEPTH + draw.choice(["", "1" + closing * DEPTH])
        if draw.random() < 0.5 or not value:
            return deep, kind
        key = draw.choice(_paths(value))
        _set(value, key, "@deep@")
        return dump(value).replace('"@deep@"', deep), f"deep at {_name(key)}"
    if kind == "root":
        return dump(odd_value(draw)), kind
    paths = _paths(value)
    if not paths or kind == "add":
        target: Any = draw.choice(
            [value, *[node for path in paths if isinstance(node := _get(value, path), dict | list)]]
        )
        if isinstance(target, dict):
            target[draw.choice([*STRINGS[:12], "x", "format"])] = odd_value(draw)
        elif isinstance(target, list):
            target.insert(draw.randrange(len(target) + 1), draw.choice([odd_value(draw), *target[:1]]))
        return dump(value), "surplus value"
    done = []
    for _ in range(draw.choice([1, 1, 1, 2])):
        paths = _paths(value)
        if not paths:
            break
        path = draw.choice(paths)
        if kind == "drop":
            parent = _get(value, path[:-1])
            del parent[path[-1]]
            done.append(f"without {_name(path)}")
            continue
        new = near_value(draw, _get(value, path)) if kind == "near" else odd_value(draw)
        _set(value, path, new)
        done.append(f"{_name(path)} = {dump(new)[:60]}")
    damaged = dump(value)
    if kind == "repeat" and isinstance(value, dict) and value:
        key = draw.choice(list(value))
        return damaged[:-1] + f", {json.dumps(key)}: {dump(odd_value(draw))}}}", f"{key} twice"
    if kind == "encoding":
        return "\ufeff" + damaged, "byte order mark"
    return damaged, ", ".join(done)


def near_value(draw: random.Random, value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice(
            [value + 1, value - 1, -value, value * 2, value * 10**6, 0, 10**9, 2**40, str(value), float(value)]
        )
    if isinstance(value, float):
        return draw.choice([-value, value * 1e6, value + 1, 0.0, float("nan"), str(value)])
    if isinstance(value, str):
        return draw.choice(
            [
                value.upper(),
                value + "x",
                value[:-1],
                value * 2,
                value * 1000,
                list(value)[:50],
                value + "\n",
                "\ud83d" + value,
            ]
        )
    if isinstance(value, list):
        return draw.choice(
            [value[::-1], value[:-1], value * 2, [value], dict.fromkeys(map(str, value), 1), value[:1] * 5, []]
        )
    if isinstance(value, dict):
        return draw.choice(
            [list(value), {}, {f"{key}x": item for key, item in value.items()}, dict.fromkeys(list(value)[:3], value)]
        )
    return 0


def dump(value: Any) -> str:
    """JSON with NaN, lone surrogates and integers of any length."""
    try:
        return json.dumps(value)
    except ValueError:  # an integer of more digits than Python converts
        return json.dumps(_shorten(value)).replace('"@long@"', "1" + "0" * 5000)


def _shorten(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shorten(item) for item in value]
    return "@long@" if isinstance(value, int) and abs(value) >= 10**4000 else value


def _paths(value: Any, prefix: tuple = (), limit: int = 400) -> list[tuple]:
    """Where the values inside of a JSON value are."""
    found: list[tuple] = []
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.append((*prefix, key))
        found += _paths(item, (*prefix, key), limit)
        if len(found) > limit:
            break
    return found


def _get(value: Any, path: tuple) -> Any:
    for key in path:
        value = value[key]
    return value


def _set(value: Any, path: tuple, new: Any) -> None:
    _get(value, path[:-1])[path[-1]] = new


def _name(path: tuple) -> str:
    return ".".join(map(str, path))[:60]

"""Damage that needs to know the format: JSON, text, arrays, tensors, recipes, code. Each function says what it did."""

import gzip
import json
import lzma
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from campaigns.odd_values import DEPTH, damage_bytes, damage_json, dump, odd_value

ZEROS = 48 << 20
"""Bytes that a small compressed file may hold."""


def _damage_json_file(draw: random.Random, file: Path) -> str:
    text, what = damage_json(draw, file.read_text(encoding="utf-8"))
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    return what


def damage_lines(draw: random.Random, text: str) -> tuple[str, str]:
    """JSON lines with one of them damaged, repeated, moved or dropped."""
    lines = text.splitlines()
    at = draw.randrange(len(lines))
    kind = draw.choice(["json", "json", "json", "json", "bytes", "bytes", "blank", "repeat", "drop", "shuffle", "long"])
    what = ""
    if kind == "json":
        lines[at], what = damage_json(draw, lines[at])
    elif kind == "bytes":
        damaged, what = damage_bytes(draw, lines[at].encode())
        lines[at] = damaged.decode("utf-8", "surrogateescape")
    elif kind == "blank":
        lines.insert(at, draw.choice(["", " ", "null", "[]", "{}", "\x00", "1"]))
    elif kind == "repeat":
        lines.insert(at, lines[at])
    elif kind == "drop":
        del lines[at]
    elif kind == "shuffle":
        draw.shuffle(lines)
    else:
        lines[at] = lines[at][:-1] + ', "x": "' + "x" * draw.choice([10_000, 3_000_000]) + '"}'
    return "".join(line + "\n" for line in lines), f"line {at + 1}: {kind} {what}"


def _damage_lines_file(draw: random.Random, file: Path) -> str:
    text, what = damage_lines(draw, file.read_text(encoding="utf-8"))
    file.write_bytes(_raw(text))
    return what


def _raw(text: str) -> bytes:
    """UTF-8, with the surrogates that stand for bytes as these bytes and other ones as they are."""
    return b"".join(
        bytes([ord(one) - 0xDC00]) if "\udc80" <= one <= "\udcff" else one.encode("utf-8", "surrogatepass")
        for one in text
    )


def _damage_compressed(draw: random.Random, file: Path) -> str:
    """What a compressed file holds is damaged, and it is compressed again; or there is more behind it."""
    pack, unpack = (gzip.compress, gzip.decompress) if file.suffix == ".gz" else (lzma.compress, lzma.decompress)
    data = unpack(file.read_bytes())
    if draw.random() < 0.15:
        file.write_bytes(pack(data) + draw.choice([b"\x00" * 100, b"x", pack(data)]))
        return "more behind the end"
    if draw.random() < 0.1:
        file.write_bytes(pack(bytes(ZEROS)))
        return f"{ZEROS:,} zeros"
    if ".jsonl" in file.name:
        text, what = damage_lines(draw, data.decode())
        file.write_bytes(pack(_raw(text)))
        return what
    text, what = damage_text(draw, data.decode())
    file.write_bytes(pack(_raw(text)))
    return what


ODD_LINES = [
    "", " ", "\t", "\u00a0", "\u2028", "\x00", "\x1b[31mred\x1b[0m", "\x85", "\r", "a\rb", "\ufeffDer Hund.",
    "\udcff\udcfe", "\ud800x", "e\u0301" * 50, "👩‍👩‍👧" * 30, "\u202eHund", "<mask> </s> <pad>", "@@ a@@",
    "Hund " * 10_000, "x" * 100_000, "Der Hund. " * 300, "\ufffe", "𝔘" * 99, "(", ")))", "(S", "=", ".", "@@", "| |",
    "&lt; &#124;", "a" * 158, "日本語" * 70, "-- --", "% %", "Der Hund \x07 sieht", "\u0085".join("ab"), "\x0c",
    "\x1c\x1d",
]  # fmt: skip


def damage_text(draw: random.Random, text: str) -> tuple[str, str]:
    """Text with odd, missing or surplus lines."""
    lines = text.splitlines()
    kind = draw.choice(
        ["line", "line", "line", "insert", "insert", "drop", "no newline", "windows", "repeat", "only odd"]
    )
    at = draw.randrange(len(lines))
    odd = draw.choice(ODD_LINES)
    if kind == "line":
        lines[at] = odd
    elif kind == "insert":
        lines.insert(at, odd)
    elif kind == "drop":
        del lines[at]
    elif kind == "repeat":
        lines = lines * 3
    elif kind == "only odd":
        lines = [draw.choice(ODD_LINES[:8]) for _ in lines]
    elif kind == "windows":
        return "\r\n".join([*lines, ""]), kind
    else:
        return "\n".join(lines), kind
    return "".join(line + "\n" for line in lines), f"{kind} at {at}: {odd[:20]!r}"


def _damage_text_file(draw: random.Random, file: Path) -> str:
    text, what = damage_text(draw, file.read_text(encoding="utf-8"))
    file.write_bytes(_raw(text))
    return what


def _damage_array(draw: random.Random, file: Path) -> str:
    """A .npy file of another type, shape, order or content, or with an odd header."""
    array = np.load(file)
    kind = draw.choice(
        ["type", "type", "shape", "values", "values", "values", "header", "header", "header", "length", "object"]
    )
    if kind == "header":
        return _damage_array_header(draw, file, array)
    if kind == "type":
        array = array.astype(draw.choice(["f8", "f4", "i1", "u1", "i4", ">i8", "u8", "?", "c16", "S8", "U4", "m8[s]"]))
    elif kind == "shape":
        array = draw.choice(
            [
                array[None],
                array[:, None],
                array[:0],
                array[0] if len(array) else array,
                np.asfortranarray(array[None, None]),
            ]
        )
    elif kind == "length":
        array = draw.choice([array[:-1], np.append(array, array[-1:]), np.tile(array, 3)])
    elif kind == "object":
        array = np.array([{"a": 1}] * len(array), object)
    elif len(array):
        array = array.copy()
        top = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else 1
        array[draw.choice([0, -1, draw.randrange(len(array))])] = draw.choice([0, 1, top, top - 1, top // 2])
        array = draw.choice(
            [array, array[::-1].copy(), np.zeros_like(array), -array if array.dtype.kind == "i" else array]
        )
    np.save(file, array, allow_pickle=True)
    return f"array {kind}"


def _damage_array_header(draw: random.Random, file: Path, array: np.ndarray) -> str:
    shape = draw.choice(
        [
            "(1000000000000,)",
            "(-1,)",
            "()",
            "(1,",
            "(2**62, 2**62)",
            "(5, 5)",
            "(0,)",
            "'x'",
            "(1.5,)",
            "(True,)",
            "(" * 300,
        ]
    )
    descr = draw.choice(
        ["'<i8'", "'<i8'", "'|O'", "'<f8'", "'xx'", "''", "[('a', '<i8')]", "None", "'<i999999999'", "'|V0'"]
    )
    header = (
        f"{{'descr': {descr}, 'fortran_order': {draw.choice(['False', 'True', '1'])}, 'shape': {shape}, }}".encode()
    )
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    version = draw.choice([b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x09\x00"])
    file.write_bytes(b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + array.tobytes())
    return f"array header {header[:80].decode()}"


def _damage_tensors(draw: random.Random, file: Path) -> str:
    """A safetensors file with other tensors, or with an odd header."""
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    name = draw.choice(names)
    kind = draw.choice(
        ["numbers", "numbers", "numbers", "header", "header", "header", "drop", "rename", "shape", "type", "size"]
    )
    if kind == "numbers":
        start, end = header[name]["data_offsets"]
        wide = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1}.get(header[name]["dtype"], 4)
        bad = {
            4: [b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\xff\xff\xff\xff"],
            2: [b"\x00\x7e", b"\xff\x7f"],
        }
        changed = bytearray(body)
        at = start + draw.randrange(max(1, (end - start) // wide)) * wide
        changed[at : at + wide] = draw.choice(bad.get(wide, [b"\xff"]))
        body = bytes(changed)
    elif kind == "header":
        text, _ = damage_json(draw, json.dumps(header))
        raw = text.encode("utf-8", "surrogatepass")
        file.write_bytes(struct.pack("<Q", len(raw)) + raw + body)
        return "tensor header"
    elif kind == "drop":
        del header[name]
    elif kind == "rename":
        header[draw.choice([name + "x", "", "x" * 10_000, "length.x"])] = header.pop(name)
    elif kind == "shape":
        header[name]["shape"] = draw.choice(
            [header[name]["shape"][::-1], [*header[name]["shape"], 1], [10**9, 10**9], [0], []]
        )
    elif kind == "type":
        header[name]["dtype"] = draw.choice(["F64", "F16", "I32", "U8", "BOOL", "X", "I64", "F8_E4M3"])
    raw = json.dumps(header).encode()
    length = draw.choice([0, 1, 2**40, 2**63, len(raw) + 1]) if kind == "size" else len(raw)
    file.write_bytes(struct.pack("<Q", length) + raw + body)
    return f"tensors {kind}: {name}"


def _damage_ids(draw: random.Random, file: Path) -> str:
    ids = np.frombuffer(file.read_bytes(), np.uint16).copy()
    at = draw.randrange(len(ids))
    ids[at] = draw.choice([0, 1, 2, 5, 149, 150, 151, 65_535])
    file.write_bytes(ids.tobytes())
    return f"id {at} = {ids[at]}"


def _damage_yaml(draw: random.Random, file: Path) -> str:
    """A recipe with odd values and odd YAML."""
    lines = file.read_text().splitlines()
    at = draw.randrange(len(lines))
    kind = draw.choice(["value", "value", "value", "value", "syntax", "deep", "drop", "repeat", "all"])
    odd = [
        "&a [*a]", "*b", "!!python/object/apply:os.getcwd []", "!!binary x", "? x", "- x", "\t- x", "%YAML 9", "---",
        "...", "{", "[", "x: y: z", "'", "!!int x", "!!float nan", "<<: *x", "&a a: *a", "x: &x [*x, *x]", "1: 2",
        "null: null", "? [a, b]\n: c", "config: train.yaml", "help: x",
    ]  # fmt: skip
    if kind == "value":
        name = lines[at].partition(":")[0]
        value = draw.choice(
            [
                dump(odd_value(draw)),
                draw.choice(odd),
                "~",
                ".nan",
                ".inf",
                "0x10",
                "0o7",
                "1_000",
                "2020-01-01",
                "yes",
                "|\n  x",
            ]
        )
        lines[at] = f"{name}: {value}"
    elif kind == "syntax":
        lines.insert(at, draw.choice(odd))
    elif kind == "deep":
        depth = draw.choice([50, 1000, DEPTH])
        lines.append("x: " + draw.choice(["[" * depth, "{a: " * depth, "[" * depth + "]" * depth]))
    elif kind == "drop":
        del lines[at]
    elif kind == "repeat":
        lines.append(lines[at])
    else:
        lines = [draw.choice([*odd, dump(odd_value(draw))])]
    file.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass"))
    return f"{kind} in line {at + 1}: {lines[min(at, len(lines) - 1)][:60] if lines else ''}"


def _damage_code(draw: random.Random, file: Path) -> str:
    """A Python file with a damaged syntax, or one that fails when it is run."""
    lines = file.read_text().splitlines()
    at = draw.randrange(len(lines))
    odd = [
        "    x", "raise ValueError('a\\nb')", "raise SystemExit(3)", "import nowhere", "def", "'''", "1 / 0",
        "\ufeff", "\x00", "(" * 300, "x = " + "-" * 5000 + "1", "raise KeyError", "class A(Exception): pass",
        "raise A", "# coding: nonsense", "print('x')", "def f(): f()\nf()", "assert False", "return", "@",
        "anyorder.register_order('margin')(1)", "anyorder.register_order('')(print)",
        "anyorder.register_order('a b')(len)", "raise RecursionError",
        "raise UnicodeDecodeError('a', b'', 0, 1, 'x')", "raise InputError", "import sys; sys.exit()",
    ]  # fmt: skip
    lines.insert(at, draw.choice(odd))
    file.write_bytes(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))
    return f"code in line {at + 1}: {lines[at][:60]!r}"


BY_SUFFIX: dict[str, Callable[[random.Random, Path], str]] = {
    ".json": _damage_json_file, ".jsonl": _damage_lines_file, ".gz": _damage_compressed, ".xz": _damage_compressed,
    ".npy": _damage_array, ".safetensors": _damage_tensors, ".ids.bin": _damage_ids, ".yaml": _damage_yaml,
    ".py": _damage_code, ".de": _damage_text_file, ".en": _damage_text_file, "trees": _damage_text_file,
}  # fmt: skip

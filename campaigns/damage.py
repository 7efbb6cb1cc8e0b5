"""Damage files and folders: bits, bytes, sizes, values, types, headers, missing and surplus files.

All choices come from the `random.Random` that is given. Some checks lie behind checksums, so `repair_checksums` makes
those fit the damaged files again.
"""

import hashlib
import json
import lzma
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaigns.damage_formats import BY_SUFFIX
from campaigns.odd_values import damage_bytes, dump

SPARSE = 8 << 30
"""Bytes of the largest file, none of them on the disk."""


def damage_folder(draw: random.Random, folder: Path) -> str:
    """Damage a file of a folder, or the folder itself; says what was done."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    structural = draw.random() < 0.15
    file = draw.choice(files)
    if structural:
        return _damage_structure(draw, folder, file, files)
    done = [damage_file(draw, file)]
    other = draw.choice(files)
    if draw.random() < 0.15 and other.is_file() and other.stat().st_size < SPARSE:
        done.append(damage_file(draw, other))
    return "; ".join(done)


def _damage_structure(draw: random.Random, folder: Path, file: Path, files: list[Path]) -> str:
    kind = draw.choice(
        ["surplus", "surplus folder", "partial", "partial folder", "old", "empty", "no folder", "swapped", "linked"]
    )
    if kind == "surplus":
        (
            file.parent
            / draw.choice(["x", "x.json", "checkpoint-x", "checkpoint-9", "checkpoint-00000009", "\udcff", "model.bin"])
        ).write_bytes(b"x")
    elif kind == "surplus folder":
        (file.parent / draw.choice(["x", "checkpoint-", "checkpoint-00000009", "learned", "model", "order"])).mkdir(
            exist_ok=True
        )
    elif kind == "partial":
        file.with_name(f"{draw.choice(['a', file.name])}.partial{draw.choice(['', '-1'])}").write_bytes(b"x")
    elif kind == "partial folder":
        shutil.copytree(file.parent, file.parent.with_name(f"{file.parent.name}.partial"), dirs_exist_ok=True)
    elif kind == "old":
        file.parent.rename(file.parent.with_name(f"{file.parent.name}.old"))
    elif kind == "empty":
        for each in files:
            each.unlink()
    elif kind == "no folder":
        shutil.rmtree(folder)
        draw.choice([lambda: None, lambda: folder.write_text("x"), lambda: folder.symlink_to(folder)])()
    elif kind == "swapped":
        other = draw.choice(files)
        first, second = file.read_bytes(), other.read_bytes()
        file.write_bytes(second)
        other.write_bytes(first)
    else:
        target = file.with_name("elsewhere")
        file.rename(target)
        file.symlink_to(target.name)
    return f"{folder.name}: {kind} ({file.name})"


def damage_file(draw: random.Random, file: Path) -> str:
    """Damage one file by its kind, or as any file; says what was done."""
    special = next((function for suffix, function in BY_SUFFIX.items() if file.name.endswith(suffix)), None)
    if special is not None and draw.random() < 0.7:
        try:
            what = special(draw, file)
        except (ValueError, LookupError, OSError, EOFError, TypeError, RecursionError, struct.error, lzma.LZMAError):
            what = _damage_bytes(draw, file)  # it was damaged before, so it is no longer of its kind
    elif draw.random() < 0.12:
        what = _replace(draw, file)
    else:
        what = _damage_bytes(draw, file)
    return f"{file.name}: {what}"


def _damage_bytes(draw: random.Random, file: Path) -> str:
    data, what = damage_bytes(draw, file.read_bytes())
    file.write_bytes(data)
    return what


def _replace(draw: random.Random, file: Path) -> str:
    """Something else in the file's place."""
    kinds = ["missing", "missing", "folder", "link to itself", "link to nothing", "device"]
    if file.suffix in (".json", ".npy", ".safetensors", ".bin"):  # text may be of any size
        kinds.append("huge")
    kind = draw.choice(kinds)
    if kind == "huge":
        os.truncate(file, SPARSE)
        return kind
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "link to itself":
        file.symlink_to(file.name)
    elif kind == "link to nothing":
        file.symlink_to("nowhere")
    elif kind == "device":
        file.symlink_to("/dev/null")
    return kind


def repair_checksums(folder: Path) -> None:
    """Make the checksums in a folder, and in those inside of it, fit what the files are now."""
    for weights in folder.rglob("order.safetensors"):
        config = weights.with_name("order.json")
        if weights.is_file() and weights.stat().st_size < SPARSE:
            _update(config, lambda values, weights=weights: values.update(fingerprint=_sha256(weights)[:8]))
    for state in folder.rglob("state.json"):
        _update(state, lambda values, state=state: _update_crc(values.get("checksums"), state.parent))
    for sums in filter(Path.is_file, folder.rglob("checksums.json")):
        files = [
            file
            for file in sums.parent.iterdir()
            if file.is_file() and file.name != sums.name and file.stat().st_size < SPARSE
        ]
        sums.write_text(json.dumps({file.name: _sha256(file) for file in sorted(files)}))


def _update(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file, if it is one still."""
    if not file.is_file() or file.stat().st_size >= SPARSE:
        return
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            change(values)
            file.write_bytes(dump(values).encode("utf-8", "surrogatepass"))
    except (OSError, ValueError, RecursionError):
        return


def _update_crc(sums: Any, folder: Path) -> None:
    if isinstance(sums, dict):
        for name in list(sums):
            if isinstance(sums[name], int) and (folder / name).is_file():
                sums[name] = zlib.crc32((folder / name).read_bytes())


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

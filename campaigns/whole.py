"""Whether a file is complete, by its format."""

import gzip
import io
import json
import lzma
import struct
import zlib
from pathlib import Path

import numpy as np


def is_whole(file: Path) -> str:
    """What is wrong with a file that should be complete; empty if nothing is."""
    try:
        data = file.read_bytes()
        if file.suffix in (".gz", ".xz"):
            data = (gzip if file.suffix == ".gz" else lzma).decompress(data)
        if file.suffix == ".json" and file.name != "tokenizer.json":
            # Trajectories may go to any name: a line each.
            for part in data.splitlines() if data.startswith(b'{"source"') else [data]:
                _loads(part)
        elif ".jsonl" in file.name:
            if data and not data.endswith(b"\n"):
                return "its last line has no end"
            if data.startswith(b"{\n"):  # one object under the name of another format
                _loads(data)
                return ""
            for line in data.splitlines():
                _loads(line)
        elif data.startswith(b"<!") and b"</html>" not in data[-50:]:
            return "does not end with </html>"
        elif file.suffix == ".npy":
            np.load(io.BytesIO(data))
        elif file.suffix == ".safetensors":
            _check_tensors(data)
    except (ValueError, OSError, EOFError, lzma.LZMAError, struct.error, KeyError, TypeError, zlib.error) as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def _loads(data: bytes) -> None:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    json.loads(data.decode("utf-8"), parse_constant=refuse)


def _check_tensors(data: bytes) -> None:
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    if len(data) != 8 + size + end:
        raise ValueError(f"{len(data)} bytes, expected {8 + size + end}")

"""Results on disk: written completely or not at all, and checked when read. Knows nothing about their contents.

`output` writes files, `folders` folders, `locks` keeps writers apart, and `records` reads what may be damaged.
"""

from anyorder.files.folders import (
    CHECKSUMS,
    OLD,
    added_files,
    atomic_folder,
    check_plain_name,
    is_leftover,
    keep_folder,
    read_whole,
    recover_folder,
    remove_leftovers,
    replace_folder,
    verify,
)
from anyorder.files.locks import lock_folder
from anyorder.files.output import (
    PARTIAL,
    atomic_file,
    cannot_write,
    check_writable,
    sha256,
    write_json,
    write_tensors,
)

__all__ = [
    "CHECKSUMS",
    "OLD",
    "PARTIAL",
    "added_files",
    "atomic_file",
    "atomic_folder",
    "cannot_write",
    "check_plain_name",
    "check_writable",
    "is_leftover",
    "keep_folder",
    "lock_folder",
    "read_whole",
    "recover_folder",
    "remove_leftovers",
    "replace_folder",
    "sha256",
    "verify",
    "write_json",
    "write_tensors",
]

"""Files of users' code that travel to other machines: their bytes and digests, with their local path.

A worker with access to the driver's folder (a shared disk) uses the file there; other workers write the bytes to a local folder.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.store.scratch import make_scratch

MOST_BYTES = 4 << 20


class SentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with path, bytes and digest."""

    path: str
    data: bytes
    sha256: str


def sent_files(*specs: object) -> list[SentFile]:
    """Files named by specs such as `my_file.py:verify`; other specs name none."""
    file_by_path = {}
    for spec in specs:
        path = spec.rpartition(":")[0] or spec if isinstance(spec, str) else ""
        if path.endswith(".py") and Path(path).is_file():
            data = Path(path).read_bytes()
            if len(data) > MOST_BYTES:
                raise UsageError(
                    f"{path}: {len(data):,} bytes are too many to send", hint="install it on every node"
                )
            file_by_path[path] = SentFile(path=path, data=data, sha256=hashlib.sha256(data).hexdigest())
    return list(file_by_path.values())


def enter(folder: str, files: list[SentFile]) -> None:
    """Change to the driver's folder, so that relative paths have the same meaning; if it does not exist here, to a new folder
    with the sent files.

    Raises:
        UsageError: a sent file exists with other bytes.
    """
    is_shared = Path(folder).is_dir()
    os.chdir(folder if is_shared else make_scratch("sent"))
    for file in files:
        path = Path(file.path)
        if path.is_file():
            if hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256:
                raise UsageError(
                    f"{path} is another file on this node", hint="copy it there anew, or remove it"
                )
        elif is_shared or path.is_absolute():
            raise UsageError(
                f"{path}: no such file on this node",
                hint="copy it there, or start from a folder that only you have",
            )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)

"""This module remembers the SHA-256 of a run's file beside its index: what is made from the file names it by its digest.

A pass that reads the whole file anyway takes it too, so that the first data set made from an index is as quick as the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

STEP = 2 << 20
"""Bytes hashed at a time."""


def digest_of(path: Path, folder: Path | None = None) -> str:
    """The file's SHA-256; beside the index in `folder` it is remembered for as long as the file is unchanged."""
    kept = folder / f"digest-{path.name}.json" if folder is not None and folder.is_dir() else None
    key = _key(path)
    if kept is not None:
        try:
            known = msgspec.json.decode(kept.read_bytes(), type=dict[str, str])
            if key in known:
                return known[key]
        except (OSError, msgspec.DecodeError):
            pass
    digest = _sha256(path)
    if kept is not None and _key(path) == key:
        with contextlib.suppress(OSError):  # where nothing can be written it is taken again next time
            partial = kept.with_suffix(f".{os.getpid()}")
            partial.write_bytes(msgspec.json.encode({key: digest}))
            partial.replace(kept)
    return digest


def _sha256(path: Path) -> str:
    """In larger steps than `hashlib.file_digest` takes, because others read beside it and each step waits for the interpreter."""
    digest, block = hashlib.sha256(), bytearray(STEP)
    view = memoryview(block)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(view[:size])
    return digest.hexdigest()


def _key(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}"

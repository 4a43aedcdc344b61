"""This module takes the SHA-256 of a file and remembers it; as a program it does so for another process.

A program that hashes should start at once, so nothing is imported here that takes longer than hashing a few megabytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import sys

STEP = 1 << 20
"""Bytes hashed at a time."""

GIVE_WAY = 3
"""How far the process that hashes steps back when there is other work for every core."""


class Unwanted(Exception):
    """Whoever wanted the digest is gone."""


def digest_of(
    path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None, *, parent: int | None = None
) -> str:
    """The file's SHA-256; beside the index in `folder` it is remembered for as long as the file is unchanged.

    With `parent` given, it raises `Unwanted` once another process is this one's parent.
    """
    if folder is None or not os.path.isdir(folder):
        return _sha256(path, parent)
    digest = known(path, folder)
    if digest is not None:
        return digest
    with _Turn(f"{_kept(path, folder)}.lock"):
        digest = known(path, folder)  # somebody else may have taken it meanwhile
        if digest is None:
            key = key_of(path)
            digest = _sha256(path, parent)
            if key_of(path) == key:
                _write(f"{_kept(path, folder)}.json", key, digest)
    return digest


def known(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str | None:
    """The file's SHA-256, if it was taken since the file last changed."""
    return _read(f"{_kept(path, folder)}.json", key_of(path))


def _kept(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    return os.path.join(folder, f"digest-{os.path.basename(path)}")


def key_of(path: str | os.PathLike[str]) -> str:
    """What tells a file from itself after any change."""
    stat = os.stat(path)
    return f"{stat.st_size}-{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"


def _note(key: str, digest: str) -> str:
    """What is remembered, as JSON."""
    return f'{{"{key}": "{digest}"}}'


def _read(kept: str, key: str) -> str | None:
    try:
        with open(kept, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError):
        return None
    digest = text[len(_note(key, "")) - 2 : -2]
    return digest if digest and text == _note(key, digest) else None


def _write(kept: str, key: str, digest: str) -> None:
    partial = f"{kept}.{os.getpid()}"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(_note(key, digest))
        os.replace(partial, kept)
    except OSError:
        pass  # where nothing can be written it is taken again next time


class _Turn:
    """Whoever needs a digest that is being taken waits for it, where a file can say so."""

    def __init__(self, lock: str) -> None:
        self._lock = lock
        self._file: int | None = None

    def __enter__(self) -> None:
        try:
            self._file = os.open(self._lock, os.O_WRONLY | os.O_CREAT, 0o666)
        except OSError:
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)


def _sha256(path: str | os.PathLike[str], parent: int | None) -> str:
    # Some processors copy a file to just behind the start of a page, where Python's own buffers lie, four times as slowly.
    digest, block = hashlib.sha256(), mmap.mmap(-1, STEP)
    with open(path, "rb", buffering=0) as file, memoryview(block) as view:
        while size := file.readinto(block):
            digest.update(view[:size])
            if parent is not None and os.getppid() != parent:
                raise Unwanted
    return digest.hexdigest()


def main(words: list[str]) -> None:
    """Take and remember digests for the process of a number: of files, each followed by the folder of its index."""
    parent = int(words[0])
    try:
        os.nice(GIVE_WAY)
    except OSError:
        pass
    try:
        for path, folder in zip(words[1::2], words[2::2], strict=True):
            digest_of(path, folder, parent=parent)
    except Unwanted:
        pass


if __name__ == "__main__":
    main(sys.argv[1:])

"""This module remembers the SHA-256 of a run's file beside its index: what is made from the file names it by its digest.

Commands that come before `prepare` and read the whole file take it too, so that the first data set is as quick as the next. Where
several may read, a process of its own takes it beside them; this file is its program, so only the standard library is imported here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import Popen

STEP = 1 << 20
"""Bytes hashed at a time."""

GIVE_WAY = 3
"""How far the process that hashes steps back when there is other work for every core: it may end with the command, not before."""


class Unwanted(Exception):
    """Whoever wanted the digest is gone."""


class Digests:
    """Digests that are taken beside other work; when that fails, they are left to whoever needs them."""

    def __init__(self) -> None:
        self._children: list[Popen[bytes]] = []
        self._begun: set[Path] = set()

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for child in self._children:
            if failed is not None:
                child.kill()
            child.wait()

    def begin(self, files: Iterable[tuple[Path, Path]]) -> None:
        """Have the digests of these files, each with the folder that remembers it, taken in a process of their own."""
        new = [(path, folder) for path, folder in files if path not in self._begun]
        if not new or not sys.executable:
            return
        from subprocess import DEVNULL, Popen

        self._begun.update(path for path, _ in new)
        words = [str(word.absolute()) for pair in new for word in pair]
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]
        with suppress(OSError):  # they are taken by whoever needs them
            self._children.append(Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL))

    def take(self, files: Iterable[tuple[Path, Path]]) -> None:
        """Take them now."""
        for path, folder in files:
            with suppress(OSError):
                digest_of(path, folder)


def digest_of(path: Path, folder: Path | None = None, *, parent: int | None = None) -> str:
    """The file's SHA-256; beside the index in `folder` it is remembered for as long as the file is unchanged.

    With `parent` given, it raises `Unwanted` once another process is this one's parent.
    """
    if folder is None or not folder.is_dir():
        return _sha256(path, parent)
    kept, key = folder / f"digest-{path.name}.json", _key(path)
    if (known := _read(kept, key)) is not None:
        return known
    with _in_turn(kept.with_suffix(".lock")):
        digest = _read(kept, key)  # somebody else may have taken it meanwhile
        if digest is None:
            digest = _sha256(path, parent)
            if _key(path) == key:
                _write(kept, key, digest)
    return digest


def _read(kept: Path, key: str) -> str | None:
    try:
        known = json.loads(kept.read_bytes())
    except (OSError, ValueError):
        return None
    digest = known.get(key) if isinstance(known, dict) else None
    return digest if isinstance(digest, str) else None


def _write(kept: Path, key: str, digest: str) -> None:
    with suppress(OSError):  # where nothing can be written it is taken again next time
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({key: digest}))
        partial.replace(kept)


@contextmanager
def _in_turn(lock: Path) -> Iterator[None]:
    """Whoever needs a digest that is being taken waits for it, where a file can say so."""
    try:
        file = lock.open("a")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path, parent: int | None) -> str:
    # Some processors copy a file to just behind the start of a page, where Python's own buffers lie, four times as slowly.
    digest, block = hashlib.sha256(), mmap.mmap(-1, STEP)
    with path.open("rb", buffering=0) as file, memoryview(block) as view:
        while size := file.readinto(block):
            digest.update(view[:size])
            if parent is not None and os.getppid() != parent:
                raise Unwanted
    return digest.hexdigest()


def _key(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"


def main(words: list[str]) -> None:
    """Take and remember digests for the process of a number: of files, each followed by the folder of its index."""
    parent = int(words[0])
    with suppress(OSError):
        os.nice(GIVE_WAY)
    with suppress(Unwanted):
        for path, folder in zip(words[1::2], words[2::2], strict=True):
            digest_of(Path(path), Path(folder), parent=parent)


if __name__ == "__main__":
    main(sys.argv[1:])

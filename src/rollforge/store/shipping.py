"""Which folders are working copies of a bucket: files written there are sent on before they count.

Knows no bucket: a copy is whatever can do what `Copy` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

SHIPPED_DELAY_S = 1.0
"""How long a line waits for company where every commit is an object."""


class Copy(Protocol):
    """A working copy."""

    url: str

    def append(self, path: Path, data: bytes) -> None:
        """Send lines that were appended; raises `OSError` when they could not be sent."""

    def recorded(self, path: Path, size: int) -> None:
        """Note the size of a growing file whose lines were all sent."""

    def replace(self, path: Path) -> None:
        """Send a file that was replaced as a whole."""

    def refresh(self) -> None:
        """Bring the copy up to date with what other processes wrote."""

    def remove(self, folder: Path) -> None:
        """Remove a folder that is no longer needed."""

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Hold the run for writing, with an up-to-date copy."""
        ...


_copies: dict[Path, Copy] = {}
_addresses: dict[Path, str] = {}


@contextlib.contextmanager
def shipped(folder: Path, copy: Copy) -> Iterator[None]:
    """Send what is written below `folder` as long as the block runs."""
    before = _copies.get(folder)
    _copies[folder] = copy
    try:
        yield
    finally:
        if before is None:
            _copies.pop(folder, None)
        else:
            _copies[folder] = before


@contextlib.contextmanager
def known(path: Path, url: str) -> Iterator[None]:
    """Remember the address of a working copy as long as the block runs."""
    _addresses[path] = url
    try:
        yield
    finally:
        _addresses.pop(path, None)


def copy_of(path: Path) -> Copy | None:
    """The working copy that a path lies in; None for the files of this machine."""
    if not _copies or path.name.startswith("."):
        return None
    for folder, copy in _copies.items():
        if folder in path.parents:
            inside = path.relative_to(folder).parts[:-1]
            return None if any(part == "index" or part.endswith("_index") for part in inside) else copy
    return None


def ship_lines(path: Path, data: bytes) -> None:
    """Send whole lines that were appended to a file, if it lies in a working copy."""
    copy = copy_of(path)
    if copy is not None:
        copy.append(path, data)
        copy.recorded(path, path.stat().st_size)


def address_of(path: str | Path) -> str | None:
    """The address in a bucket that a path is a working copy of; None for the files of this machine."""
    path = Path(path)
    for folder, url in _addresses.items():
        if path == folder or folder in path.parents:
            return f"{url}/{path.relative_to(folder).as_posix()}".removesuffix("/.")
    return None

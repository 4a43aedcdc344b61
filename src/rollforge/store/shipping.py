"""Registry of folders that are working copies of a bucket: writes there are uploaded before they are acknowledged.

It is independent of buckets: a copy is any object with the interface `Copy`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

SHIPPED_DELAY_S = 1.0
"""How long a line waits for others if every commit creates an object."""


class Copy(Protocol):
    """Interface of a working copy."""

    url: str

    def append(self, path: Path, data: bytes) -> None:
        """Upload appended lines; raises `OSError` on failure."""

    def recorded(self, path: Path, size: int) -> None:
        """Record the size of a growing file whose lines were all uploaded."""

    def replace(self, path: Path) -> None:
        """Upload a file that was replaced."""

    def refresh(self) -> None:
        """Update the copy with writes of other processes."""

    def remove(self, folder: Path) -> None:
        """Remove a folder that is no longer needed."""

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Hold the run for writing, with an updated copy."""
        ...


_copies: dict[Path, Copy] = {}
_addresses: dict[Path, str] = {}


@contextlib.contextmanager
def shipped(folder: Path, copy: Copy) -> Iterator[None]:
    """While the block runs, upload writes below `folder`."""
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
    """While the block runs, remember the bucket address of a working copy."""
    _addresses[path] = url
    try:
        yield
    finally:
        _addresses.pop(path, None)


def copy_of(path: Path) -> Copy | None:
    """The working copy that contains a path; None for ordinary local files."""
    if not _copies or path.name.startswith("."):
        return None
    for folder, copy in _copies.items():
        if folder in path.parents:
            inside = path.relative_to(folder).parts[:-1]
            return None if any(part == "index" or part.endswith("_index") for part in inside) else copy
    return None


def ship_lines(path: Path, data: bytes) -> None:
    """Upload lines appended to a file, if it is in a working copy."""
    copy = copy_of(path)
    if copy is not None:
        copy.append(path, data)
        copy.recorded(path, path.stat().st_size)


def address_of(path: str | Path) -> str | None:
    """The bucket address of a path in a working copy; None for ordinary local files."""
    path = Path(path)
    for folder, url in _addresses.items():
        if path == folder or folder in path.parents:
            return f"{url}/{path.relative_to(folder).as_posix()}".removesuffix("/.")
    return None

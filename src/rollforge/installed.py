"""This module says what is installed beside rollforge, at a glance.

`importlib.metadata` knows more, but loads a mail parser and reads what every package says of itself, which takes longer than many a
command: it is asked only when there is something to ask for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def plugins(family: str) -> dict[str, str]:
    """The members that installed packages add to a family: name → "module:attribute"."""
    if not _have_plugins():
        return {}
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=f"rollforge.{family}")}


@cache
def _have_plugins() -> bool:
    """Whether any package names a family of ours; yes where that cannot be seen from outside."""
    for folder in _folders():
        if not folder.is_dir():
            return True
        for said in (
            *folder.glob("*.dist-info/entry_points.txt"),
            *folder.glob("*.egg-info/entry_points.txt"),
        ):
            if b"[rollforge." in said.read_bytes():
                return True
    return False


def version_of(package: str) -> str:
    """The installed version of a package; "unknown" when it is not installed."""
    for folder in _folders():
        for told in folder.glob(f"{package}-*.dist-info"):
            return told.name.removeprefix(f"{package}-").removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _folders() -> Iterator[Path]:
    """Where packages are, in the order they are looked for."""
    for place in dict.fromkeys(sys.path):
        path = Path(place or ".")
        if path.exists():
            yield path

"""This module says what is installed beside rollforge, at a glance.

`importlib.metadata` knows more, but loads a mail parser and reads what every package says of itself, which takes longer than many a
command: it is asked only when there is something to ask for.
"""

from __future__ import annotations

import os
import sys
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
        names = _listed(folder)
        if names is None:
            return True
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) and b"[rollforge." in _said(
                f"{folder}/{name}/entry_points.txt"
            ):
                return True
    return False


def version_of(package: str) -> str:
    """The installed version of a package; "unknown" when it is not installed."""
    for folder in _folders():
        for name in _listed(folder) or ():
            if name.startswith(f"{package}-") and name.endswith(".dist-info"):
                return name.removeprefix(f"{package}-").removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _folders() -> list[Path]:
    """Where packages are, in the order they are looked for."""
    places = (Path(place or ".") for place in dict.fromkeys(sys.path))
    return [path for path in places if path.exists()]


@cache
def _listed(folder: Path) -> list[str] | None:
    """What is in a folder; None when it is an archive, or must not be looked into."""
    try:
        return os.listdir(folder)  # noqa: PTH208  (hundreds of packages: a Path for each takes longer)
    except OSError:
        return None


def _said(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""

"""This module writes the bubblewrap command: what a confined program sees of the machine, which is little.

It knows no limits and starts nothing; whether a command works is found out by running it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

_NAMESPACES = (
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
)
_TO_GIVE_UP_ROOT = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
"""Kept only to change the user id, which takes every capability away."""


def confinements() -> Iterator[list[str]]:
    """Commands to try, best first: for root, the limit on processes holds only without a user namespace."""
    found = shutil.which("bwrap")
    if found is None:
        return
    if os.geteuid() == 0:
        yield [found, *_NAMESPACES, *_TO_GIVE_UP_ROOT, *_view()]
        yield [found, "--unshare-user", *_NAMESPACES, *_TO_GIVE_UP_ROOT, *_view()]
    else:
        yield [found, "--unshare-user", *_NAMESPACES, *_view()]


def python() -> Path:
    """The interpreter itself, not the virtual environment's link to it."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def python_inside() -> str:
    """The interpreter as the program sees it: one outside `/usr` is shown under a neutral name."""
    path = python()
    return str(path) if path.is_relative_to("/usr") else f"/python/{path.relative_to(path.parents[1])}"


def _view() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    words += ["--perms", "0755", "--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null"]
    words += ["--symlink", "/tmp/.stdin", "/dev/stdin"]
    words += ["--perms", "0755", "--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in ("lib", "lib32", "lib64", "bin"):
        path = Path("/") / name
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    if not python().is_relative_to("/usr"):
        words += [
            "--ro-bind",
            str(python().parents[1]),
            "/python",
            "--setenv",
            "LD_LIBRARY_PATH",
            "/python/lib",
        ]
    return words

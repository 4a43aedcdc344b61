"""The bubblewrap command: the parts of the machine that a sandboxed program sees.

It sees only the system's libraries and programs, the interpreter and its standard library, all read-only. The home directory, the
working directory and `/usr/src` are hidden, wherever Python is installed. This code only builds commands.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
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
"""Capabilities kept only for changing the user id, which then drops all capabilities."""

_SYSTEM = (
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/bin", "/usr/share/zoneinfo"),
    *("/usr/local/lib", "/usr/local/lib64", "/usr/local/bin"),
)
"""Subfolders of `/usr` that a program may read; `/usr/src` is excluded, since containers keep work there."""


def confinements() -> Iterator[list[str]]:
    """Confining commands to try, best first. For root, the process limit works only without a user namespace."""
    command = shutil.which("bwrap")
    if command is None:
        return
    if os.geteuid() == 0:
        yield [command, *_NAMESPACES, *_TO_GIVE_UP_ROOT, *view()]
        yield [command, "--unshare-user", *_NAMESPACES, *_TO_GIVE_UP_ROOT, *view()]
    else:
        yield [command, "--unshare-user", "--disable-userns", *_NAMESPACES, *view()]
        yield [command, "--unshare-user", *_NAMESPACES, *view()]  # bubblewrap before 0.8


def python() -> Path:
    """The interpreter itself, with links of virtual environments resolved."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def python_inside() -> str:
    """The interpreter's path in the sandbox; an interpreter outside `/usr` gets a neutral path."""
    path = python()
    return str(path) if path.is_relative_to("/usr") else f"/python/{path.relative_to(path.parents[1])}"


def python_files() -> list[Path]:
    """The interpreter, its standard library and its shared libraries; never a whole home directory.

    A dedicated prefix (`~/.pyenv/versions/3.12.1`) is shown completely; the home directory as prefix (`~/bin/python3`) is not.
    """
    path, prefix = python(), python().parents[1]
    stdlib = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix})).resolve()
    if stdlib.is_relative_to(prefix) and not holds_private(prefix):
        return [prefix]
    dynamic = stdlib / "lib-dynload"
    libraries = sorted((prefix / "lib").glob("lib*.so*"))
    return [path, stdlib, *([dynamic] if not dynamic.is_relative_to(stdlib) else []), *libraries]


def holds_private(path: Path) -> bool:
    """Whether showing a directory would reveal the home or the working directory."""
    return any(private.is_relative_to(path.resolve()) for private in private_paths())


def private_paths() -> list[Path]:
    """Directories that no program may see: the home directory and the working directory."""
    paths: list[Path] = []
    for text in (os.environ.get("HOME"), "~", "."):
        try:
            path = Path(text).expanduser().resolve() if text else None
        except (OSError, RuntimeError):
            continue
        if path is not None and path not in (Path("/"), *paths):
            paths.append(path)
    return paths


def system_paths() -> list[Path]:
    """The system's libraries and programs."""
    return [Path(name) for name in _SYSTEM if Path(name).is_dir()]


def view() -> list[str]:
    """bubblewrap arguments for the program's file system."""
    words = [*_directory("/usr"), *_directory("/usr/local"), *_directory("/usr/share")]
    for path in system_paths():
        words += ["--ro-bind", str(path), str(path)]
    words += [*_directory("/dev"), "--dev-bind", "/dev/null", "/dev/null"]
    words += ["--symlink", "/tmp/.stdin", "/dev/stdin"]
    words += [*_directory("/etc"), "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in ("lib", "lib32", "lib64", "bin"):
        path = Path("/") / name
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for path in private_paths():
        if any(path.is_relative_to(system) for system in system_paths()) and not python().is_relative_to(
            path
        ):
            words += ["--tmpfs", str(path)]
    if not python().is_relative_to("/usr"):
        prefix = python().parents[1]
        for path in python_files():
            inside = Path("/python") / path.relative_to(prefix) if path.is_relative_to(prefix) else path
            for parent in reversed(inside.parents[:-1]):
                words += _directory(str(parent))
            words += ["--ro-bind", str(path), str(inside)]
        words += ["--setenv", "LD_LIBRARY_PATH", "/python/lib"]
    return words


def _directory(path: str) -> list[str]:
    """Arguments for a directory that other users may enter; bubblewrap's default is only for its own user."""
    return ["--perms", "0755", "--dir", path]

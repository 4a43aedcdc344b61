"""This module digests a verifier: its source, its options, its mode.

Equal fingerprints mean comparable verdicts. The source is the whole file the verifier stands in, and the files beside it that it
uses, since a neighbour decides the verdict as much as the function does. Installed libraries are not part of it.
"""

from __future__ import annotations

import hashlib
import inspect
import marshal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import msgspec

_RUNNING = {
    "base", "cache", "calling", "cores", "fingerprint", "inline", "keys", "line", "process", "runner", "spawner", "workers",
}  # fmt: skip
"""Modules of this package that run verifiers: a change in them changes no verdict."""


def fingerprint_of(function: Callable[..., Any], options: Mapping[str, Any], mode: str | None) -> str:
    """Sixteen hex digits over source, options and mode."""
    digest = hashlib.sha256(_code_part(function))
    for path in _source_files(function):
        digest.update(path.read_bytes())
    digest.update(getattr(function, "__qualname__", type(function).__qualname__).encode())
    digest.update(msgspec.json.encode([dict(options), mode], order="sorted", enc_hook=repr))
    return digest.hexdigest()[:16]


def _source_files(function: Callable[..., Any]) -> list[Path]:
    """The verifier's own file, and those in its folder that it refers to, however indirectly."""
    module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
    own = _file_of(module)
    if module is None or own is None:
        return []
    found = {own}
    waiting = [module]
    while waiting:
        for neighbour in _modules_used(waiting.pop()):
            path = _file_of(neighbour)
            if path is None or path in found or path.parent != own.parent:
                continue
            if neighbour.__name__.startswith("rollforge.") and path.stem in _RUNNING:
                continue
            found.add(path)
            waiting.append(neighbour)
    return sorted(found)


def _modules_used(module: ModuleType) -> list[ModuleType]:
    used = []
    for value in list(vars(module).values()):
        named = (
            value
            if isinstance(value, ModuleType)
            else sys.modules.get(getattr(value, "__module__", None) or "")
        )
        if named is not None and named is not module:
            used.append(named)
    return used


def _file_of(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    if not isinstance(name, str) or not name.endswith(".py"):
        return None
    path = Path(name)
    return path if path.is_file() else None


def _code_part(function: Callable[..., Any]) -> bytes:
    """What tells apart functions of one file and name: lambdas, closures with other values, code typed at a prompt."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or ("<" not in function.__qualname__ and _is_in_a_file(function)):
        return b""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return marshal.dumps(code.replace(co_filename="")) + msgspec.json.encode(
        cells, order="sorted", enc_hook=lambda value: type(value).__qualname__
    )


def _is_in_a_file(function: Callable[..., Any]) -> bool:
    try:
        return Path(inspect.getsourcefile(function) or "").is_file()
    except TypeError:
        return False

"""Digest of a verifier: its source, its options, its mode.

Equal fingerprints mean comparable verdicts. The source is the verifier's whole file plus the files of its folder (or package)
that it imports, since helpers affect verdicts too. Installed libraries are excluded.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import msgspec

_NOT_VERDICTS = {"__init__", "base", "verdict_fields"}
"""Modules of `rollforge.verifiers` that only load verifiers or declare types; like `running/`, changes in them do not affect
verdicts.
"""

_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
"""Folders of unrelated packages, whose files beside a module are not its helpers."""


def fingerprint_of(function: Callable[..., Any], options: Mapping[str, Any], mode: str | None) -> str:
    """Sixteen hex digits over source, options and mode."""
    digest = hashlib.sha256(_code_part(function))
    for path in _source_files(function):
        digest.update(path.read_bytes())
    digest.update(getattr(function, "__qualname__", type(function).__qualname__).encode())
    digest.update(msgspec.json.encode([dict(options), mode], order="sorted", enc_hook=repr))
    return digest.hexdigest()[:16]


def _source_files(function: Callable[..., Any]) -> list[Path]:
    """The verifier's own file and the files of its folder or package that it imports, directly or not."""
    module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
    own = _file_of(module)
    if module is None or own is None:
        return []
    package = module.__package__.split(".") if module.__package__ else []
    root = own.parents[len(package)]
    is_ours = package[:1] == ["rollforge"]
    home = own.parent if is_ours else root.joinpath(*package[:1])
    paths = {own}
    waiting = [own] if str(home) not in _INSTALLED else []
    while waiting:
        for path in _imported(waiting.pop(), root):
            is_beside = path.is_relative_to(home) and not (is_ours and _only_runs(path))
            if is_beside and path not in paths:
                paths.add(path)
                waiting.append(path)
    return sorted(paths)


def _only_runs(path: Path) -> bool:
    """Whether one of our files only runs or loads verifiers, without affecting verdicts."""
    return path.stem in _NOT_VERDICTS or path.parent.name == "running"


def _imported(path: Path, root: Path) -> Iterator[Path]:
    """Files named by a file's import statements, also inside functions."""
    try:
        tree = _parsed(path.read_bytes())
    except (SyntaxError, ValueError):  # such a file cannot be imported either
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _import_files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if node.level else root
            if node.level:
                yield from _import_files(start, ["__init__"])
            for alias in node.names:
                yield from _import_files(start, [*(node.module or "").split("."), alias.name])


def _parsed(source: bytes) -> ast.Module:
    is_collecting = gc.isenabled()
    gc.disable()  # a collection during parsing can corrupt Python 3.11's parser state (gh-106905)
    try:
        return ast.parse(source)
    finally:
        if is_collecting:
            gc.enable()


def _import_files(start: Path, names: list[str]) -> Iterator[Path]:
    """Files executed by importing the dotted `names`: packages and the module itself."""
    for name in filter(None, names):
        for path in (start / f"{name}.py", start / name / "__init__.py"):
            if path.is_file():
                yield path
        start /= name


def _file_of(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    if not isinstance(name, str) or not name.endswith(".py"):
        return None
    path = Path(name).absolute()
    return path if path.is_file() else None


def _code_part(function: Callable[..., Any]) -> bytes:
    """Bytes that distinguish functions of the same file and name: lambdas, closures, interactive code."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or ("<" not in function.__qualname__ and _is_in_a_file(function)):
        return b""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return _code_text(code).encode("utf-8", "backslashreplace") + msgspec.json.encode(
        cells, order="sorted", enc_hook=lambda value: type(value).__qualname__
    )


def _code_text(code: CodeType) -> str:
    """Digest text of a code object without its file name, because a notebook kernel changes a cell's file each time."""
    constants = [
        _code_text(one) if isinstance(one, CodeType) else _constant_text(one) for one in code.co_consts
    ]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    return repr([code.co_name, code.co_code, constants, names, counts])


def _constant_text(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _is_in_a_file(function: Callable[..., Any]) -> bool:
    try:
        return Path(inspect.getsourcefile(function) or "").is_file()
    except TypeError:
        return False

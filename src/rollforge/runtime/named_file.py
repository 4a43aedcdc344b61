"""Imports the Python file that a user named, with the modules beside it.

A module beside a named file belongs to that file's folder: the `helpers.py` of two verifiers are different modules, and neither
can replace an installed module or an optional package of ours. So the folder is not added to `sys.path`. Code in the folder gets
its own `import`, which searches the folder last and registers modules under a name specific to the folder. Imports that bypass
the statement (`importlib.import_module("helpers")`) do not see the folder.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from rollforge.errors import UsageError
from rollforge.runtime.on_error import OnError

PREFIX = "rollforge_user_"


def import_file(file: str | Path) -> ModuleType:
    """The module in `path/to/file.py`, executed once per process."""
    path = Path(file).expanduser().resolve()
    folder = _Folder(path.parent)
    name = folder.name_of(path.stem)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    try:
        return folder.load(path.stem, path)
    except Exception as error:  # a user's file may raise anything; the message names it
        raise UsageError(
            f"{file}: {type(error).__name__}: {error}", hint=f"run it alone: python {file}"
        ) from error


class _Folder:
    """The folder of a named file, with the `import` function of its code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]

    def name_of(self, module: str) -> str:
        return f"{PREFIX}{self._digest}_{module}"

    def load(self, module: str, file: Path) -> ModuleType:
        """Execute a file, or a package's `__init__.py`, under its name in this folder; a folder without `__init__.py` is a
        package too.
        """
        name = self.name_of(module)
        if file.is_dir():
            made = sys.modules[name] = ModuleType(name)
            made.__path__ = [str(file)]
            _Submodules.folders[name] = self
            return made
        is_package = file.name == "__init__.py"
        spec = importlib.util.spec_from_file_location(
            name,
            file,
            loader=_Loader(name, str(file), self),
            submodule_search_locations=[str(file.parent)] if is_package else None,
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{file}: not a Python file")
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        # Half a module stays nowhere, and what it prints does not mix with a command's results.
        with OnError(lambda: sys.modules.pop(name, None)), contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(made)
        return made

    def import_(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """`import name` for this folder's code: searches all other locations first, then the folder."""
        top, _, rest = name.partition(".")
        beside = None if level else self._beside(top)
        if beside is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = sys.modules.get(self.name_of(top)) or self.load(top, beside)
        leaf = importlib.import_module(f"{module.__name__}.{rest}") if rest else module
        for wanted in fromlist or ():
            if hasattr(leaf, "__path__") and wanted != "*" and not hasattr(leaf, wanted):
                _import_if_there(f"{leaf.__name__}.{wanted}")
        return leaf if fromlist else module

    def _beside(self, top: str) -> Path | None:
        folder = self.path / top
        for file in (folder / "__init__.py", self.path / f"{top}.py", folder):
            if file.exists():
                return None if _is_installed(top) else file
        return None


class _Loader(SourceFileLoader):
    """Executes a module with the folder's `import` function."""

    def __init__(self, name: str, path: str, folder: _Folder) -> None:
        super().__init__(name, path)
        self._folder = folder

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._folder.import_}
        _Submodules.folders[module.__name__] = self._folder
        super().exec_module(module)


class _Submodules:
    """Finder for submodules of packages in the folder, so that they get the folder's `import` too."""

    folders: ClassVar[dict[str, _Folder]] = {}

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        folder = cls.folders.get(name.rpartition(".")[0]) if name.startswith(PREFIX) else None
        if folder is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path, folder)
        return spec


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import_if_there(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise


sys.meta_path.insert(0, _Submodules)
